"""Decode steps: new tokens of some contexts, through all blocks, in one pass.

A context brings one token, or several in a row where later ones are draft tokens. All tokens share every matrix
product; attention goes context by context, because their lengths differ. Steps run for the public model and all worlds,
or for the public model alone.

Shape suffixes: G rows, M worlds, N tokens of all contexts, D hidden size.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reticent.engine.cuda_graphs import CachedContext, CudaGraphRunner
from reticent.layers.adapted_blocks import AdaptedBlocks
from reticent.layers.attention import biases_up_to, cached_attention
from reticent.layers.forward import Attend, BatchedDecoder

_Forward = Callable[[Tensor, Tensor, Attend], Tensor]
"""(tokens int64[N], positions int64[N], attend) -> final hidden states [G, N, D]."""


@dataclass(frozen=True)
class TokenRun:
    """Tokens of one context, side by side from position `start`; the cache holds everything before."""

    context: CachedContext
    start: int
    tokens: Sequence[int]


class DecodeSteps:
    """Runs decode steps; with `captures`, those that come again are replayed as CUDA graphs, see `cuda_graphs`.

    With `public_apart` the public row goes through the adapted blocks in a pass of its own; nothing is captured then.
    """

    def __init__(
        self, decoder: BatchedDecoder, blocks: AdaptedBlocks, captures: bool, public_apart: bool = False
    ) -> None:
        self._decoder = decoder
        self._blocks = blocks
        self._public_apart = public_apart
        device = decoder.architecture.device
        self._graphs, self._public_graphs = (CudaGraphRunner(device) if captures else None for _ in range(2))

    def all_rows(self, runs: Sequence[TokenRun]) -> Tensor:
        """Final hidden states of the public model and all worlds after each token, [1 + M, N, D]."""
        if self._public_apart:
            return self._step(self._rows_apart(runs), runs, None)
        return self._step(self._all, runs, self._graphs)

    def public_row(self, runs: Sequence[TokenRun]) -> Tensor:
        """Those of the public model alone, [1, N, D]; only its row of the caches is written."""
        return self._step(self._public, runs, self._public_graphs)

    def drop_stale_graphs(self) -> None:
        """Drop captured graphs of contexts that no longer exist."""
        for graphs in (self._graphs, self._public_graphs):
            if graphs is not None:
                graphs.drop_stale_graphs()

    def _step(self, forward: _Forward, runs: Sequence[TokenRun], graphs: CudaGraphRunner | None) -> Tensor:
        tokens = [token for run in runs for token in run.tokens]
        positions = [run.start + offset for run in runs for offset in range(len(run.tokens))]
        if graphs is not None:
            return self._run_captured(graphs, forward, runs, tokens, positions)
        device = self._decoder.architecture.device
        tokens_N, positions_N = (torch.tensor(numbers, device=device) for numbers in (tokens, positions))
        return forward(tokens_N, positions_N, self._attention(runs))

    def _rows_apart(self, runs: Sequence[TokenRun]) -> _Forward:
        """The public row and then the worlds' through the adapted blocks, in two passes: [1 + M, N, D]."""
        attend_worlds = self._attention(runs, first_row=1)
        # Keys and values of a block that all rows share are stored once, in the one row that its cache has.
        shared = self._blocks.adapted.start if self._blocks.first_attention_is_shared else None

        def forward(tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
            def attend_to_own(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                return (attend if layer == shared else attend_worlds)(layer, query, key, value)

            trunk_1ND = self._blocks.run_trunk(tokens_N, positions_N, attend)
            public_1ND = self._blocks.run_public(trunk_1ND, positions_N, attend)
            worlds_MND = self._blocks.run_rows(trunk_1ND, positions_N, attend_to_own, skip=0)
            return self._decoder.final_hidden(torch.cat([public_1ND, worlds_MND]))

        return forward

    def _all(self, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        trunk_1ND = self._blocks.run_trunk(tokens_N, positions_N, attend)
        return self._decoder.final_hidden(self._blocks.run_rows(trunk_1ND, positions_N, attend, skip=1))

    def _public(self, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        hidden_1ND = self._decoder.embed(tokens_N, positions_N)[None]
        layers = range(self._decoder.num_layers)
        return self._decoder.final_hidden(self._decoder.run_layers(hidden_1ND, layers, positions_N, attend))

    def _attention(self, runs: Sequence[TokenRun], first_row: int = 0) -> Attend:
        """Attention of new tokens over each context's cache, for rows from `first_row` of the caches on."""
        places = _places([len(run.tokens) for run in runs])

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            mixed = []
            for run, here in zip(runs, places, strict=True):
                stored = run.context.caches[layer].append(run.start, key[:, here], value[:, here], first_row)
                mixed.append(self._decoder.attention_over(layer, query[:, here], *stored))
            return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)

        return attend

    def _run_captured(
        self,
        graphs: CudaGraphRunner,
        forward: _Forward,
        runs: Sequence[TokenRun],
        tokens: Sequence[int],
        positions: Sequence[int],
    ) -> Tensor:
        """The step without a shape or a host decision that depends on positions, replayed where it can be."""
        counts = [len(run.tokens) for run in runs]
        for run, count in zip(runs, counts, strict=True):
            for cache in run.context.caches:
                cache.reserve(run.start, count)

        def step(contexts: Sequence[CachedContext], tokens_N: Tensor, positions_N: Tensor) -> Tensor:
            return forward(tokens_N, positions_N, self._attention_in_place(contexts, counts, positions_N))

        return graphs.run(step, [run.context for run in runs], counts, tokens, positions)

    def _attention_in_place(
        self, contexts: Sequence[CachedContext], counts: Sequence[int], positions_N: Tensor
    ) -> Attend:
        """`_attention` for contexts with room for the new positions; see `cuda_graphs.StepFunction`."""
        architecture = self._decoder.architecture
        places = _places(counts)
        biases = [
            biases_up_to(positions_N[here], context.caches[0].capacity, architecture.alibi_slopes_H, architecture.dtype)
            for context, here in zip(contexts, places, strict=True)
        ]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scale = architecture.layers[layer].attention_scale
            mixed = []
            for context, here, bias in zip(contexts, places, biases, strict=True):
                stored = context.caches[layer].store_at(positions_N[here], key[:, here], value[:, here])
                mixed.append(cached_attention(query[:, here], *stored, scale, bias))
            return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)

        return attend


def _places(counts: Sequence[int]) -> list[slice]:
    """Locate each run's tokens among all."""
    return [slice(stop - count, stop) for stop, count in zip(itertools.accumulate(counts), counts, strict=True)]
