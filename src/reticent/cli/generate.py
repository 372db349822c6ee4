"""`reticent generate`: PAC-private text from a run."""

import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reticent.cli.deployment import (
    DEFAULT_STEP_BUDGET,
    DatabaseUrl,
    Drafts,
    Release,
    RunArgument,
    StepBudget,
    TotalBudget,
    open_deployment,
)
from reticent.cli.output import bound_facts, console, facts, format_nats, print_json
from reticent.cli.worlds import DType
from reticent.decoding.votes import Decoder
from reticent.errors import BudgetExhaustedError
from reticent.pac.mechanism import ReleaseMechanism

if TYPE_CHECKING:
    from reticent.decoding.generate import GeneratedToken
    from reticent.pac.curator import Curator


@dataclass
class Generation:
    """The outcome of one call: released tokens and `stamps`, the start and then one time a token, in seconds."""

    text: str = ""
    tokens: int = 0
    dissenting_steps: int = 0
    stopped_by: str = "length"
    stamps: list[float] = field(default_factory=lambda: [time.perf_counter()])

    @property
    def milliseconds_to_first_token(self) -> float | None:
        """From the start, reading the prompt included; None without a token."""
        return 1000 * (self.stamps[1] - self.stamps[0]) if self.tokens else None

    @property
    def milliseconds_per_token(self) -> float | None:
        """Mean time between tokens; for a single token the time to it, None without one."""
        if self.tokens < 2:
            return self.milliseconds_to_first_token
        return 1000 * (self.stamps[-1] - self.stamps[1]) / (self.tokens - 1)


def generate(
    run: RunArgument,
    prompt: Annotated[
        str, typer.Option(help="The text to continue. May be empty where the tokenizer begins texts with a token.")
    ] = "",
    max_tokens: Annotated[int, typer.Option(help="Release at most this many tokens.")] = 64,
    step_budget: StepBudget = DEFAULT_STEP_BUDGET,
    total_budget: TotalBudget = None,
    decoder: Annotated[Decoder, typer.Option(help="How worlds vote.")] = Decoder.GUMBEL,
    release: Release = ReleaseMechanism.GAUSSIAN,
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

    The first call draws the deployment's secret world; later calls go on with the same secret, posterior and account.
    """
    import torch

    from reticent.decoding.generate import generate as release_tokens
    from reticent.decoding.generate import most_steps
    from reticent.decoding.votes import DecodingSettings
    from reticent.randomness import PublicCoins
    from reticent.text.end_tokens import end_tokens
    from reticent.text.tokenise import encode_prompt
    from reticent.worlds.run_directory import RunDirectory as OpenRun

    settings = DecodingSettings(decoder, step_budget, temperature, candidates, release)
    opened = OpenRun.open(run)
    base = opened.base(model)
    tokenizer = base.load_tokenizer()
    prompt_tokens = encode_prompt(tokenizer, prompt)
    engine = opened.engine(base, getattr(torch, dtype.value) if dtype else None, device)
    # Whatever can be refused is refused before a deployment is drawn.
    most_steps(engine, prompt_tokens, settings, max_tokens, drafts)
    with open_deployment(run, opened.manifest.num_worlds, total_budget, database_url) as ledger:
        curator = ledger.curator
        spent_before = curator.account.spent_units
        request = f"cli-{secrets.token_hex(8)}"
        coins = PublicCoins.fresh() if seed is None else PublicCoins.from_seed(seed, 0)
        stop = end_tokens(tokenizer, base.declared_ends)
        tokens = release_tokens(engine, prompt_tokens, settings, curator, coins, request, max_tokens, stop, drafts)
        generation, exhausted = Generation(), None
        try:
            for piece in _pieces(tokens, tokenizer, stop, generation):
                if not as_json:
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        except BudgetExhaustedError as error:
            exhausted, generation.stopped_by = error, "budget"
        spent = curator.account.spent_units - spent_before
        _report(generation, spent, curator, release, coins.key if decoder is Decoder.GUMBEL else None, as_json)
    if exhausted is not None:
        raise exhausted


def _pieces(
    tokens: "Iterator[GeneratedToken]", tokenizer: Any, stop: frozenset[int], generation: Generation
) -> Iterator[str]:
    """Text as it comes; keeps count in `generation`."""
    from reticent.decoding.detokenise import TextDecoder, TextStream

    decode = TextDecoder(tokenizer)
    stream = TextStream(decode, decode.stray_byte)
    for token in tokens:
        generation.stamps.append(time.perf_counter())
        generation.tokens += 1
        generation.dissenting_steps += token.num_active > 1
        if token.token in stop:
            generation.stopped_by = "end of text"
            break
        piece = stream.push(token.token)
        generation.text += piece
        yield piece
    rest = stream.finish()
    generation.text += rest
    yield rest


def _report(
    generation: Generation,
    spent_units: int,
    curator: "Curator",
    release: ReleaseMechanism,
    coin_key: bytes | None,
    as_json: bool,
) -> None:
    from reticent.pac.accounting import units_to_nats

    total = units_to_nats(curator.account.spent_units)
    if as_json:
        print_json(
            {
                "text": generation.text,
                "tokens": generation.tokens,
                "dissenting_steps": generation.dissenting_steps,
                "nats_charged": units_to_nats(spent_units),
                "half_success": curator.half_success,
                "world_success": curator.world_success,
                "milliseconds_per_token": generation.milliseconds_per_token,
                "milliseconds_to_first_token": generation.milliseconds_to_first_token,
                "nats_charged_in_all": total,
                "stopped_by": generation.stopped_by,
                "release": release.value,
                "coin_key": None if coin_key is None else coin_key.hex(),
            }
        )
        return
    sys.stdout.write("\n\n")
    pace = generation.milliseconds_per_token
    console.print(
        facts(
            {
                "tokens released": f"{generation.tokens} (stopped by {generation.stopped_by})",
                "dissenting steps": f"{generation.dissenting_steps}, released by the {release.value} law",
                "charged": format_nats(units_to_nats(spent_units)),
                "charged in all": format_nats(total),
                **bound_facts(curator.half_success, curator.world_success, curator.num_worlds),
                "time per token": "-" if pace is None else f"{pace:.1f} ms",
            }
        )
    )
