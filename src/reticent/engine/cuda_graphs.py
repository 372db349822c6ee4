"""CUDA graphs of decode steps: capture and replay.

On a GPU a decode step for a handful of contexts is hundreds of small kernels, and launching them can take longer than
running them. A step whose shapes and addresses stay the same is captured as a CUDA graph and launched as a whole. It
stays the same while the same contexts decode together and none of their caches has to grow.
"""

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reticent.engine.kv_cache import LayerCache

_WARM_UP_RUNS = 2
_MAX_CAPTURED_STEPS = 4


class CachedContext(Protocol):
    """A context as far as a captured graph needs it."""

    caches: list[LayerCache]


StepFunction = Callable[[Sequence[CachedContext], Tensor, Tensor], Tensor]
"""(contexts, tokens int64[N], positions int64[N]) -> final hidden states [G, N, D], without a decision on the host."""


class CudaGraphRunner:
    """Runs decode steps, replaying those that come again.

    A step is captured when its contexts come for the second time: a set that changes with every step would pay for a
    capture each time. Contexts are not kept alive; a graph is dropped when one of its contexts is.

    On a processor a replay computes the step on the memory that was there at its capture, as a graph would, so that
    tests on any machine find out if a graph is replayed that is no longer valid.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._captured: list[_CapturedStep] = []

    def run(
        self,
        step: StepFunction,
        contexts: Sequence[CachedContext],
        counts: Sequence[int],
        tokens: Sequence[int],
        positions: Sequence[int],
    ) -> Tensor:
        """Compute a step.

        Args:
            step: computes the step; the same for contexts and counts that are the same.
            contexts: with room for the new positions.
            counts: number of tokens of each.
            tokens: of all contexts, side by side.
            positions: their positions.

        Returns:
            Final hidden states, [G, N, D].
        """
        self.drop_stale_graphs()
        captured = next((known for known in self._captured if known.matches(contexts, counts)), None)
        if captured is None:
            self._captured = [
                *self._captured[1 - _MAX_CAPTURED_STEPS :],
                _CapturedStep(contexts, counts, self._device),
            ]
            return step(contexts, *(torch.tensor(ids, device=self._device) for ids in (tokens, positions)))
        # The one used last is the last to go.
        self._captured.remove(captured)
        self._captured.append(captured)
        return captured.replay(step, tokens, positions)

    def drop_stale_graphs(self) -> None:
        """Drop the graphs of contexts that no longer exist, or whose caches have moved."""
        self._captured = [captured for captured in self._captured if captured.is_valid]


class _CapturedStep:
    """One step for fixed contexts with fixed room in their caches."""

    def __init__(self, contexts: Sequence[CachedContext], counts: Sequence[int], device: torch.device) -> None:
        self._counts = list(counts)
        self._contexts = [weakref.ref(context) for context in contexts]
        self._room = _rooms(contexts)
        self._tokens = torch.zeros(sum(counts), dtype=torch.int64, device=device)
        self._positions = torch.zeros(sum(counts), dtype=torch.int64, device=device)
        self._launch: Callable[[], Tensor] | None = None

    @property
    def is_valid(self) -> bool:
        """True if all contexts exist and have their caches where they were."""
        contexts = self._live_contexts()
        return len(contexts) == len(self._contexts) and _rooms(contexts) == self._room

    def matches(self, contexts: Sequence[CachedContext], counts: Sequence[int]) -> bool:
        """True if a step with these numbers of tokens of these contexts is the captured one."""
        captured = self._live_contexts()
        return (
            list(counts) == self._counts
            and len(contexts) == len(captured)
            and all(a is b for a, b in zip(contexts, captured, strict=True))
        )

    def replay(self, step: StepFunction, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Compute the step, capturing it the first time."""
        self._tokens.copy_(torch.tensor(tokens))
        self._positions.copy_(torch.tensor(positions))
        if self._launch is None:
            capture = _capture_on_gpu if self._tokens.device.type == "cuda" else _capture_on_host
            self._launch = capture(step, self._live_contexts(), self._tokens, self._positions)
        return self._launch()

    def _live_contexts(self) -> list[CachedContext]:
        return [context for reference in self._contexts if (context := reference()) is not None]


def _capture_on_gpu(
    step: StepFunction, contexts: Sequence[CachedContext], tokens: Tensor, positions: Tensor
) -> Callable[[], Tensor]:
    device = tokens.device
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        # Warming up and capturing write the step's own keys and values, as the replay then does.
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                step(contexts, tokens, positions)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = step(contexts, tokens, positions)

    def launch() -> Tensor:
        with torch.cuda.device(device):
            graph.replay()
            return result.clone()

    return launch


def _capture_on_host(
    step: StepFunction, contexts: Sequence[CachedContext], tokens: Tensor, positions: Tensor
) -> Callable[[], Tensor]:
    frozen = [_Frozen([copy.copy(cache) for cache in context.caches]) for context in contexts]
    return lambda: step(frozen, tokens, positions)


@dataclass
class _Frozen:
    """Caches that stay in place after the context they belong to has moved on."""

    caches: list[LayerCache]


def _rooms(contexts: Sequence[CachedContext]) -> list[int]:
    """Positions that every cache of a context has room for; grows whenever one is moved."""
    return [min(cache.capacity for cache in context.caches) for context in contexts]
