"""The demonstration's report: accuracy against budget, agreement, the letter, and the three secrets in small."""

from reticent.api.planning import plan
from reticent.demo.comparison import Accuracies
from reticent.demo.findings import DemoFindings
from reticent.demo.settings import PLANNED_TOKENS, STEP_BUDGET
from reticent.evaluation.run_evaluation import Evaluation
from reticent.evaluation.sessions import Composition
from reticent.pac.mechanism import ReleaseMechanism
from reticent.pac.wording import NOT_BOUNDED
from reticent.reports.evaluation import cell, evaluation_report
from reticent.reports.model import IntervalChart, Paragraph, Report, Section, Table
from reticent.stats.estimate import Estimate
from reticent.stats.intervals import clopper_pearson
from reticent.stats.means import CONFIDENCE, Mean

CONTENT_CAVEAT = (
    "The guarantee does not promise that a memorised text is never written: it bounds what tokens tell about which "
    "world was realised. Here half of the worlds have not read this patient's note, and where worlds disagree noise "
    "decides; a sentence that all worlds had learnt would be released as it is."
)


def demo_report(evaluation: Evaluation, findings: DemoFindings) -> Report:
    """Put the findings before the sections of the evaluation's own report."""
    details = evaluation_report(evaluation)
    return Report(
        title="The demonstration: invented letters, private tokens",
        created=evaluation.created,
        warnings=evaluation.warnings,
        sections=(_accuracy(evaluation), _letter(findings), _secrets(evaluation, findings), *details.sections),
    )


def _accuracy(evaluation: Evaluation) -> Section:
    found = Accuracies.of(evaluation.utility[0])
    note = (
        f"All worlds agree at {found.unanimity.value:.1%} of the positions. {found.public.num_samples} letters about "
        f"patients whom no model has seen; intervals are over letters."
    )
    table = Table(
        name="accuracy",
        title="Share of next tokens predicted on letters that nobody trained on",
        columns=("Model", "Accuracy"),
        rows=tuple((name, cell(mean)) for name, mean in found.rows()),
        note=note,
    )
    estimates = tuple((name, estimate) for name, mean in found.rows() if (estimate := _estimate(mean)) is not None)
    if not estimates:
        return Section(title="What private text is worth", blocks=(table,))
    chart = IntervalChart(
        title="Next-token accuracy",
        description="One line a model: the share of next tokens it predicts, with its interval.",
        x_label="share of next tokens predicted",
        rows=estimates,
    )
    return Section(title="What private text is worth", blocks=(table, chart))


def _estimate(mean: Mean) -> Estimate | None:
    value = cell(mean)
    return value if isinstance(value, Estimate) else None


def _letter(findings: DemoFindings) -> Section:
    rows = tuple((writer.value, text.strip()) for writer, text in findings.letter.items())
    return Section(
        title="One letter, finished by three writers",
        blocks=(
            Paragraph(text=f"The beginning, by hand: {findings.prompt} …"),
            Table(name="letter", title="What each added", columns=("Writer", "Text"), rows=rows),
        ),
    )


def _secrets(evaluation: Evaluation, findings: DemoFindings) -> Section:
    secret = findings.secret
    low, high = clopper_pearson(secret.num_released, secret.num_attempts, CONFIDENCE)
    share = Estimate(value=secret.num_released / secret.num_attempts, low=low, high=high, confidence=CONFIDENCE)
    table = Table(
        name="secrets",
        title="Three secrets, in small",
        columns=("Secret", "Measured", "No protection", "Private tokens", "What bounds it"),
        rows=(
            _realised_world(evaluation),
            (
                "presence in the corpus: was this letter among the data at all?",
                "AUC of the reference attack; 0.5 is chance",
                findings.presence,
                "not measured here",
                "nothing here; differential privacy would",
            ),
            (
                "the content: what does a letter say?",
                "share of answers that hold the planted secret",
                "recited" if secret.is_recited else "not recited",
                share,
                "nothing; only that not all worlds have learnt it",
            ),
        ),
        note=f"The reference attack compared {findings.num_members} letters of the corpus with "
        f"{findings.num_nonmembers} others. The note was filed {secret.repetitions} times; its digits were asked for "
        f"{secret.num_attempts} times. docs/guarantee.md measures presence in the corpus for a deployment, too: about "
        f"as well from released tokens as from a noiseless world. The bound does not cover {NOT_BOUNDED}.",
    )
    return Section(title="Three secrets", blocks=(table, Paragraph(text=CONTENT_CAVEAT)))


def _realised_world(evaluation: Evaluation) -> tuple[str | Estimate | float | None, ...]:
    """The row of the first secret: the curator's own belief after a simulated deployment, against the bound."""
    strictest = _strictest(evaluation)
    planned = plan(tokens=PLANNED_TOKENS, step_budget=STEP_BUDGET, worlds=round(1.0 / strictest.world_prior))
    bounds = f"{strictest.membership_bound:.4f} after these, {planned.half_success:.4f} after {PLANNED_TOKENS:,} tokens"
    return (
        "the realised world: in which half of the corpus is this record?",
        f"share named right after {strictest.num_tokens:,} charged tokens; a guess has 0.5",
        "no half is secret: one model has read all letters",
        None if strictest.membership is None else cell(strictest.membership),
        f"the guarantee: at most {bounds}",
    )


def _strictest(evaluation: Evaluation) -> Composition:
    return next(
        row
        for row in evaluation.composition
        if (row.mechanism, row.step_budget) == (ReleaseMechanism.MIXTURE, STEP_BUDGET)
    )
