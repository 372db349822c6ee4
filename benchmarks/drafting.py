"""Row on drafts: a private token where the public model guesses ahead, against one step a token."""

from dataclasses import dataclass, field

import numpy as np

from benchmarks import parity
from benchmarks.decoding import STEP_BUDGET, experimental_curator
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired, interleaved
from benchmarks.workspace import ALIKE, Workspace
from reticent.decoding.decoder import cast_votes
from reticent.decoding.drafts import Continuation, Pace, extend_with_drafts
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.ensemble.engine import Engine, EngineContext
from reticent.pac.curator import Curator
from reticent.randomness import PublicCoins

_NUM_DRAFTS = 3
_TOKENS_AT_ONCE = 12
"""A multiple of what one step computes if all is guessed, so that no timing has more of the cheap tokens."""
_AS_TRAINED = ALIKE / 4
"""Deviation of B's entries with which worlds differ about as often as those of a run with default settings."""


@dataclass
class DraftedStream:
    """Coupled samples of one request, by steps that compute guesses at a pace."""

    engine: Engine
    context: EngineContext
    curator: Curator
    coins: PublicCoins
    settings: DecodingSettings
    pace: Pace
    foreseen: list[bool] = field(default_factory=list)

    def tokens(self) -> None:
        """Release some tokens, each from its votes to the step behind it."""
        for _ in range(_TOKENS_AT_ONCE):
            step = len(self.foreseen)
            votes_M = cast_votes(self.engine, self.context, self.settings, self.coins, step)
            token = self.curator.release(votes_M, STEP_BUDGET, request="benchmark", step=step).token
            self.foreseen.append(self.engine.foresees(self.context, token))
            goes_on = Continuation(token, self.settings, self.coins, step + 1, 1 + self.pace.most, self.pace)
            extend_with_drafts(self.engine, [self.context], [goes_on])


def drafted_token(workspace: Workspace) -> Measured:
    """Milliseconds a token with guesses and without, in two streams of one prompt and the same coins."""
    _check(workspace)
    times, drafted = _timed(workspace, _AS_TRAINED)
    others, dissenting = _timed(workspace, ALIKE)
    notes = (
        f"at most {_NUM_DRAFTS} guesses a step, coupled sampling at temperature 1; {_description(drafted)}. Where "
        f"{_description(dissenting)}, the ratio is {others.ratio:.2f}"
    )
    extra: dict[str, object] = {"computed_ahead": float(np.mean(drafted.foreseen)), "ratio_dissenting": others.ratio}
    return Measured(times, None, notes=notes, extra=extra)


def _timed(workspace: Workspace, deviation: float) -> tuple[Paired, DraftedStream]:
    """Times a token with guesses and without, and the stream with guesses."""
    sizes = workspace.sizes
    engine = Engine(workspace.decoder, workspace.adapters("attention", deviation=deviation))
    length = max(2, sizes.prefill - (sizes.heavy_pairs + 1) * _TOKENS_AT_ONCE // 2)
    settings = DecodingSettings(Decoder.GUMBEL, STEP_BUDGET, num_candidates=sizes.num_candidates)
    drafted, plain = (
        DraftedStream(
            engine,
            engine.open(workspace.prompt(length)),
            experimental_curator(sizes.num_worlds),
            PublicCoins.from_seed(workspace.seed, 0),
            settings,
            Pace(most),
        )
        for most in (_NUM_DRAFTS, 0)
    )
    times = interleaved(drafted.tokens, plain.tokens, sizes.heavy_pairs, device=workspace.device)
    return times.scaled(1 / _TOKENS_AT_ONCE, 1 / _TOKENS_AT_ONCE), drafted


def _description(stream: DraftedStream) -> str:
    state = stream.curator.state
    dissent = state.dissenting_steps / state.tokens_released
    return f"worlds differ on {dissent:.0%} of the tokens and {np.mean(stream.foreseen):.0%} are computed ahead"


def _check(workspace: Workspace) -> None:
    """Tokens computed ahead, and one computed after wrong guesses, give the logits of the base's own class."""
    adapters = workspace.adapters("attention")
    engine = Engine(workspace.decoder, adapters)
    prompt = workspace.prompt(workspace.sizes.context)
    ahead = prompt[-_NUM_DRAFTS:]
    for guesses in (ahead, [ahead[0], *(token + 1 for token in ahead[1:])]):
        context = engine.open(prompt[: -_NUM_DRAFTS - 1])
        engine.extend([context], [prompt[-_NUM_DRAFTS - 1]], [guesses])
        for token in ahead:
            engine.extend([context], [token])
        parity.Reference.compute(workspace, adapters, prompt).require_engine("drafts", engine, context)


BENCHMARKS = (
    Benchmark(
        "drafts-256",
        "private token at a context of 256 where the public model guesses up to 3 ahead, attention of all blocks",
        "the same token, one step each",
        1.0,
        "<=",
        drafted_token,
        weight=150,
        cuda_target=1.0,
    ),
)
