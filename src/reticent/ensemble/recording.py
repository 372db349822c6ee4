"""Decode steps of fixed shape, recorded once and replayed.

On a GPU a decode step for a handful of contexts is hundreds of small kernels, and launching them can take longer than
running them. A step whose shapes and addresses stay the same is recorded as a CUDA graph and launched as a whole. It
stays the same while the same contexts decode together and none of their caches has to grow; then it is recorded anew.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from reticent.ensemble.cache import LayerCache

StepFunction = Callable[[Tensor, Tensor], Tensor]
"""(tokens int64[N], positions int64[N]) -> final hidden states [G, N, D]; all other inputs at fixed addresses."""

_WARM_UP_RUNS = 3


class CachedContext(Protocol):
    """What a recording needs to know of a context."""

    caches: list[LayerCache]


class RecordedStep:
    """One decode step for fixed contexts with fixed room in their caches.

    On a processor nothing is recorded and every replay computes the step afresh: the same operations, so that they can
    be tested anywhere.
    """

    def __init__(self, contexts: Sequence[CachedContext], device: torch.device) -> None:
        self._contexts = list(contexts)
        self._room = [_room(context) for context in contexts]
        self._tokens = torch.zeros(len(contexts), dtype=torch.int64, device=device)
        self._positions = torch.zeros(len(contexts), dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None

    def fits(self, contexts: Sequence[CachedContext]) -> bool:
        """Whether a step of these contexts is the step recorded here."""
        return (
            len(contexts) == len(self._contexts)
            and all(now is then for now, then in zip(contexts, self._contexts, strict=True))
            and [_room(context) for context in contexts] == self._room
        )

    def run(self, step: StepFunction, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Compute the step, recording it the first time; returns final hidden states, [G, N, D]."""
        self._tokens.copy_(torch.tensor(tokens))
        self._positions.copy_(torch.tensor(positions))
        if self._tokens.device.type != "cuda":
            return step(self._tokens, self._positions)
        if self._graph is None:
            self._record(step)
        assert self._graph is not None
        assert self._result is not None
        self._graph.replay()
        return self._result.clone()

    def _record(self, step: StepFunction) -> None:
        # Warm-up and recording write the step's own keys and values, as the replay then does.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_RUNS):
                step(self._tokens, self._positions)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = step(self._tokens, self._positions)


def _room(context: CachedContext) -> int:
    """Positions that every cache of a context has room for; grows whenever one is moved."""
    return min(cache.capacity for cache in context.caches)
