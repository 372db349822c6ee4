"""The report of one audit: three sentences, the attacks, canaries, what was audited and how, and the evidence page."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from reticent.auditing.results import AttackResult, AuditResult, CanaryResult, SkippedAttack
from reticent.reports.audit_summary import CHANCE, summary_sentences
from reticent.reports.evidence import count_texts_needed, evidence_section
from reticent.reports.model import (
    Block,
    Cell,
    Facts,
    Histogram,
    IntervalChart,
    LineChart,
    Paragraph,
    Report,
    Section,
    Series,
    Table,
)

_MOST_LONG_VALUE = 200


def audit_report(result: AuditResult) -> Report:
    """Turn an audit's result into a report."""
    sections = [_summary(result), _attacks(result)]
    if result.canaries or result.one_run is not None:
        sections.append(_canaries(result))
    sections.append(_subject(result))
    if result.attacks:
        sections.append(_scores(result))
    sections += [evidence_section(result), _reproduction(result)]
    name = str(result.target.get("name", "model"))
    return Report(
        title=f"Audit of {name}",
        created=result.created,
        warnings=tuple(dict.fromkeys([*result.warnings, *_cut_warning(result), *_attack_warnings(result)])),
        sections=tuple(sections),
    )


def attack_table(
    attacks: Sequence[AttackResult], name: str = "attacks", title: str = "Attacks", unit: str = "text"
) -> Table:
    """Every attack with its figures, one a row; `unit` is what has a score: a text, or an owner."""
    fprs = sorted({rate.fpr for attack in attacks for rate in attack.rates})
    rows = [
        (
            attack.title,
            attack.auc,
            *(_rate_cell(attack, fpr) for fpr in fprs),
            attack.advantage,
            None if attack.epsilon is None else attack.epsilon.low,
            attack.num_members,
            attack.num_nonmembers,
            len(attack.missing),
        )
        for attack in attacks
    ]
    return Table(
        name=name,
        title=title,
        columns=(
            "Attack", "AUC", *(f"TPR at {100 * fpr:g} % FPR" for fpr in fprs), "Advantage",
            f"ε at least ({unit} added or removed)", "Members", "Non-members", "Not scored",
        ),
        rows=tuple(rows),
        note="AUC 0.5 is chance. TPR: the largest share of members found while at most that share of non-members is "
        "accused, without interpolation. Advantage: TPR less FPR at a threshold chosen on one half of the texts and "
        "measured on the other. ε at least: the counts at such a threshold refute, at their own confidence, that "
        "training was differentially private with a smaller ε, for data sets of which one has one more. "
        "n < N: too few non-members for a figure, N are needed.",
    )  # fmt: skip


def flatten_details(details: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a nested record with dotted names, values as text."""
    for key, value in details.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from flatten_details(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(str(entry) for entry in value)[:_MOST_LONG_VALUE] or "none"
        else:
            yield name, "none" if value is None else str(value)


def _factors(result: AuditResult) -> Iterator[tuple[str, str]]:
    """Collect the factors that audits are compared by, as far as the target says them."""
    target, training = result.target, result.target.get("training")
    trained = training if isinstance(training, Mapping) else {}
    template = result.scoring.get("template")
    yield "technique", str(target.get("technique") or target.get("adapter") or "")
    yield "base model", " ".join(str(target[key]) for key in ("base", "base_class") if target.get(key))
    parameters = target.get("trained_parameters")
    yield "trained parameters", f"{parameters:,}" if isinstance(parameters, int) else ""
    yield "epochs", str(trained.get("epochs", ""))
    yield "learning rate", str(trained.get("learning_rate", ""))
    yield "members, non-members", f"{result.data.num_members:,}, {result.data.num_nonmembers:,}"
    yield "tokens of a text, at most", str(template.get("max_tokens", "")) if isinstance(template, Mapping) else ""


def _summary(result: AuditResult) -> Section:
    return Section(title="In short", blocks=tuple(Paragraph(text=text) for text in summary_sentences(result)))


def _cut_warning(result: AuditResult) -> list[str]:
    data, template = result.data, result.scoring.get("template")
    if not data.num_truncated:
        return []
    most = template.get("max_tokens") if isinstance(template, Mapping) else None
    where = "" if most is None else f" after {most:,} tokens"
    texts = data.num_members + data.num_nonmembers
    return [f"{data.num_truncated:,} of {texts:,} texts were cut{where}: only their beginnings were tried"]


def _attack_warnings(result: AuditResult) -> list[str]:
    return [f"{attack.title}: {warning}" for attack in result.attacks for warning in attack.warnings]


def _subject(result: AuditResult) -> Section:
    data = result.data
    counts: list[tuple[str, str]] = [
        ("members", f"{data.num_members:,} texts, set {data.members_hash[:16]}"),
        ("non-members", f"{data.num_nonmembers:,} texts, set {data.nonmembers_hash[:16]}"),
        ("repetitions dropped", f"{data.num_repeated:,}"),
        ("texts cut", f"{data.num_truncated:,}"),
        ("near-duplicates across the sets", f"{len(data.near_duplicates):,}"),
        ("neighbours from", result.neighbours_from or "none were made"),
    ]
    blocks: list[Block] = [
        Facts(rows=tuple((name, value) for name, value in _factors(result) if value)),
        Paragraph(
            text="Texts are named by SHA-256 alone. A higher score means more likely a member, for every attack."
        ),
        Facts(rows=tuple((f"target: {name}", value) for name, value in flatten_details(result.target))),
        Facts(
            rows=tuple(
                (f"reference: {name}", value) for name, value in flatten_details(result.reference or {"model": None})
            )
        ),
        Facts(rows=tuple(counts)),
        Facts(rows=tuple((f"scoring: {name}", value) for name, value in flatten_details(result.scoring))),
    ]
    if result.blind is not None:
        verdict = (
            "above chance: the two sets differ in how they read, so every figure below may owe to that difference"
            if result.blind.beats_chance
            else "not above chance: the two sets are not separated without a model"
        )
        blocks.append(
            IntervalChart(
                title="Blind baseline: the two sets separated by their words, without any model",
                description=f"AUC {result.blind.auc.value:.3f} over {result.blind.num_folds} folds, {verdict}.",
                x_label="AUC",
                rows=(("bag of words", result.blind.auc),),
                reference=CHANCE,
            )
        )
        blocks.append(Paragraph(text=f"The blind baseline is {verdict}."))
    return Section(title="What was audited, and how", blocks=tuple(blocks))


def _attacks(result: AuditResult) -> Section:
    blocks: list[Block] = []
    if result.attacks:
        blocks += [attack_table(result.attacks), *_owner_blocks(result), _auc_chart(result), _roc_chart(result)]
    else:
        blocks.append(Paragraph(text="No attack could be scored in this audit."))
    if result.skipped:
        rows = tuple((skipped.title, skipped.reason, skipped.source) for skipped in result.skipped)
        blocks.append(
            Table(name="skipped", title="Attacks without figures", columns=("Attack", "Why", "Source"), rows=rows)
        )
    if missing := _missing_table(result):
        blocks.append(missing)
    return Section(title="Attacks", blocks=tuple(blocks))


def _owner_blocks(result: AuditResult) -> list[Block]:
    """The attacks per owner, where texts have owners."""
    if result.owners is None:
        return []
    owners = result.owners
    text = (
        f"Texts have owners: {owners.num_members:,} owners of members and {owners.num_nonmembers:,} of non-members. "
        "The intervals above are over owners. Below an owner's score is the mean of the scores of the owner's texts."
    )
    return [Paragraph(text=text), attack_table(owners.attacks, "owners", "Attacks on owners", "owner")]


def _rate_cell(attack: AttackResult, fpr: float) -> Cell:
    for rate in attack.rates:
        if rate.fpr == fpr:
            return f"n < {count_texts_needed(fpr):,}" if rate.tpr is None else rate.tpr
    return None


def _auc_chart(result: AuditResult) -> IntervalChart:
    strongest = max(result.attacks, key=lambda attack: attack.auc.value)
    return IntervalChart(
        title="AUC of each attack with its interval; the dotted line is chance",
        description=f"The highest is {strongest.title} with {strongest.auc.value:.3f}.",
        x_label="AUC",
        rows=tuple((attack.title, attack.auc) for attack in result.attacks),
        reference=CHANCE,
    )


def _roc_chart(result: AuditResult) -> LineChart:
    return LineChart(
        title="ROC curves on logarithmic axes; the dotted line is chance",
        description="True-positive rate over false-positive rate, one stepped line an attack.",
        x_label="false-positive rate",
        y_label="true-positive rate",
        x_scale="log",
        y_scale="log",
        steps=True,
        diagonal=True,
        series=tuple(Series(label=attack.title, x=attack.roc.fpr, y=attack.roc.tpr) for attack in result.attacks),
    )


def _scored_or_not(result: AuditResult) -> list[AttackResult | SkippedAttack]:
    return [*result.attacks, *result.skipped]


def _missing_table(result: AuditResult) -> Table | None:
    counts = Counter(
        (scored.title, missing.reason, "member" if missing.is_member else "non-member")
        for scored in _scored_or_not(result)
        for missing in scored.missing
    )
    if not counts:
        return None
    return Table(
        name="missing-scores",
        title="Texts that an attack could not score",
        columns=("Attack", "Why", "Set", "Texts"),
        rows=tuple((*key, number) for key, number in sorted(counts.items())),
        note="The hashes of these texts are in report.json.",
    )


def _scores(result: AuditResult) -> Section:
    return Section(
        title="Scores of members and non-members", blocks=tuple(_histogram(attack) for attack in result.attacks)
    )


def _histogram(attack: AttackResult) -> Histogram:
    histogram = attack.histogram
    infinite = (*histogram.members_infinite, *histogram.nonmembers_infinite)
    beyond = (
        f"; off the axis: {infinite[0]} members and {infinite[2]} non-members below it, "
        f"{infinite[1]} and {infinite[3]} above it"
        if any(infinite)
        else ""
    )
    return Histogram(
        title=f"{attack.title}{beyond}",
        description=f"Scores of {attack.num_members} members and {attack.num_nonmembers} non-members{beyond}.",
        x_label="score",
        edges=histogram.edges,
        groups=(("members", histogram.members), ("non-members", histogram.nonmembers)),
    )


def _canaries(result: AuditResult) -> Section:
    blocks: list[Block] = []
    if result.canaries:
        blocks.append(
            Table(
                name="canaries",
                title="Planted canaries",
                columns=(
                    "Kind",
                    "Repetitions",
                    "Canaries",
                    "Mean exposure, bits",
                    "Emitted greedily",
                    "Emitted in samples",
                ),
                rows=tuple(_canary_row(canary) for canary in result.canaries),
                note=f"Repetitions 0: canaries that were never planted; {_expected_exposure(result)}. "
                "Emitted: the share whose secret the model writes verbatim after its prefix.",
            )
        )
    if result.one_run is not None:
        one = result.one_run
        blocks.append(
            Facts(
                rows=(
                    (
                        "ε at least, from one run (a canary with all its copies exchanged for its twin)",
                        f"{one.epsilon:.3f} at δ = {one.delta:g}, {100 * one.confidence:g} %",
                    ),
                    (
                        "canaries guessed",
                        f"{one.num_correct:,} right of {one.num_guesses:,} among {one.num_canaries:,}",
                    ),
                )
            )
        )
    return Section(title="Canaries", blocks=tuple(blocks))


def _expected_exposure(result: AuditResult) -> str:
    if any(canary.exposure_by == "choice" for canary in result.canaries):
        return (
            "exposure is by choice, in a knockout of text alone, and at least what is shown; of them "
            "1 bit at most is expected (.43 where questions list eight secrets)"
        )
    return "log2(e) ≈ 1.44 bits is expected of them"


def _canary_row(canary: CanaryResult) -> tuple[Cell, ...]:
    return (
        canary.kind,
        canary.repetitions,
        canary.num_canaries,
        canary.mean_exposure_bits,
        canary.extracted_greedy,
        canary.extracted_sampled,
    )


def _reproduction(result: AuditResult) -> Section:
    rows = [(f"setting: {name}", value) for name, value in flatten_details(result.settings)]
    rows += [(f"version: {name}", value) for name, value in sorted(result.versions.items())]
    sources = tuple((attack.title, attack.source) for attack in _scored_or_not(result))
    return Section(
        title="Settings, versions, sources",
        blocks=(
            Facts(rows=tuple(rows)),
            Table(name="sources", title="Where the attacks come from", columns=("Attack", "Source"), rows=sources),
        ),
    )
