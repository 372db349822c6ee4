"""Rows on decoding: a private token against one non-private step and against PEFT, and the mechanism's share of it."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks import limits, parity
from benchmarks.peers import PeftMixedStream, TransformersStream, load_all_into_peft
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired, steps_before, time_in_turn
from benchmarks.workspace import ALIKE, Workspace
from reticent.decoding.votes import greedy_votes, gumbel_votes, top_candidates
from reticent.engine.engine import Engine, EngineContext
from reticent.layers.adapters import StackedAdapters
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator, CuratorState, ReleaseRecord
from reticent.randomness import PublicCoins, SeededNoise

STEP_BUDGET = 2.0**-32
_PARITY_TOKENS = 3
_EVERY_WORLD_TOKENS = 8
"""Tokens over which all worlds are compared: the reference computes each world's on its own."""
_RUN = 4
_PEFT_RUN = 2
"""Counted steps of a side in a row. A step of PEFT's takes seconds and reads more than any cache holds."""
_TOP = 12


class MemoryStore:
    """Keeps the last state in memory, so that no disk is measured."""

    state: CuratorState | None = None

    def commit(self, state: CuratorState, _records: Sequence[ReleaseRecord]) -> None:
        """Keep a state."""
        self.state = state

    def reconcile(self, state: CuratorState) -> CuratorState:
        """Return the state given: a commit in memory never fails."""
        return state


def experimental_curator(num_worlds: int, seed: int = 0) -> Curator:
    """A curator with a seeded source and a store in memory."""
    noise = SeededNoise(seed)
    return Curator.for_experiments(CuratorState.initial(num_worlds, noise), MemoryStore(), noise)


class PrivateStream:
    """Private decoding by greedy votes; each `step` takes one token in and releases one, from extend to posterior."""

    def __init__(self, engine: Engine, prompt: list[int], num_candidates: int) -> None:
        self._engine = engine
        self._num_candidates = num_candidates
        self._curator = experimental_curator(engine.num_worlds)
        self.context: EngineContext = engine.open(prompt)
        self.released: list[int] = []
        self._release()

    def step(self) -> None:
        """Extend the context by the last released token and release the next."""
        self._engine.extend([self.context], [self.released[-1]])
        self._release()

    @property
    def dissent(self) -> float:
        """Share of the tokens on which the worlds' votes differed."""
        state = self._curator.state
        return state.dissenting_steps / state.tokens_released

    def _release(self) -> None:
        candidates_K = top_candidates(self._engine.public_logits(self.context), self._num_candidates)
        votes_M = greedy_votes(self._engine.world_logits(self.context, candidates_K), candidates_K)
        released = self._curator.release(votes_M, Charging(STEP_BUDGET), request="benchmark", step=len(self.released))
        self.released.append(released.token)


def check_engine(workspace: Workspace, engine: Engine, adapters: StackedAdapters, prompt: list[int]) -> None:
    """Raise `ParityError` unless decoding with caches gives the logits of the base's own class.

    A few worlds are compared over the whole prompt, and all of them over its beginning.
    """
    _check_decoding(workspace, engine, adapters, prompt, parity.few_worlds(engine.num_worlds))
    _check_decoding(workspace, engine, adapters, prompt[:_EVERY_WORLD_TOKENS], range(engine.num_worlds))


def _check_decoding(
    workspace: Workspace, engine: Engine, adapters: StackedAdapters, prompt: list[int], worlds: Sequence[int]
) -> None:
    start = len(prompt) - _PARITY_TOKENS
    context = engine.open(prompt[:start])
    for token in prompt[start:]:
        engine.extend([context], [token])
    parity.ReferenceLogits.compute(workspace, adapters, prompt, worlds).require_engine("decoding", engine, context)
    public_V, count = engine.public_logits(context), workspace.sizes.num_candidates
    parity.require(
        np.array_equal(top_candidates(public_V, count), parity.likeliest(public_V, count)),
        f"the candidates are not the {count} most likely tokens of the public model",
    )


def start_of(workspace: Workspace, pairs: int, warmup: int = 0, run: int = 1) -> list[int]:
    """A prompt so short that the steps `time_in_turn` counts have the stated context behind them on average."""
    return workspace.prompt(start_length(workspace.sizes.context, pairs, warmup, run))


def start_length(context: int, pairs: int, warmup: int = 0, run: int = 1) -> int:
    """Choose the number of tokens to begin with for that, of any context; no fewer than what `check_engine` takes."""
    return max(_PARITY_TOKENS + 1, context - math.ceil(steps_before(pairs, warmup, run)))


def step_limit(workspace: Workspace, adapters: StackedAdapters) -> float:
    """The least milliseconds of a private token at the stated context."""
    sizes = workspace.sizes
    shape = limits.StepShape(context=sizes.context, candidates=sizes.num_candidates)
    return limits.step_ms(workspace.architecture, adapters, shape, workspace.peaks)


def private_token(workspace: Workspace, names: str, top: int | None) -> Measured:
    """A private token against one non-private step."""
    adapters = workspace.adapters(names, top)
    engine = Engine(workspace.decoder, adapters)
    check_engine(workspace, engine, adapters, workspace.prompt(workspace.sizes.context))
    # As many blocks as the stated context has room for.
    pairs, warmup = max(2, 2 * workspace.sizes.pairs // 3), 2
    prompt = start_of(workspace, pairs, warmup, _RUN)
    ours = PrivateStream(engine, prompt, workspace.sizes.num_candidates)
    theirs = TransformersStream(workspace.model, prompt)
    times = time_in_turn(ours.step, theirs.step, pairs, warmup, workspace.device, _RUN)
    limit = step_limit(workspace, adapters) / times.centres_ms[1]
    return Measured(times, limit, extra={"dissent": ours.dissent})


def against_peft(workspace: Workspace) -> Measured:
    """A private token against one step of PEFT's mixed batch of the same adapters."""
    peft, adapters, _ = load_all_into_peft(workspace)
    engine = Engine(workspace.decoder, adapters)
    sizes = workspace.sizes
    check_engine(workspace, engine, adapters, workspace.prompt(sizes.context))
    prompt = start_of(workspace, sizes.heavy_pairs, warmup=1, run=_PEFT_RUN)
    reference = parity.ReferenceLogits.compute(workspace, adapters, prompt)
    check = PeftMixedStream(peft, prompt[:-1], [None, *reference.worlds])
    check.step(prompt[-1])
    reference.require_rows("PEFT", check.logits_WV.float().cpu().numpy()[:, reference.candidates_K])
    ours = PrivateStream(engine, prompt, sizes.num_candidates)
    theirs = PeftMixedStream(peft, prompt, list(range(sizes.num_worlds)))
    # PEFT reads the same tokens, some steps later.
    tokens = iter(ours.released)
    times = time_in_turn(
        ours.step, lambda: theirs.step(next(tokens)), sizes.heavy_pairs, 1, workspace.device, _PEFT_RUN
    )
    limit = step_limit(workspace, adapters) / times.centres_ms[1]
    notes = "PEFT computes the worlds' logits alone: no public model, no votes, no release"
    return Measured(times, limit, notes=notes)


@dataclass(frozen=True)
class _Shared:
    """Times outside the forward and of whole tokens, and the share of tokens on which the worlds' votes differed."""

    times: Paired
    dissent: float
    read_ms: float


def mechanism_share(workspace: Workspace) -> Measured:
    """Everything outside the forward against the whole token, on average over a stream of coupled samples."""
    whole, top = (_mechanism_stream(workspace, layers) for layers in (None, _TOP))
    notes = (
        f"coupled sampling at temperature 1; the worlds' votes differed on {whole.dissent:.0%} of the tokens; "
        f"{top.times.ratio:.2%} of a token with the last {_TOP} of 30 blocks adapted, which is shorter; "
        "without the ledger's commit, which server-overhead has"
    )
    extra: dict[str, object] = {
        "dissent": whole.dissent,
        "share_top12": top.times.ratio,
        "spread_top12": top.times.spread,
        "dissent_top12": top.dissent,
    }
    return Measured(whole.times, whole.read_ms / whole.times.centres_ms[1], notes=notes, extra=extra)


def _mechanism_stream(workspace: Workspace, top: int | None) -> _Shared:
    sizes = workspace.sizes
    # Worlds that mostly agree are closer than rounding, so parity is asked of others of the same shape.
    distinct = workspace.adapters("attention", top)
    check_engine(workspace, Engine(workspace.decoder, distinct), distinct, workspace.prompt(sizes.context))
    engine = Engine(workspace.decoder, workspace.adapters("attention", top, deviation=ALIKE))
    curator, coins = experimental_curator(sizes.num_worlds), PublicCoins.from_seed(workspace.seed, 0)
    # The first token pays for what is allocated once, and is not counted.
    context = engine.open(start_of(workspace, sizes.stream_tokens - 1, warmup=1))
    outside, whole, token = [], [], workspace.prompt(1)[0]
    for step in range(sizes.stream_tokens):
        clock = [time.perf_counter()]
        engine.extend([context], [token])
        public_V = engine.public_logits(context)
        clock.append(time.perf_counter())
        candidates_K = top_candidates(public_V, sizes.num_candidates)
        clock.append(time.perf_counter())
        logits_MK = engine.world_logits(context, candidates_K)
        clock.append(time.perf_counter())
        coins_K = coins.gumbel(step, candidates_K.size)
        votes_M = gumbel_votes(logits_MK, candidates_K, coins_K, 1.0)
        released = curator.release(votes_M, Charging(STEP_BUDGET), request="benchmark", step=step, coin_key=coins.key)
        clock.append(time.perf_counter())
        token = released.token
        _check_sample(logits_MK, candidates_K, coins.gumbel(step, candidates_K.size), votes_M, token)
        outside.append(1e3 * (clock[2] - clock[1] + clock[4] - clock[3]))
        whole.append(1e3 * (clock[4] - clock[0]))
    times = Paired(tuple(outside[1:]), tuple(whole[1:]), centre="mean")
    dissent = curator.state.dissenting_steps / curator.state.tokens_released
    return _Shared(times, dissent, 1e3 * 4 * (public_V.size + logits_MK.size) / workspace.peaks.bytes_read)


def _check_sample(
    logits_MK: np.ndarray, candidates_K: np.ndarray, coins_K: np.ndarray, votes_M: np.ndarray, token: int
) -> None:
    replayed = [candidates_K[int((logits.astype(np.float64) + coins_K).argmax())] for logits in logits_MK]
    parity.require(bool((votes_M == replayed).all()), "a vote is not what the public coins say")
    parity.require(token in votes_M, f"token {token} was released, but no world voted for it")


def _token_row(
    name: str, words: str, target: float, names: str, top: int | None = None, stretch: float | None = None
) -> Benchmark:
    run: Callable[[Workspace], Measured] = partial(private_token, names=names, top=top)
    return Benchmark(
        name,
        f"private token, all worlds, {words}",
        "one non-private `transformers` decode step",
        target,
        "<=",
        run,
        weight=25,
        stretch=stretch,
        cuda_target=1.5,
    )


BENCHMARKS = (
    _token_row("private-token-attention", "attention projections of all blocks adapted", 5.0, "attention", stretch=4.0),
    _token_row("private-token-all-linear", "all seven projections of all blocks", 7.0, "all-linear"),
    _token_row("private-token-top12", "attention of the last 12 of 30 blocks", 2.5, "attention", 12),
    _token_row("private-token-top6", "attention of the last 6 of 30 blocks", 1.7, "attention", 6),
    Benchmark(
        "private-token-vs-peft-mixed",
        "private token, all worlds, attention projections of all blocks",
        "one PEFT mixed-batch step of the same adapters",
        1 / 12,
        "<=",
        against_peft,
        weight=380,
    ),
    Benchmark(
        "mechanism-share",
        "candidates, coins, votes, release and posterior, mean over a stream, attention of all blocks",
        "the whole private token",
        0.01,
        "<=",
        mechanism_share,
        weight=45,
        cuda_target=0.01,
    ),
)
