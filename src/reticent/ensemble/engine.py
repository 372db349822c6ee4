"""The ensemble engine: prompts, caches and decode steps for the public model and all worlds at once.

Rows are ordered public model first, then worlds 0 … m − 1, always. Blocks below the lowest adapter are the same for
every row and are computed, and cached, once. Requests that decode in one step share every matrix product; only
attention goes request by request, because their lengths differ.

Shape suffixes: G rows (1 + M), M worlds, N tokens, T cached positions, H key-value heads, C head dimension, D hidden
size, K candidates, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.ensemble.adapters import StackedAdapters, first_adapted_layer, group_by_layer
from reticent.ensemble.attention import attention_up_to
from reticent.ensemble.cache import LayerCache
from reticent.ensemble.forward import Attend, BatchedDecoder
from reticent.ensemble.recording import RecordedStep
from reticent.errors import InvalidValueError

_CACHE_BLOCK = 32
_RECORDED_CACHE_BLOCK = 256
"""Larger where steps are recorded, since a recording lasts until a cache grows."""
_PREFILL_TOKENS = 4096
"""Most row-tokens that go through the adapted blocks at once while a prompt is read; bounds memory for any m."""


@dataclass
class EngineContext:
    """One token sequence as the engine holds it; made by `Engine.open`."""

    caches: list[LayerCache]
    tokens: list[int] = field(default_factory=list)
    final_hidden_GD: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens the context holds."""
        return len(self.tokens)


class Engine:
    """The public model and m worlds for next-token prediction; implements `reticent.protocols.Ensemble`.

    What is computed, and in which order, is a function of tokens alone.
    """

    def __init__(self, decoder: BatchedDecoder, adapters: StackedAdapters, record_steps: bool | None = None) -> None:
        """Take a decoder and the worlds' adapters; `record_steps` replays decode steps, by default on CUDA only."""
        architecture = decoder.architecture
        self._records = architecture.device.type == "cuda" if record_steps is None else record_steps
        self._recorded: RecordedStep | None = None
        self._decoder = decoder
        grouped = group_by_layer(architecture, adapters.to(architecture.dtype, architecture.device))
        self._adapters = [[group and group.packed() for group in layer] for layer in grouped]
        self._num_worlds = adapters.num_adapters
        lowest = first_adapted_layer(architecture, adapters.down)
        self._trunk = range(lowest)
        self._adapted = range(lowest, decoder.num_layers)

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self._num_worlds

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        return self._decoder.architecture.vocab_size

    @property
    def context_length(self) -> int:
        """The most tokens a context can hold."""
        return self._decoder.architecture.context_length

    @torch.inference_mode()
    def open(self, prompt: Sequence[int]) -> EngineContext:
        """Read a prompt into a new context.

        Raises:
            InvalidValueError: the prompt is empty or longer than the context window.
        """
        if not 1 <= len(prompt) <= self.context_length:
            raise InvalidValueError(
                f"a prompt of {len(prompt)} tokens: it must have 1 to {self.context_length}, the model's context length"
            )
        block = _RECORDED_CACHE_BLOCK if self._records else _CACHE_BLOCK
        context = EngineContext([LayerCache(block) for _ in range(self._decoder.num_layers)], list(prompt))
        device = self._decoder.architecture.device
        positions_N = torch.arange(len(prompt), device=device)
        hidden_1ND = self._decoder.embed(torch.tensor(prompt, device=device), positions_N)[None]
        attend = self._cached_attention([context], [0])
        hidden_1ND = self._decoder.run_layers(hidden_1ND, self._trunk, positions_N, attend)
        context.final_hidden_GD = self._prefill_rows(context, hidden_1ND, positions_N)
        return context

    @torch.inference_mode()
    def extend(self, contexts: Sequence[EngineContext], tokens: Sequence[int]) -> None:
        """Append one token to each context, all in one step.

        Raises:
            InvalidValueError: a context is full, or the two lists differ in length.
        """
        if len(contexts) != len(tokens):
            raise InvalidValueError(f"{len(contexts)} contexts but {len(tokens)} tokens; give one token a context")
        cached_lens = [context.length for context in contexts]
        if any(length >= self.context_length for length in cached_lens):
            raise InvalidValueError(f"a context already holds {self.context_length} tokens, the model's context length")
        if self._records:
            final_GND = self._recorded_step(contexts, tokens, cached_lens)
        else:
            device = self._decoder.architecture.device
            attend = self._cached_attention(contexts, cached_lens)
            final_GND = self._step(
                torch.tensor(tokens, device=device), torch.tensor(cached_lens, device=device), attend
            )
        for position, (context, token) in enumerate(zip(contexts, tokens, strict=True)):
            context.tokens.append(token)
            context.final_hidden_GD = final_GND[:, position]

    @torch.inference_mode()
    def public_logits(self, context: EngineContext) -> NDArray[np.float32]:
        """The public model's next-token logits, float32[V]."""
        return self._decoder.logits(_final_hidden(context)[0]).cpu().numpy()

    @torch.inference_mode()
    def world_logits(self, context: EngineContext, candidates_K: NDArray[np.int64]) -> NDArray[np.float32]:
        """Every world's next-token logits at the candidates, float32[M, K]."""
        candidates = torch.from_numpy(candidates_K).to(self._decoder.architecture.device)
        return self._decoder.candidate_logits(_final_hidden(context)[1:], candidates).cpu().numpy()

    def _step(self, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """All blocks for one new token a context; final hidden states [1 + M, N, D]."""
        hidden_GND = self._decoder.embed(tokens_N, positions_N)[None]
        hidden_GND = self._decoder.run_layers(hidden_GND, self._trunk, positions_N, attend)
        hidden_GND = self._decoder.run_layers(hidden_GND, self._adapted, positions_N, attend, self._adapters, skip=1)
        return self._decoder.final_hidden(hidden_GND)

    def _recorded_step(
        self, contexts: Sequence[EngineContext], tokens: Sequence[int], cached_lens: Sequence[int]
    ) -> Tensor:
        """`_step` without a shape or a host decision that depends on lengths, replayed where it can be."""
        for context, cached_len in zip(contexts, cached_lens, strict=True):
            for cache in context.caches:
                cache.reserve(cached_len)
        if self._recorded is None or not self._recorded.fits(contexts):
            self._recorded = RecordedStep(contexts, self._decoder.architecture.device)
        architecture = self._decoder.architecture

        def step(tokens_N: Tensor, positions_N: Tensor) -> Tensor:
            def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                scale, slopes_H = architecture.layers[layer].attention_scale, architecture.alibi_slopes_H
                mixed = []
                for index, context in enumerate(contexts):
                    here = slice(index, index + 1)
                    stored = context.caches[layer].store_at(positions_N[here], key[:, here], value[:, here])
                    mixed.append(attention_up_to(positions_N[here], query[:, here], *stored, scale, slopes_H))
                return torch.cat(mixed, dim=1)

            return self._step(tokens_N, positions_N, attend)

        return self._recorded.run(step, tokens, cached_lens)

    def _prefill_rows(self, context: EngineContext, hidden_1ND: Tensor, positions_N: Tensor) -> Tensor:
        """Run the adapted blocks over a prompt, some rows at a time, filling the caches; returns [1 + M, D]."""
        rows_at_once = max(2, _PREFILL_TOKENS // len(positions_N))
        # Where the lowest adapter sits behind attention, that block's keys and values are still common to all rows.
        shared = self._adapted.start if self._adapters[0][0] is None else None
        finals = []
        for start in range(0, self._num_worlds, rows_at_once):
            skip = 1 if start == 0 else 0
            rows = slice(start, min(start + rows_at_once, self._num_worlds))
            attend = self._storing_attention(context, start + 1 - skip, shared)
            adapters = [[group and group.rows(rows) for group in layer] for layer in self._adapters]
            hidden = self._decoder.run_layers(hidden_1ND, self._adapted, positions_N, attend, adapters, skip)
            finals.append(self._decoder.final_hidden(hidden[:, -1]))
        return torch.cat(finals)

    def _storing_attention(self, context: EngineContext, first_row: int, shared_layer: int | None) -> Attend:
        """Attention within a prompt for some consecutive rows, whose keys and values go to the caches."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if layer != shared_layer:
                context.caches[layer].store_rows(first_row, 1 + self._num_worlds, key, value)
            elif first_row == 0:
                context.caches[layer].store_rows(0, 1, key, value)
            return self._decoder.attention_over(layer, query, key, value)

        return attend

    def _cached_attention(self, contexts: Sequence[EngineContext], cached_lens: Sequence[int]) -> Attend:
        """Attention of new tokens over each context's cache; several contexts bring one new token each."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if len(contexts) == 1:
                keys, values = contexts[0].caches[layer].append(cached_lens[0], key, value)
                return self._decoder.attention_over(layer, query, keys, values)
            mixed = []
            for position, (context, cached_len) in enumerate(zip(contexts, cached_lens, strict=True)):
                here = slice(position, position + 1)
                keys, values = context.caches[layer].append(cached_len, key[:, here], value[:, here])
                mixed.append(self._decoder.attention_over(layer, query[:, here], keys, values))
            return torch.cat(mixed, dim=1)

        return attend


def _final_hidden(context: EngineContext) -> Tensor:
    assert context.final_hidden_GD is not None, "a context comes from Engine.open"
    return context.final_hidden_GD
