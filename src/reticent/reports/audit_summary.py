"""The three sentences that open an audit's report: what was tried, how well it worked, and what follows.

They are made from the result alone. A figure above chance is one whose whole interval lies above it; the best of
several attacks is the one of largest AUC, and its interval does not count that it was chosen.
"""

from collections.abc import Mapping

from reticent.auditing.results import AttackResult, AuditResult

CHANCE = 0.5
_SHOWN_FPR = 0.01


def summary_sentences(result: AuditResult) -> tuple[str, str, str]:
    """Return what was tried, how well the best attack does against chance, and what follows."""
    best = max(result.attacks, key=lambda attack: attack.auc.value, default=None)
    return _tried(result), _success(result, best), _consequence(result, best)


def _tried(result: AuditResult) -> str:
    target, data = result.target, result.data
    made_by = [str(target[key]) for key in ("technique", "base") if target.get(key)]
    described = f" ({' on '.join(made_by)})" if made_by else ""
    number = len(result.attacks)
    attacks = f"{number} attack{'' if number == 1 else 's'}"
    left_out = f"; {len(result.skipped)} more gave no figures" if result.skipped else ""
    return (
        f"{attacks} tried to tell {data.num_members:,} texts that {target.get('name', 'the model')}{described} is said "
        f"to have been trained on from {data.num_nonmembers:,} that it was not{left_out}."
    )


def _success(result: AuditResult, best: AttackResult | None) -> str:
    if best is None:
        return "No attack could be scored, so nothing was measured."
    area = best.auc
    of_several = f", the best of {len(result.attacks)}," if len(result.attacks) > 1 else ""
    sentence = (
        f"{best.title}{of_several} ranks a training text above another one {100 * area.value:.0f} times in 100 "
        f"[{100 * area.low:.0f}, {100 * area.high:.0f}], where chance is 50"
    )
    found = best.tpr_at(_SHOWN_FPR)
    if found is None:
        return f"{sentence}; the texts are too few to say how many it finds at one false accusation in 100."
    return (
        f"{sentence}; while falsely accusing at most 1 text in 100, it finds {100 * found.value:.0f} of 100 training "
        f"texts [{100 * found.low:.0f}, {100 * found.high:.0f}], where chance is 1."
    )


def _consequence(result: AuditResult, best: AttackResult | None) -> str:
    if best is None:
        return "Nothing follows about what the model gives away."
    if result.blind is not None and result.blind.beats_chance:
        return (
            "The two sets can be told apart without any model, so these figures may owe to that alone: draw both sets "
            "from one source and repeat the audit before concluding anything."
        )
    found = best.tpr_at(_SHOWN_FPR)
    if best.auc.low > CHANCE or (found is not None and found.low > _SHOWN_FPR):
        return (
            "Whoever can query the model can thus tell that texts were in its training data: treat it as confidential "
            f"as those texts{_private_training(result)}."
        )
    return (
        "None of these attacks does better than chance here; that limits these attacks on these texts, not every "
        "attack, and is no guarantee."
    )


def _private_training(result: AuditResult) -> str:
    trained = result.target.get("differential_privacy")
    if isinstance(trained, Mapping) and "epsilon" in trained:
        return f", or train it with a smaller ε than {trained['epsilon']}"
    return ", or serve it through a private release, or train it with differential privacy"
