"""Row and curve on several requests in one step."""

import copy
from collections.abc import Callable, Sequence

from benchmarks import limits, parity
from benchmarks.decoding import check_engine, start_length
from benchmarks.report import timestamp
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import time_in_turn
from benchmarks.workspace import Workspace
from reticent.decoding.votes import top_candidates
from reticent.engine.engine import Engine, EngineContext
from reticent.layers.adapters import StackedAdapters

_MOST_CACHE_BYTES = 16 * 2**30
_ALONE = 1
"""First token of the request that steps alone; the others' differ from it and from one another."""


class Requests:
    """Some contexts of one engine that decode in one step; the first world's vote is the next token."""

    def __init__(self, engine: Engine, contexts: Sequence[EngineContext], first: int, num_candidates: int) -> None:
        """Take the contexts; their first tokens are `first`, `first` + 1, …."""
        self._engine = engine
        self._contexts = contexts
        self._num_candidates = num_candidates
        self._next = [first + position for position in range(len(contexts))]

    def step(self) -> None:
        """Extend every context, and evaluate the public model and all worlds for each."""
        self._engine.extend(self._contexts, self._next)
        self._next = []
        for context in self._contexts:
            candidates_K = top_candidates(self._engine.public_logits(context), self._num_candidates)
            logits_MK = self._engine.world_logits(context, candidates_K)
            self._next.append(int(candidates_K[logits_MK[0].argmax()]))


class PromptContexts:
    """Contexts that hold one prompt, which is read once; copied for a second request, taken back for a second use."""

    def __init__(self, engine: Engine, prompt: Sequence[int], steps: int) -> None:
        """Read the prompt, and make room for `steps` steps, so that no cache grows while they are timed."""
        first = engine.open(prompt)
        self._prompt, self._final_hidden = list(prompt), first.final_hidden_GD
        self._contexts = [first]
        for _ in range(steps):
            engine.extend([first], [_ALONE])

    def take(self, count: int) -> list[EngineContext]:
        """A number of contexts at the end of the prompt; those taken before are among them, taken back to it."""
        while len(self._contexts) < count:
            self._contexts.append(copy.deepcopy(self._contexts[0]))
        for context in self._contexts:
            # What caches hold behind the prompt is overwritten before it is read.
            context.tokens, context.final_hidden_GD = list(self._prompt), self._final_hidden
        return self._contexts[:count]


def concurrent_requests(workspace: Workspace) -> Measured:
    """Tokens a second of several requests in one step, over those of one request alone."""
    sizes = workspace.sizes
    adapters = workspace.adapters("attention")
    engine = Engine(workspace.decoder, adapters)
    check_engine(workspace, engine, adapters, workspace.prompt(sizes.context))
    _check_together(workspace, engine, adapters)
    pairs = max(sizes.heavy_pairs, sizes.pairs // 2)
    length = start_length(sizes.context, pairs, warmup=1)
    contexts = [engine.open(workspace.prompt(length, number)) for number in range(sizes.requests + 1)]
    alone = Requests(engine, contexts[:1], _ALONE, sizes.num_candidates)
    together = Requests(engine, contexts[1:], _ALONE + 1, sizes.num_candidates)
    times = time_in_turn(alone.step, together.step, pairs, device=workspace.device).scale(sizes.requests)
    shape = limits.StepShape(requests=sizes.requests, context=sizes.context, candidates=sizes.num_candidates)
    least = limits.step_ms(workspace.architecture, adapters, shape, workspace.peaks)
    notes = f"time of {sizes.requests} single steps over one step of {sizes.requests} requests; forward and candidates"
    return Measured(times, times.centres_ms[0] / least, notes=notes)


def _check_together(workspace: Workspace, engine: Engine, adapters: StackedAdapters) -> None:
    """Requests of different lengths in one step compute what each computes alone."""
    sizes = workspace.sizes
    prompts = [workspace.prompt(max(2, sizes.context - 3 * number), number) for number in range(3)]
    tokens = [workspace.prompt(1, number)[0] for number in range(3)]
    together = [engine.open(prompt) for prompt in prompts]
    engine.extend(together, tokens)
    for prompt, token, context in zip(prompts, tokens, together, strict=True):
        reference = parity.ReferenceLogits.compute(workspace, adapters, [*prompt, token])
        reference.require_engine("requests in one step", engine, context)


def curve(workspace: Workspace, on_points: Callable[[list[dict[str, object]]], None]) -> None:
    """Milliseconds of a step for worlds × requests × contexts; combinations beyond 16 GiB of caches are skipped.

    Steps of a point's requests alternate with steps of another request alone, which they are compared with; one request
    is compared with another one too, which shows what the curve can tell apart. All contexts of a point hold the same
    prompt in separate caches, and the stated number of tokens on average. Calls `on_points` with all points so far
    whenever a context's requests are measured.
    """
    points: list[dict[str, object]] = []
    sizes = workspace.sizes
    for num_worlds in sizes.curve_worlds:
        engine = Engine(workspace.decoder, workspace.adapters("attention", num_worlds=num_worlds))
        for length in sizes.curve_contexts:
            points += _points_at(workspace, engine, length)
            on_points(points)


def _points_at(workspace: Workspace, engine: Engine, length: int) -> list[dict[str, object]]:
    """All numbers of requests at one context; its caches are released at the end."""
    steps, points = workspace.sizes.curve_steps, []
    per_request = limits.cache_bytes(workspace.architecture, engine.num_worlds, 0, length)
    contexts: PromptContexts | None = None
    for requests in workspace.sizes.curve_requests:
        point: dict[str, object] = {"worlds": engine.num_worlds, "requests": requests, "context": length}
        points.append(point)
        num_bytes = per_request * (requests + 1)
        if num_bytes > _MOST_CACHE_BYTES:
            gib = num_bytes / 2**30
            point["skipped"] = f"caches, with one alone beside, would take {gib:.1f} GiB; the limit is 16"
            continue
        # A warm-up step comes before those that are timed.
        start = start_length(length, steps, warmup=1)
        contexts = contexts or PromptContexts(engine, workspace.prompt(start), steps + 1)
        point |= _point(workspace, engine, contexts.take(requests + 1))
    return points


def _point(workspace: Workspace, engine: Engine, contexts: Sequence[EngineContext]) -> dict[str, object]:
    """A step of all contexts but the first, which steps alone in between.

    `times_one_request` is at most their number if the cost grows no faster than linearly.
    """
    sizes, requests = workspace.sizes, len(contexts) - 1
    alone = Requests(engine, contexts[:1], _ALONE, sizes.num_candidates)
    together = Requests(engine, contexts[1:], _ALONE + 1, sizes.num_candidates)
    times = time_in_turn(together.step, alone.step, sizes.curve_steps, device=workspace.device)
    step_ms, alone_ms = times.centres_ms
    return {
        "step_ms": step_ms,
        "alone_ms": alone_ms,
        "times_one_request": times.ratio,
        "spread": times.spread,
        "tokens_per_second": 1e3 * requests / step_ms,
        "measured": timestamp(),
    }


BENCHMARKS = (
    Benchmark(
        "concurrency",
        "tokens a second of 8 requests in one step, all worlds",
        "one request at a time",
        1.3,
        ">=",
        concurrent_requests,
        weight=35,
        cuda_target=1.3,
    ),
)
