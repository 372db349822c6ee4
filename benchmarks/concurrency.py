"""Row and curve on several requests in one step."""

from collections.abc import Callable

from benchmarks import limits, parity
from benchmarks.decoding import check_engine, start_of
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import interleaved, median_ms
from benchmarks.workspace import Workspace
from reticent.decoding.votes import top_candidates
from reticent.ensemble.adapters import StackedAdapters
from reticent.ensemble.engine import Engine, EngineContext

_MOST_CACHE_BYTES = 16 * 2**30


class Requests:
    """Some contexts of one engine that decode in one step; the first world's vote is the next token."""

    def __init__(self, engine: Engine, contexts: list[EngineContext], num_candidates: int) -> None:
        self._engine = engine
        self._contexts = contexts
        self._num_candidates = num_candidates
        self._next = [1 + position for position in range(len(contexts))]

    def step(self) -> None:
        """Extend every context, and evaluate the public model and all worlds for each."""
        self._engine.extend(self._contexts, self._next)
        self._next = []
        for context in self._contexts:
            candidates_K = top_candidates(self._engine.public_logits(context), self._num_candidates)
            logits_MK = self._engine.world_logits(context, candidates_K)
            self._next.append(int(candidates_K[logits_MK[0].argmax()]))


def concurrent_requests(workspace: Workspace) -> Measured:
    """Tokens a second of several requests in one step, over those of one request alone."""
    sizes = workspace.sizes
    adapters = workspace.adapters("attention")
    engine = Engine(workspace.decoder, adapters)
    check_engine(workspace, engine, adapters, workspace.prompt(sizes.context))
    _check_together(workspace, engine, adapters)
    length = len(start_of(workspace, sizes.pairs))
    contexts = [engine.open(workspace.prompt(length, number)) for number in range(sizes.requests + 1)]
    alone = Requests(engine, contexts[:1], sizes.num_candidates)
    together = Requests(engine, contexts[1:], sizes.num_candidates)
    pairs = max(sizes.heavy_pairs, sizes.pairs // 2)
    times = interleaved(alone.step, together.step, pairs, device=workspace.device).scaled(sizes.requests)
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
        reference = parity.Reference.compute(workspace, adapters, [*prompt, token])
        reference.require_engine("requests in one step", engine, context)


def curve(workspace: Workspace, on_points: Callable[[list[dict[str, object]]], None]) -> None:
    """Milliseconds of a step for worlds × requests × contexts; combinations beyond 16 GiB of caches are skipped.

    Steps of several requests alternate with steps of another one alone, which they are compared with: a point takes
    minutes to set up, and in that time a shared machine changes. Calls `on_points` with all points so far whenever a
    context's requests are measured.
    """
    points: list[dict[str, object]] = []
    sizes = workspace.sizes
    for num_worlds in sizes.curve_worlds:
        engine = Engine(workspace.decoder, workspace.adapters("attention", num_worlds=num_worlds))
        for length in sizes.curve_contexts:
            per_request = limits.cache_bytes(workspace.architecture, num_worlds, 0, length)
            opened: list[EngineContext] = []
            for requests in sizes.curve_requests:
                point: dict[str, object] = {"worlds": num_worlds, "requests": requests, "context": length}
                points.append(point)
                num_contexts = requests + (requests > 1)
                if per_request * num_contexts > _MOST_CACHE_BYTES:
                    gib = per_request * num_contexts / 2**30
                    point["skipped"] = f"caches, with one alone beside, would take {gib:.1f} GiB; the limit is 16"
                    continue
                # Steps lengthen a context by one token each: as many as there is room for, from just below.
                start = max(2, length - sizes.curve_steps)
                opened += [engine.open(workspace.prompt(start, n)) for n in range(len(opened), num_contexts)]
                point |= _point(workspace, engine, opened[:num_contexts])
            on_points(points)


def _point(workspace: Workspace, engine: Engine, contexts: list[EngineContext]) -> dict[str, object]:
    """A step of one request, or of all but the first, which steps alone in between.

    `times_one_request` is at most their number if the cost grows no faster than linearly.
    """
    sizes = workspace.sizes
    alone = Requests(engine, contexts[:1], sizes.num_candidates)
    if len(contexts) == 1:
        step_ms, times, requests = median_ms(alone.step, sizes.curve_steps, workspace.device), 1.0, 1
    else:
        together = Requests(engine, contexts[1:], sizes.num_candidates)
        pairs = interleaved(together.step, alone.step, sizes.curve_steps, device=workspace.device)
        step_ms, times, requests = pairs.centres_ms[0], pairs.ratio, len(contexts) - 1
    return {"step_ms": step_ms, "tokens_per_second": 1e3 * requests / step_ms, "times_one_request": times}


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
