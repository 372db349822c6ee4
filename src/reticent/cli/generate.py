"""`reticent generate`: PAC-private text from a run."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.api.deployments import DEFAULT_STEP_BUDGET
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
from reticent.errors import BudgetExhaustedError, InvalidValueError
from reticent.pac.charging import ChargingRule
from reticent.pac.mechanism import DEFAULT_RELEASE, ReleaseMechanism

if TYPE_CHECKING:
    from reticent.api.deployments import Deployment
    from reticent.api.generation import Answer
    from reticent.api.settings import DTypeName


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


def generate(
    run: RunArgument,
    prompt: Annotated[
        str, typer.Option(help="The text to continue. May be empty where the tokenizer begins texts with a token.")
    ] = "",
    max_tokens: Annotated[int, typer.Option(help="Release at most this many tokens.")] = 64,
    step_budget: StepBudget = DEFAULT_STEP_BUDGET,
    total_budget: TotalBudget = None,
    decoder: Annotated[Decoder, typer.Option(help="How worlds vote.")] = Decoder.GUMBEL,
    release: Release = DEFAULT_RELEASE,
    charging: Charge = None,
    temperature: Annotated[float, typer.Option(help="Of the gumbel decoder.")] = 1.0,
    candidates: Annotated[int, typer.Option(help="Tokens the public model nominates at each step, k.")] = 200,
    drafts: Drafts = 0,
    seed: Annotated[
        int | None, typer.Option(help="Fixes the public coins, never the secret or the noise. Fresh unless given.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Where the base model is, if it has moved.")] = None,
    dtype: Annotated[DType | None, typer.Option(help="Type to compute in; as trained unless given.")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu",
    database_url: DatabaseUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Continue a prompt. Every released token is charged, and the charge is durable before the token is shown.

    The first call draws the deployment's secret world; later calls continue with the same secret, posterior and
    account. A folder of `reticent distill` is an ordinary model: it is read without a ledger, and nothing is charged.
    """
    from reticent.api.deployments import DeploymentOptions, LoadedRun
    from reticent.distillation.card import is_distilled

    if is_distilled(run):
        _refuse_ledger_options(total_budget, charging, database_url)
        _generate_from_student(
            run,
            prompt,
            max_tokens,
            StudentOptions(decoder, temperature, seed, model, None if dtype is None else dtype.value, device),
            as_json,
        )
        return
    loaded = LoadedRun(
        run,
        DeploymentOptions(
            settings=DecodingSettings(decoder, step_budget, temperature, candidates, release),
            total_budget=total_budget,
            charging=charging,
            drafts=drafts,
            model=model,
            dtype=None if dtype is None else dtype.value,
            device=device,
            database_url=database_url,
        ),
    )
    # Whatever can be refused is refused before a deployment is drawn.
    loaded.check_prompt(prompt, max_tokens)
    with loaded.deploy() as deployment:
        announce_deployment(is_new=deployment.is_new, has_cap=deployment.total_budget is not None)
        answer, pace, exhausted = deployment.generate(prompt, max_tokens=max_tokens, seed=seed), Pace(), None
        try:
            for token in answer:
                if token.id is not None:
                    pace.stamps.append(time.perf_counter())
                if not as_json:
                    sys.stdout.write(token.text)
                    sys.stdout.flush()
        except BudgetExhaustedError as error:
            exhausted = error
        _report(answer, pace, deployment, release, as_json)
    if exhausted is not None:
        raise exhausted


@dataclass(frozen=True)
class StudentOptions:
    """The options of `reticent generate` that a distilled model knows."""

    decoder: Decoder
    temperature: float
    seed: int | None
    model: str | None
    dtype: "DTypeName | None"
    device: str


def _refuse_ledger_options(total_budget: float | None, charging: ChargingRule | None, database_url: str | None) -> None:
    given = {"--total-budget": total_budget, "--charging": charging, "--database-url": database_url}
    wrong = next((name for name, value in given.items() if value is not None), None)
    if wrong is not None:
        raise InvalidValueError(f"{wrong} is for a run's ledger, and a distilled model has none: leave it out")


def _generate_from_student(folder: Path, prompt: str, max_tokens: int, options: StudentOptions, as_json: bool) -> None:
    from reticent.api.students import LoadedStudent

    student = LoadedStudent(folder, model=options.model, dtype=options.dtype, device=options.device)
    answer = student.generate(
        prompt,
        max_tokens=max_tokens,
        decoder=options.decoder,
        temperature=options.temperature,
        seed=options.seed,
    )
    bound = student.distilled.record.bound
    if as_json:
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
