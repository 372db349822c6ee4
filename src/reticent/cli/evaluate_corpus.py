"""`reticent evaluate` for a run that carries the corpus guarantee: its options, and what it prints."""

from typing import TYPE_CHECKING, Any

from reticent.cli.output import console, print_json
from reticent.errors import InterruptedRunError, InvalidValueError

if TYPE_CHECKING:
    from reticent.cli.evaluate import EvaluateCommand
    from reticent.evaluation.corpus_evaluation import CorpusEvaluation, CorpusEvaluationRequest


def evaluate_corpus(options: "EvaluateCommand") -> None:
    """Evaluate a run with places, write its report, and print the table.

    Raises:
        ReticentError: an option belongs to the other guarantee or is out of range, or the run cannot be evaluated.
    """
    from reticent.cli.progress import WorkProgress
    from reticent.evaluation.corpus_evaluation import evaluate_corpus_run
    from reticent.reports.corpus_evaluation import corpus_evaluation_report
    from reticent.reports.render import write_report

    request = _request(options)
    try:
        with WorkProgress() as progress:
            result = evaluate_corpus_run(request, progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"finished texts are kept; the same command resumes from there ({options.out})"
        ) from None
    write_report(corpus_evaluation_report(result), options.out)
    if options.as_json:
        print_json({"report": str(options.out / "report.html"), **result.model_dump(mode="json")})
        return
    _print(result, options)


def _request(options: "EvaluateCommand") -> "CorpusEvaluationRequest":
    from reticent import _validate
    from reticent.api.settings import torch_dtype
    from reticent.dp.defaults import DEFAULT_CANDIDATES, DEFAULT_CLIP
    from reticent.evaluation.corpus_evaluation import CorpusEvaluationRequest

    if options.max_tokens is not None:
        _validate.integer_in_range("max-tokens", options.max_tokens, 2)
    return CorpusEvaluationRequest(
        run=options.run,
        test=options.test,
        out=options.out,
        gains=_numbers("gains", options.gains),
        epsilons=_numbers("epsilons", options.epsilons),
        delta=options.delta,
        clip=_validate.positive_finite("clip", DEFAULT_CLIP if options.clip is None else options.clip),
        temperature=_validate.positive_finite("temperature", options.temperature),
        num_candidates=_validate.integer_in_range("candidates", options.candidates or DEFAULT_CANDIDATES, 2),
        corpus=options.corpus,
        text_key=options.text_key,
        limit=options.limit,
        max_tokens=options.max_tokens,
        model=options.model,
        dtype=torch_dtype(None if options.dtype is None else options.dtype.value),
        device=options.device,
    )


def _numbers(name: str, text: str) -> tuple[float, ...]:
    from reticent import _validate

    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidValueError(f"{name} must be numbers separated by commas, got {text!r}") from None
    return tuple(_validate.positive_finite(name, value) for value in values)


def _print(result: "CorpusEvaluation", options: "EvaluateCommand") -> None:
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
    console.print(f"report: {options.out / 'report.html'}", highlight=False, markup=False)


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}"
