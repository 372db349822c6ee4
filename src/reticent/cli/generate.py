"""`reticent generate`: private text from a run, under the guarantee that it carries."""

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.api.deployments import DEFAULT_STEP_BUDGET
from reticent.cli.command_options import takes_options
from reticent.cli.corpus_options import (
    CORPUS_ONLY,
    REALISED_WORLD_ONLY,
    CorpusOptions,
    announce_corpus_deployment,
    refuse_options_of_the_other,
)
from reticent.cli.deployment import (
    Charge,
    DatabaseUrl,
    Drafts,
    Release,
    RunArgument,
    StepBudget,
    TotalBudget,
    announce_deployment,
)
from reticent.cli.output import bound_facts, console, facts, format_nats, print_json
from reticent.cli.worlds import DType
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.dp.defaults import DEFAULT_CANDIDATES
from reticent.errors import BudgetExhaustedError, InvalidValueError
from reticent.guarantees import Guarantee
from reticent.pac.mechanism import DEFAULT_RELEASE, ReleaseMechanism

if TYPE_CHECKING:
    from reticent.api.corpus_deployments import CorpusDeployment
    from reticent.api.deployments import Deployment
    from reticent.api.generation import Answer, CorpusAnswer

LEDGER_ONLY = ("total_budget", "charging", "database_url", *CORPUS_ONLY)


@dataclass(frozen=True)
class Pace:
    """The pace of an answer: `stamps`, the start and then one time a token, in seconds."""

    stamps: list[float] = field(default_factory=lambda: [time.perf_counter()])

    @property
    def milliseconds_to_first_token(self) -> float | None:
        """From the start, reading the prompt included; None without a token."""
        return 1000 * (self.stamps[1] - self.stamps[0]) if len(self.stamps) > 1 else None

    @property
    def milliseconds_per_token(self) -> float | None:
        """Mean time between tokens; for a single token the time to it, None without one."""
        if len(self.stamps) < 3:
            return self.milliseconds_to_first_token
        return 1000 * (self.stamps[-1] - self.stamps[1]) / (len(self.stamps) - 2)


@dataclass(frozen=True)
class GenerateCommand(CorpusOptions):
    """The options of `reticent generate`."""

    run: RunArgument
    prompt: Annotated[
        str, typer.Option(help="The text to continue. May be empty where the tokenizer begins texts with a token.")
    ] = ""
    max_tokens: Annotated[int, typer.Option(help="Release at most this many tokens.")] = 64
    step_budget: StepBudget = None
    total_budget: TotalBudget = None
    decoder: Annotated[Decoder | None, typer.Option(show_default="gumbel", help="How worlds vote.")] = None
    release: Release = None
    charging: Charge = None
    # In the place of the field that it overrides, which is by keyword alone.
    temperature: Annotated[
        float | None,
        typer.Option(
            show_default="1.0", help="Of the gumbel decoder; of a corpus run, which keeps it: divides scores."
        ),
    ] = field(default=None, kw_only=True)
    drafts: Drafts = 0
    seed: Annotated[
        int | None, typer.Option(help="Fixes the public coins, never the secret or the noise. Fresh unless given.")
    ] = None
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu"
    database_url: DatabaseUrl = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False

    @property
    def settings(self) -> DecodingSettings:
        """Settings of a realised-world deployment's tokens."""
        return DecodingSettings(
            self.decoder or Decoder.GUMBEL,
            DEFAULT_STEP_BUDGET if self.step_budget is None else self.step_budget,
            1.0 if self.temperature is None else self.temperature,
            DEFAULT_CANDIDATES if self.candidates is None else self.candidates,
            self.release or DEFAULT_RELEASE,
        )


@takes_options(GenerateCommand)
def generate(asked: GenerateCommand) -> None:
    """Continue a prompt. Every released token is charged, and the charge is durable before the token is shown.

    The first call draws the deployment's secret world, or fixes its constants where the run carries the corpus
    guarantee; later calls continue with those and the same account. A folder of `reticent distill` is an ordinary
    model: it is read without a ledger, and nothing is charged.
    """
    from reticent.distillation.card import is_distilled
    from reticent.worlds.manifest import read_manifest

    if is_distilled(asked.run):
        _generate_from_student(asked)
    elif read_manifest(asked.run).guarantee is Guarantee.CORPUS:
        _generate_from_corpus(asked)
    else:
        _generate_from_realised_world(asked)


def _generate_from_student(asked: GenerateCommand) -> None:
    from reticent.api.students import LoadedStudent

    wrong = next((name for name in LEDGER_ONLY if getattr(asked, name) is not None), None)
    if wrong is not None:
        option = "--" + wrong.replace("_", "-")
        raise InvalidValueError(f"{option} is for a run's ledger, and a distilled model has none: leave it out")
    student = LoadedStudent(
        asked.run,
        model=asked.model,
        dtype=None if asked.dtype is None else asked.dtype.value,
        device=asked.device,
    )
    answer = student.generate(
        asked.prompt,
        max_tokens=asked.max_tokens,
        decoder=asked.settings.decoder,
        temperature=asked.settings.temperature,
        seed=asked.seed,
    )
    bound = student.distilled.record.bound
    if asked.as_json:
        print_json(
            {
                "text": answer.text,
                "tokens": answer.num_tokens,
                "stopped_by": answer.stopped_by.value,
                "half_success": bound.half_success,
                "world_success": bound.world_success,
                "nats_charged": 0.0,
            }
        )
        return
    sys.stdout.write(answer.text + "\n\n")
    console.print(
        facts(
            {
                "tokens": f"{answer.num_tokens} (stopped by {answer.stopped_by.value})",
                "charged": "nothing: a distilled model, whose bound does not change with use",
                **bound_facts(bound.half_success, bound.world_success, bound.num_worlds),
            }
        )
    )


def _generate_from_realised_world(asked: GenerateCommand) -> None:
    from reticent.api.deployments import DeploymentOptions, LoadedRun

    refuse_options_of_the_other(asked, asked.run, Guarantee.REALISED_WORLD, CORPUS_ONLY)
    loaded = LoadedRun(
        asked.run,
        DeploymentOptions(
            settings=asked.settings,
            total_budget=asked.total_budget,
            charging=asked.charging,
            drafts=asked.drafts,
            model=asked.model,
            dtype=None if asked.dtype is None else asked.dtype.value,
            device=asked.device,
            database_url=asked.database_url,
        ),
    )
    # Whatever can be refused is refused before a deployment is drawn.
    loaded.check_prompt(asked.prompt, asked.max_tokens)
    with loaded.deploy() as deployment:
        announce_deployment(is_new=deployment.is_new, has_cap=deployment.total_budget is not None)
        answer = deployment.generate(asked.prompt, max_tokens=asked.max_tokens, seed=asked.seed)
        pace, exhausted = _write(answer, asked.as_json)
        _report(answer, pace, deployment, asked.settings.release_mechanism, asked.as_json)
    if exhausted is not None:
        raise exhausted


def _generate_from_corpus(asked: GenerateCommand) -> None:
    from reticent.api.corpus_deployments import CorpusDeploymentOptions, LoadedCorpusRun

    refuse_options_of_the_other(asked, asked.run, Guarantee.CORPUS, (*REALISED_WORLD_ONLY, "seed"))
    loaded = LoadedCorpusRun(
        asked.run,
        CorpusDeploymentOptions(
            terms=asked.terms,
            drafts=asked.drafts,
            model=asked.model,
            dtype=None if asked.dtype is None else asked.dtype.value,
            device=asked.device,
            database_url=asked.database_url,
        ),
    )
    loaded.check_prompt(asked.prompt, asked.max_tokens)
    with loaded.deploy() as deployment:
        announce_corpus_deployment(
            deployment.settings, is_new=deployment.is_new, has_cap=deployment.total_rho is not None
        )
        answer = deployment.generate(asked.prompt, max_tokens=asked.max_tokens)
        pace, exhausted = _write(answer, asked.as_json)
        _report_corpus(answer, pace, deployment, asked.as_json)
    if exhausted is not None:
        raise exhausted


def _write(answer: "Answer | CorpusAnswer", as_json: bool) -> "tuple[Pace, BudgetExhaustedError | None]":
    """Release an answer and write its text as it comes; return its pace, and the error that ended it, if one did."""
    pace = Pace()
    try:
        for token in answer:
            if token.id is not None:
                pace.stamps.append(time.perf_counter())
            if not as_json:
                sys.stdout.write(token.text)
                sys.stdout.flush()
    except BudgetExhaustedError as error:
        return pace, error
    return pace, None


def _report(answer: "Answer", pace: Pace, deployment: "Deployment", release: ReleaseMechanism, as_json: bool) -> None:
    bounds, stopped_by = deployment.bounds(), None if answer.stopped_by is None else answer.stopped_by.value
    if as_json:
        print_json(
            {
                "text": answer.text,
                "tokens": answer.num_tokens,
                "dissenting_steps": answer.num_dissenting,
                "nats_charged": answer.charged,
                "half_success": bounds.half_success,
                "world_success": bounds.world_success,
                "milliseconds_per_token": pace.milliseconds_per_token,
                "milliseconds_to_first_token": pace.milliseconds_to_first_token,
                "nats_charged_in_all": deployment.spent,
                "charging": deployment.charging.value,
                "stopped_by": stopped_by,
                "release": release.value,
                "coin_key": None if answer.coin_key is None else answer.coin_key.hex(),
            }
        )
        return
    sys.stdout.write("\n\n")
    mean = pace.milliseconds_per_token
    console.print(
        facts(
            {
                "tokens released": f"{answer.num_tokens} (stopped by {stopped_by})",
                "dissenting steps": f"{answer.num_dissenting}, released by the {release.value} mechanism",
                "charged": format_nats(answer.charged),
                "charged in all": format_nats(deployment.spent),
                **bound_facts(bounds.half_success, bounds.world_success, deployment.num_worlds),
                "time per token": "-" if mean is None else f"{mean:.1f} ms",
            }
        )
    )


def _report_corpus(answer: "CorpusAnswer", pace: Pace, deployment: "CorpusDeployment", as_json: bool) -> None:
    from reticent.cli.corpus_readings import reading_facts
    from reticent.dp.plan import make_plan

    spent = make_plan(deployment.settings, deployment.tokens_released, deployment.delta)
    stopped_by = None if answer.stopped_by is None else answer.stopped_by.value
    if as_json:
        print_json(
            {
                "guarantee": Guarantee.CORPUS.value,
                "text": answer.text,
                "tokens": answer.num_tokens,
                "rho": answer.rho,
                "tokens_in_all": spent.tokens,
                "rho_in_all": spent.rho,
                "epsilon": spent.epsilon,
                "delta": spent.delta,
                "membership_success": spent.membership_success,
                "relation": spent.settings.relation.value,
                "clip": spent.settings.clip,
                "gain": spent.settings.gain,
                "temperature": spent.settings.temperature,
                "tokens_left": deployment.tokens_left,
                "milliseconds_per_token": pace.milliseconds_per_token,
                "milliseconds_to_first_token": pace.milliseconds_to_first_token,
                "stopped_by": stopped_by,
            }
        )
        return
    sys.stdout.write("\n\n")
    mean, left = pace.milliseconds_per_token, deployment.tokens_left
    console.print(
        facts(
            {
                "tokens released": f"{answer.num_tokens} (stopped by {stopped_by})",
                "charged": f"rho {answer.rho:.6g}",
                "tokens in all": f"{spent.tokens:,}",
                **reading_facts(spent),
                "left": "no limit" if left is None else f"{left:,} tokens",
                "time per token": "-" if mean is None else f"{mean:.1f} ms",
            }
        )
    )
