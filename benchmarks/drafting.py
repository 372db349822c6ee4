"""Row on drafts: a private token with draft tokens of the public model, against one step a token."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks import parity
from benchmarks.decoding import STEP_BUDGET, experimental_curator, start_length
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired, time_in_turn
from benchmarks.workspace import ALIKE, Workspace
from reticent.decoding.engines import Drafts
from reticent.decoding.generate import GeneratedToken, generate
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.engine.engine import Engine, EngineContext
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import BatchedDecoder
from reticent.randomness import PublicCoins

_NUM_DRAFTS = 3
_TOKENS_AT_ONCE = 12
"""A multiple of what one step computes if all drafts are accepted, so that no timing has more of the cheap tokens."""
_AS_TRAINED = ALIKE / 4
"""Deviation of B's entries with which worlds differ about as often as those of a run with default settings."""


class _Watched(Engine):
    """An engine that notes of each token whether it was computed ahead."""

    def __init__(self, decoder: BatchedDecoder, adapters: StackedAdapters) -> None:
        super().__init__(decoder, adapters)
        self.computed_ahead: list[bool] = []

    def extend(self, contexts: Sequence[EngineContext], tokens: Sequence[int], drafts: Drafts | None = None) -> None:
        """See `Engine.extend`."""
        self.computed_ahead += map(self.has_draft, contexts, tokens)
        super().extend(contexts, tokens, drafts)


def time_drafted_token(workspace: Workspace) -> Measured:
    """Milliseconds a token with drafts and without, in two streams of one prompt and the same coins."""
    _check(workspace)
    times, as_trained = _time_drafts(workspace, _AS_TRAINED)
    others, dissenting = _time_drafts(workspace, ALIKE)
    notes = (
        f"at most {_NUM_DRAFTS} drafts a step, coupled sampling at temperature 1; {as_trained}. Where {dissenting}, "
        f"the ratio is {others.ratio:.2f}"
    )
    return Measured(times, None, notes=notes, extra={"ratio_dissenting": others.ratio})


def _time_drafts(workspace: Workspace, deviation: float) -> tuple[Paired, str]:
    """Time a token with drafts and without; also report how often worlds differed and drafts were accepted."""
    sizes = workspace.sizes
    blocks = 1 + sizes.heavy_pairs
    adapters = workspace.adapters("attention", deviation=deviation)
    settings = DecodingSettings(Decoder.GUMBEL, STEP_BUDGET, num_candidates=sizes.num_candidates)
    # The token after the prompt is released before anything is timed, and some places are left for drafts.
    prompt = workspace.prompt(start_length(sizes.prefill, blocks * _TOKENS_AT_ONCE))
    num_tokens = blocks * _TOKENS_AT_ONCE + 2 + _NUM_DRAFTS
    engines = [_Watched(workspace.decoder, adapters) for _ in range(2)]
    curators = [experimental_curator(sizes.num_worlds) for _ in range(2)]
    drafted, plain = (
        generate(engine, prompt, settings, curator, _coins(workspace), "benchmark", num_tokens, num_drafts=most)
        for engine, curator, most in zip(engines, curators, (_NUM_DRAFTS, 0), strict=True)
    )
    for stream in (drafted, plain):
        next(stream)
    above, below = (partial(_release, stream) for stream in (drafted, plain))
    times = time_in_turn(above, below, sizes.heavy_pairs, device=workspace.device)
    state = curators[0].state
    description = (
        f"worlds differ on {state.dissenting_steps / state.tokens_released:.0%} of the tokens and "
        f"{np.mean(engines[0].computed_ahead):.0%} are computed ahead"
    )
    return times.scale(1 / _TOKENS_AT_ONCE, 1 / _TOKENS_AT_ONCE), description


def _coins(workspace: Workspace) -> PublicCoins:
    return PublicCoins.from_seed(workspace.seed, 0)


def _release(stream: Iterator[GeneratedToken]) -> None:
    for _ in range(_TOKENS_AT_ONCE):
        next(stream)


def _check(workspace: Workspace) -> None:
    """Tokens computed ahead, and one computed after rejected drafts, give the logits of the base's own class."""
    adapters = workspace.adapters("attention")
    engine = Engine(workspace.decoder, adapters)
    prompt = workspace.prompt(workspace.sizes.context)
    ahead = prompt[-_NUM_DRAFTS:]
    for drafts in (ahead, [ahead[0], *(token + 1 for token in ahead[1:])]):
        context = engine.open(prompt[: -_NUM_DRAFTS - 1])
        engine.extend([context], [prompt[-_NUM_DRAFTS - 1]], [drafts])
        for token in ahead:
            engine.extend([context], [token])
        parity.ReferenceLogits.compute(workspace, adapters, prompt).require_engine("drafts", engine, context)


BENCHMARKS = (
    Benchmark(
        "drafts-256",
        "private token at a context of 256 where the public model drafts up to 3 ahead, attention of all blocks",
        "the same token, one step each",
        1.0,
        "<=",
        time_drafted_token,
        weight=150,
        cuda_target=1.0,
    ),
)
