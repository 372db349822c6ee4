"""`reticent evaluate` for a run that carries the corpus guarantee: what it prints."""

from pathlib import Path
from typing import TYPE_CHECKING

from reticent.cli.output import console, print_json
from reticent.errors import InterruptedRunError

if TYPE_CHECKING:
    from reticent.evaluation.corpus_evaluation import CorpusEvaluation, CorpusEvaluationRequest


def evaluate_corpus(request: "CorpusEvaluationRequest", *, as_json: bool) -> None:
    """Evaluate a run with places, write its report, and print the table.

    Raises:
        ReticentError: the run cannot be evaluated as asked.
    """
    from reticent.cli.progress import WorkProgress
    from reticent.evaluation.corpus_evaluation import evaluate_corpus_run
    from reticent.reports.corpus_evaluation import corpus_evaluation_report
    from reticent.reports.render import write_report

    out = request.out
    try:
        with WorkProgress() as progress:
            result = evaluate_corpus_run(request, progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"finished texts are kept; the same command resumes from there ({out})") from None
    write_report(corpus_evaluation_report(result), out)
    if as_json:
        print_json({"report": str(out / "report.html"), **result.model_dump(mode="json")})
        return
    _print(result, out)


def _print(result: "CorpusEvaluation", out: Path) -> None:
    from rich.table import Table

    from reticent.reports.evaluation import plus_minus

    epsilons = tuple(dict.fromkeys(epsilon for row in result.utility.rows for epsilon in row.tokens))
    table = Table(
        title="Tokens that worlds release together (± standard error over texts)",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for heading in (
        "method",
        "gain",
        "w",
        "accuracy",
        "nats below public",
        "of full gain",
        *(f"ε {e}" for e in epsilons),
    ):
        table.add_column(heading, no_wrap=True)
    for row in result.utility.rows:
        table.add_row(
            row.method,
            _text(row.gain),
            _text(row.w),
            plus_minus(row.accuracy),
            f"{row.loss_gain.value:.4f}",
            plus_minus(row.kept),
            *(f"{row.tokens[epsilon]:,}" if epsilon in row.tokens else "-" for epsilon in epsilons),
        )
    console.print(table)
    console.print(
        f"tokens at each epsilon are for delta {result.settings['delta']:.3g}, relation {result.settings['relation']}; "
        "these figures are the operator's",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"report: {out / 'report.html'}", highlight=False, markup=False)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
