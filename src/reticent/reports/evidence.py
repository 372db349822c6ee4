"""The evidence page: which attacks that two published lists name were tried in an audit, how hard, and which were not.

Sources of the classes:

- EDPB, Opinion 28/2024 on certain data protection aspects related to the processing of personal data in the context of
  AI models, adopted on 17 December 2024, paragraph 55;
- OWASP AI Security Verification Standard (AISVS) 1.0, chapter C11, section C11.3, requirements 11.3.1 to 11.3.3.

The page states what was done. It draws no legal conclusion.
"""

import math
from dataclasses import dataclass

from reticent.auditing.attacks.evidence import Need
from reticent.auditing.attacks.registry import ATTACKS
from reticent.auditing.metrics.rates import NONMEMBERS_TIMES_FPR
from reticent.auditing.results import AttackResult, AuditResult
from reticent.reports.model import Paragraph, Reference, Section, Table

EDPB_URL = "https://www.edpb.europa.eu/system/files/2024-12/edpb_opinion_202428_ai-models_en.pdf"
AISVS_URL = "https://github.com/OWASP/AISVS/blob/main/1.0/en/0x10-C11-Adversarial-Robustness.md"

TESTED, IN_PART, NOT_TESTED = "yes", "in part", "no"

_RATIO_NEEDS = frozenset({Need.REFERENCE, Need.SHADOWS, Need.SELF_PROMPTED})
_SHADOW_ATTACKS = frozenset(name for name, attack in ATTACKS.items() if Need.SHADOWS in attack.needs)
_RATIO_ATTACKS = frozenset(name for name, attack in ATTACKS.items() if attack.needs & _RATIO_NEEDS)
_WHITE_BOX_ATTACKS = {name: attack.title.lower() for name, attack in ATTACKS.items() if attack.is_white_box}
_EDPB, _AISVS = "EDPB 28/2024 ¶55", "AISVS"


@dataclass(frozen=True)
class Finding:
    """One class of attack, and what this audit has to say about it.

    Attributes:
        attack_class: its name in the source.
        source: where it is named.
        tested: `TESTED`, `IN_PART` or `NOT_TESTED`.
        how: what was run, or why nothing was.
        strength: on how many texts and down to which rate, or nothing.
        assumptions: what the attacker is given.
    """

    attack_class: str
    source: str
    tested: str
    how: str
    strength: str
    assumptions: str


def findings(result: AuditResult) -> tuple[Finding, ...]:
    """List what an audit tested of each class of attack that the two sources name."""
    return (
        _membership(result),
        _untested_finding("Attribute inference", "no attack here infers an unknown attribute of a known person"),
        _untested_finding(
            "Exfiltration",
            "read as taking out training texts in bulk, without knowing how they begin; no such attack was run",
        ),
        _regurgitation(result),
        _untested_finding("Model inversion", "no attack here searches for inputs that explain the model's outputs"),
        _reconstruction(result),
        *_aisvs(result),
    )


def evidence_section(result: AuditResult) -> Section:
    """The evidence page of a report."""
    rows = tuple(
        (found.attack_class, found.source, found.tested, found.how, found.strength, found.assumptions)
        for found in findings(result)
    )
    table = Table(
        name="evidence",
        title="Attack classes named by the two sources, and what was tested here",
        columns=("Class", "Named in", "Tested", "How, or why not", "Strength", "Assumptions"),
        rows=rows,
    )
    scope = (
        "This page is for whoever has to show which tests were made. It lists the attack classes that two published "
        "sources name and says what this audit did about each. An attack that fails is evidence about that attack, on "
        "these texts, with this access; it is none about attacks that were not run, other texts, or a changed model."
    )
    limits = (
        "No legal conclusion is drawn here: whether a model is anonymous, or a measure sufficient, is for the reader "
        "and the authorities to assess."
    )
    return Section(
        title="Evidence: what was tested, and what was not",
        blocks=(
            Paragraph(text=scope),
            table,
            Paragraph(text=limits),
            Reference(name="EDPB, Opinion 28/2024, adopted 17 December 2024, paragraph 55", url=EDPB_URL),
            Reference(name="OWASP AISVS 1.0, section C11.3, Membership-Inference Mitigation", url=AISVS_URL),
        ),
    )


def count_texts_needed(fpr: float) -> int:
    """Count the non-members that a false-positive rate needs for a figure: the inverse of `lowest_reportable_fpr`."""
    return math.ceil(round(NONMEMBERS_TIMES_FPR / fpr, 9))


def lowest_reportable_fpr(attack: AttackResult) -> float:
    """The lowest false-positive rate at which a number of non-members allows a figure."""
    return min(1.0, NONMEMBERS_TIMES_FPR / attack.num_nonmembers)


def _strength(attacks: tuple[AttackResult, ...]) -> str:
    """The texts behind the strongest of some attacks, by number of non-members, then of members."""
    largest = max(attacks, key=lambda attack: (attack.num_nonmembers, attack.num_members))
    best = max(attacks, key=lambda attack: attack.auc.value)
    return (
        f"{len(attacks)} attack(s) on up to {largest.num_members:,} members and {largest.num_nonmembers:,} "
        f"non-members; lowest reportable FPR {lowest_reportable_fpr(largest):.2g}; highest AUC {best.auc.value:.3f} "
        f"[{best.auc.low:.3f}, {best.auc.high:.3f}] ({best.title})"
    )


def _run(result: AuditResult, names: frozenset[str] | None = None) -> tuple[AttackResult, ...]:
    return tuple(attack for attack in result.attacks if names is None or attack.name in names)


def _titles(attacks: tuple[AttackResult, ...]) -> str:
    return ", ".join(attack.title for attack in attacks)


def _untested_finding(attack_class: str, why: str) -> Finding:
    return Finding(attack_class, _EDPB, NOT_TESTED, why, "", "")


def _membership(result: AuditResult) -> Finding:
    source = f"{_EDPB}; {_AISVS} C11.3"
    attacks = _run(result)
    if not attacks:
        return Finding("Membership inference", source, NOT_TESTED, "no attack could be scored in this audit", "", "")
    return Finding(
        "Membership inference", source, TESTED, _titles(attacks), _strength(attacks), "; ".join(_assumptions(result))
    )


def _assumptions(result: AuditResult) -> list[str]:
    names = {attack.name for attack in result.attacks}
    given = ["the attacker holds the exact text in question and reads the model's log-probabilities of it"]
    if result.reference is not None:
        given.append("and those of the base model before adaptation")
    if names & _SHADOW_ATTACKS:
        given.append("and may have models trained the same way on other texts")
    given += [f"for the {title}, the weights as well" for name, title in _WHITE_BOX_ATTACKS.items() if name in names]
    given.append("members and non-members come from one distribution (see the blind baseline)")
    return given


def _regurgitation(result: AuditResult) -> Finding:
    tried = [canary for canary in result.canaries if canary.extracted_greedy or canary.extracted_sampled]
    if not tried:
        why = "no canaries were planted in this corpus, so nothing was there to be emitted and counted"
        return _untested_finding("Regurgitation of training data", why)
    number = sum(canary.num_canaries for canary in tried)
    samples = max(canary.samples_per_canary for canary in tried)
    return Finding(
        "Regurgitation of training data",
        _EDPB,
        TESTED,
        "verbatim continuation of planted secrets from their prefixes, greedily"
        + (f" and in {samples} samples each" if samples else ""),
        f"{number:,} canaries, planted up to {max(canary.repetitions for canary in tried)} times",
        "the attacker knows the words before a secret; planted secrets represent real ones",
    )


def _reconstruction(result: AuditResult) -> Finding:
    exposures = [exposure for canary in result.canaries for exposure in canary.exposures]
    if not exposures:
        return _untested_finding("Reconstruction", "no attack here rebuilds a training text from the model")
    return Finding(
        "Reconstruction",
        _EDPB,
        IN_PART,
        "exposure of planted secrets, their rank among others of the same form; no whole text was rebuilt",
        f"{len(exposures):,} canaries, up to {max(each.num_candidates for each in exposures):,} candidates each",
        "the attacker knows the words around a secret and the form it has",
    )


def _aisvs(result: AuditResult) -> tuple[Finding, ...]:
    privacy = result.target.get("differential_privacy")
    recorded = ", ".join(f"{key} {value}" for key, value in privacy.items()) if isinstance(privacy, dict) else ""
    return (
        Finding(
            "Calibrated outputs",
            f"{_AISVS} 11.3.1",
            NOT_TESTED,
            "a measure taken in the system, not an attack; log-probabilities were attacked as the model gives them",
            "",
            "",
        ),
        Finding(
            "Differentially private training",
            f"{_AISVS} 11.3.2",
            NOT_TESTED,
            "a measure taken in training, not an attack; "
            + (f"recorded with the model: {recorded}" if recorded else "the model records none"),
            "",
            "",
        ),
        _simulation(result, "Shadow-model attacks", _SHADOW_ATTACKS, "with `--shadow`, or on a run's own worlds"),
        _simulation(result, "Likelihood-ratio attacks", _RATIO_ATTACKS, "with `--reference`"),
        Finding(
            "Label-only attacks",
            f"{_AISVS} 11.3.3",
            NOT_TESTED,
            "every attack here reads log-probabilities; none works from generated text alone",
            "",
            "",
        ),
    )


def _simulation(result: AuditResult, attack_class: str, names: frozenset[str], remedy: str) -> Finding:
    attacks = _run(result, names)
    source = f"{_AISVS} 11.3.3"
    if not attacks:
        return Finding(attack_class, source, NOT_TESTED, f"none was run; possible {remedy}", "", "")
    return Finding(attack_class, source, TESTED, _titles(attacks), _strength(attacks), "as for membership inference")
