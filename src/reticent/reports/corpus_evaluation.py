"""The report of an evaluation under the corpus guarantee: utility against what a token costs."""

from reticent.evaluation.corpus_evaluation import CorpusEvaluation
from reticent.evaluation.corpus_utility import CorpusUtilityRow
from reticent.reports.audit import flatten_details
from reticent.reports.evaluation import cell
from reticent.reports.model import Cell, Facts, LineChart, Paragraph, Report, Section, Series, Table

_NOTE = (
    "w is the most by which all worlds together move a token's score. Standard errors are over texts. Loss is over "
    "positions whose own token is a candidate."
)


def corpus_evaluation_report(result: CorpusEvaluation) -> Report:
    """Turn an evaluation of a run with places into a report."""
    facts = Facts(
        rows=tuple(
            (name, str(value))
            for part in (result.run, result.data, result.settings, result.versions)
            for name, value in flatten_details(part)
        )
    )
    intro = Paragraph(
        text=f"Tokens that {result.run['num_worlds']} worlds release together, under the corpus guarantee, relation "
        f"{result.settings['relation']}. The public model's candidates cover "
        f"{result.utility.candidates_cover:.1%} of the texts' tokens. These figures are measured on private worlds: "
        "they are the operator's, and not for those who see released tokens."
    )
    return Report(
        title=f"Evaluation of {result.run['folder']} under the corpus guarantee",
        created=result.created,
        warnings=result.warnings,
        sections=(
            Section(title="Utility and cost", blocks=(intro, utility_table(result), _chart(result))),
            Section(title="How to repeat it", blocks=(facts,)),
        ),
    )


def utility_table(result: CorpusEvaluation) -> Table:
    """Every method with its accuracy, loss, share of the full-data gain, and the tokens that each ε leaves."""
    epsilons = tuple(dict.fromkeys(epsilon for row in result.utility.rows for epsilon in row.tokens))
    return Table(
        name="utility",
        title="Released tokens against the public model and an adapter on all records",
        columns=(
            "Method",
            "Gain g",
            "w",
            "Accuracy of a drawn token",
            "Loss, nats",
            "Nats below public",
            "Of the full-data gain",
            *(f"Tokens at ε = {epsilon}" for epsilon in epsilons),
        ),
        rows=tuple(_row(row, epsilons) for row in result.utility.rows),
        note=f"{_NOTE} δ = {result.settings['delta']:.3g}.",
    )


def _row(row: CorpusUtilityRow, epsilons: tuple[str, ...]) -> tuple[Cell, ...]:
    return (
        row.method,
        row.gain,
        row.w,
        cell(row.accuracy),
        cell(row.loss),
        cell(row.loss_gain),
        cell(row.kept),
        *(row.tokens.get(epsilon) for epsilon in epsilons),
    )


def _chart(result: CorpusEvaluation) -> LineChart:
    released = [row for row in result.utility.rows if row.w is not None]
    return LineChart(
        title="Nats below the public model against w",
        description="Tokens for one bound fall with the square of w; the table has them.",
        x_label="w, nats",
        y_label="nats a token below the public model",
        x_scale="log",
        series=(
            Series(
                label="released",
                x=tuple(row.w for row in released if row.w is not None),
                y=tuple(row.loss_gain.value for row in released),
            ),
        ),
        level=next((row.loss_gain.value for row in result.utility.rows if row.method == "full-data"), None),
    )
