"""`reticent evaluate`: what a run's worlds are worth on texts outside its corpus, at every budget."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.cli.command_options import takes_options
from reticent.cli.deployment import RunArgument
from reticent.cli.evaluate_corpus import evaluate_corpus
from reticent.cli.output import console, print_json
from reticent.cli.worlds import DType
from reticent.decoding.votes import Decoder
from reticent.errors import InterruptedRunError, InvalidValueError
from reticent.guarantees import Guarantee

if TYPE_CHECKING:
    from reticent.evaluation.corpus_evaluation import CorpusEvaluationRequest
    from reticent.evaluation.run_evaluation import EvaluateRequest, Evaluation, Study

_STUDIES = "utility, stability, fidelity, composition, leakage, cost"


@dataclass(frozen=True)
class EvaluateCommand:
    """The options of `reticent evaluate`."""

    run: RunArgument
    test: Annotated[Path, typer.Option(help="Texts that are not in the run's corpus.")]
    out: Annotated[Path, typer.Option(help="Folder for votes and report; the same command resumes, or reuses votes.")]
    corpus: Annotated[Path | None, typer.Option(help="The run's corpus, to leave out near-duplicates of it.")] = None
    study: Annotated[str, typer.Option(help=f"all, or some of {_STUDIES}, comma-separated.")] = "all"
    budgets: Annotated[str, typer.Option(metavar="NATS,…", help="Charges per token to measure, comma-separated.")] = (
        "2^-4,2^-8,2^-12,2^-16,2^-20,2^-24,2^-28,2^-32"
    )
    decoder: Annotated[
        list[Decoder] | None, typer.Option(help="How worlds vote; may be repeated. Both unless given.")
    ] = None
    temperature: Annotated[float, typer.Option(help="Of the gumbel decoder.")] = 1.0
    candidates: Annotated[int, typer.Option(help="Tokens the public model nominates at each step, k.")] = 200
    clip: Annotated[float | None, typer.Option(help="For a corpus run: nats; 0.5 unless given.")] = None
    gains: Annotated[str, typer.Option(metavar="G,…", help="For a corpus run: gains to measure, comma-separated.")] = (
        "0.5,1,2,4,8"
    )
    epsilons: Annotated[
        str, typer.Option(metavar="ε,…", help="For a corpus run: how many tokens each leaves, comma-separated.")
    ] = "1,2,4,8"
    delta: Annotated[
        float | None, typer.Option(help="For a corpus run: below one over worlds times places; 1e-6 unless given.")
    ] = None
    draws: Annotated[int, typer.Option(help="Secrets and noise draws behind each budget's accuracy.")] = 64
    sessions: Annotated[int, typer.Option(help="Deployments simulated for composition and leakage.")] = 1024
    queries: Annotated[int, typer.Option(help="Queries of one deployment.")] = 64
    query_tokens: Annotated[int, typer.Option(help="Charged tokens of one query; at most a text's length.")] = 64
    seed: Annotated[int, typer.Option(help="Of coins, secrets and noise of the simulation.")] = 0
    text_key: Annotated[str, typer.Option(help="Key or column that holds the text.")] = "text"
    limit: Annotated[int | None, typer.Option(help="Read at most this many test texts.")] = None
    max_tokens: Annotated[int | None, typer.Option(help="Cut test texts; as in training unless given.")] = None
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu"
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False

    @property
    def request(self) -> "EvaluateRequest":
        """The options as a request, every one checked before a model is read.

        Raises:
            InvalidValueError: one is outside its range.
        """
        from reticent import _validate
        from reticent.api.settings import torch_dtype
        from reticent.evaluation.run_evaluation import EvaluateRequest
        from reticent.evaluation.sessions import SessionSettings
        from reticent.evaluation.vote_casting import VoteSettings
        from reticent.pac.accounting import check_step_budget, parse_nats

        seed = _validate.integer_in_range("seed", self.seed, 0)
        if self.max_tokens is not None:
            _validate.integer_in_range("max-tokens", self.max_tokens, 2)
        num_sessions = _validate.integer_in_range("sessions", self.sessions, 1)
        return EvaluateRequest(
            run=self.run,
            test=self.test,
            out=self.out,
            corpus=self.corpus,
            text_key=self.text_key,
            limit=self.limit,
            studies=_studies(self.study),
            decoders=tuple(dict.fromkeys(self.decoder or Decoder)),
            budgets=tuple(check_step_budget(parse_nats(part)) for part in self.budgets.split(",")),
            votes=VoteSettings(
                num_candidates=_validate.integer_in_range("candidates", self.candidates, 1),
                temperature=_validate.positive_finite("temperature", self.temperature),
                coin_seed=seed,
            ),
            sessions=SessionSettings(self.queries, self.query_tokens, num_sessions, min(8, num_sessions), seed),
            num_draws=self.draws,
            seed=seed,
            max_tokens=self.max_tokens,
            model=self.model,
            dtype=torch_dtype(None if self.dtype is None else self.dtype.value),
            device=self.device,
        )

    @property
    def corpus_request(self) -> "CorpusEvaluationRequest":
        """The options as a request for a run that carries the corpus guarantee.

        Raises:
            InvalidValueError: one is outside its range.
        """
        from reticent import _validate
        from reticent.api.settings import torch_dtype
        from reticent.dp.defaults import DEFAULT_CANDIDATES, DEFAULT_CLIP
        from reticent.evaluation.corpus_evaluation import CorpusEvaluationRequest

        if self.max_tokens is not None:
            _validate.integer_in_range("max-tokens", self.max_tokens, 2)
        return CorpusEvaluationRequest(
            run=self.run,
            test=self.test,
            out=self.out,
            gains=_numbers("gains", self.gains),
            epsilons=_numbers("epsilons", self.epsilons),
            delta=self.delta,
            clip=_validate.positive_finite("clip", DEFAULT_CLIP if self.clip is None else self.clip),
            temperature=_validate.positive_finite("temperature", self.temperature),
            num_candidates=_validate.integer_in_range("candidates", self.candidates or DEFAULT_CANDIDATES, 2),
            corpus=self.corpus,
            text_key=self.text_key,
            limit=self.limit,
            max_tokens=self.max_tokens,
            model=self.model,
            dtype=torch_dtype(None if self.dtype is None else self.dtype.value),
            device=self.device,
        )


@takes_options(EvaluateCommand)
def evaluate(options: EvaluateCommand) -> None:
    """Accuracy, stability, composition and leakage at every budget, as a report. The deployment is not touched.

    For a run that carries the corpus guarantee: accuracy and loss of released tokens at every gain, and the tokens that
    each epsilon leaves.
    """
    from reticent.worlds.manifest import read_manifest

    if read_manifest(options.run).guarantee is Guarantee.CORPUS:
        evaluate_corpus(options.corpus_request, as_json=options.as_json)
        return
    from reticent.cli.progress import WorkProgress
    from reticent.evaluation.run_evaluation import evaluate as run_evaluation
    from reticent.reports.evaluation import evaluation_report
    from reticent.reports.render import write_report

    request, out = options.request, options.out
    try:
        with WorkProgress() as progress:
            result = run_evaluation(request, progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"finished texts are kept; the same command resumes from there ({out})") from None
    write_report(evaluation_report(result), out)
    if options.as_json:
        print_json({"report": str(out / "report.html"), **result.model_dump(mode="json")})
        return
    _print(result, out)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    from reticent import _validate

    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidValueError(f"{name} must be numbers separated by commas, got {text!r}") from None
    return tuple(_validate.positive_finite(name, value) for value in values)


def _studies(text: str) -> "tuple[Study, ...]":
    from reticent.evaluation.run_evaluation import Study

    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        return tuple(Study)
    unknown = [name for name in names if name not in set(Study)]
    if unknown:
        raise InvalidValueError(f"study {unknown[0]!r} is none of {_STUDIES}; or use 'all'")
    return tuple(Study(name) for name in dict.fromkeys(names))


def _print(result: "Evaluation", out: Path) -> None:
    from rich.table import Table

    from reticent.reports.evaluation import budget_text, plus_minus, recommendation_text

    for found in result.utility:
        table = Table(
            title=f"Next-token accuracy, {found.decoder.value} votes (± standard error over texts)",
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for heading in ("method", "nats", "accuracy", "gain kept", "flips"):
            table.add_column(heading, no_wrap=True)
        for row in found.rows:
            means = (plus_minus(mean) for mean in (row.accuracy, row.kept, row.flips))
            table.add_row(row.method, budget_text(row.step_budget), *means)
        console.print(table)
        console.print(f"all worlds agree at {found.unanimity.value:.1%} of positions", highlight=False)
    for recommended in result.recommendations:
        console.print(recommendation_text(recommended), highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {out / 'report.html'}", highlight=False, markup=False)
