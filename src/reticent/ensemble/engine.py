"""The ensemble engine: prompts, caches and decode steps for the public model and all worlds at once.

Rows are ordered public model first, then worlds 0 … m − 1, always. Blocks below the lowest adapter are the same for
every row and are computed, and cached, once. Requests that decode in one step share every matrix product; only
attention goes request by request, because their lengths differ.

Shape suffixes: G rows (1 + M), M worlds, N tokens, T cached positions, H key-value heads, C head dimension, D hidden
size, K candidates, V vocabulary.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.ensemble.adapted_blocks import AdaptedBlocks
from reticent.ensemble.adapters import StackedAdapters
from reticent.ensemble.attention import biases_up_to, cached_attention
from reticent.ensemble.cache import LayerCache
from reticent.ensemble.forward import Attend, BatchedDecoder
from reticent.ensemble.recording import CachedContext, StepRecorder
from reticent.errors import InvalidValueError

_CACHE_BLOCK = 32
_RECORDED_CACHE_BLOCK = 256
"""Larger where steps are recorded, since a recording lasts until a cache grows."""
_PREFILL_TOKENS = 2048
"""Most row-tokens that go through the adapted blocks at once while a prompt is read; bounds memory for any m, and how
long other answers wait for one part of it."""


@dataclass(eq=False)
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
        device = decoder.architecture.device
        records = device.type == "cuda" if record_steps is None else record_steps
        self._recorder = StepRecorder(device) if records else None
        self._decoder = decoder
        self._blocks = AdaptedBlocks(decoder, adapters)

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self._blocks.num_adapters

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        return self._decoder.architecture.vocab_size

    @property
    def context_length(self) -> int:
        """The most tokens a context can hold."""
        return self._decoder.architecture.context_length

    def open(self, prompt: Sequence[int]) -> EngineContext:
        """Read a prompt into a new context.

        Raises:
            InvalidValueError: the prompt is empty or longer than the context window, or a token is not in the
                vocabulary.
        """
        parts = self.opening(prompt)
        while True:
            try:
                next(parts)
            except StopIteration as end:
                context: EngineContext = end.value
                return context

    @torch.inference_mode()
    def opening(self, prompt: Sequence[int]) -> Generator[None, None, EngineContext]:
        """`open`, yielding between parts of the work; the context is what the generator returns."""
        self._check_prompt(prompt)
        if self._recorder is not None:
            self._recorder.forget_gone()
        block = _CACHE_BLOCK if self._recorder is None else _RECORDED_CACHE_BLOCK
        context = EngineContext([LayerCache(block) for _ in range(self._decoder.num_layers)], list(prompt))
        device = self._decoder.architecture.device
        positions_N = torch.arange(len(prompt), device=device)
        trunk_1ND = self._blocks.run_trunk(
            torch.tensor(context.tokens, device=device), positions_N, self._cached_attention([context], [0])
        )
        finals = []
        for some in self._blocks.parts(_PREFILL_TOKENS, len(prompt)):
            skip = 1 if some.start == 0 else 0
            attend = self._storing_attention(context, some.start + 1 - skip)
            hidden_GND = self._blocks.run_rows(trunk_1ND, positions_N, attend, skip, some)
            finals.append(self._decoder.final_hidden(hidden_GND[:, -1]))
            yield
        context.final_hidden_GD = torch.cat(finals)
        return context

    @torch.inference_mode()
    def extend(self, contexts: Sequence[EngineContext], tokens: Sequence[int]) -> None:
        """Append one token to each context, all in one step.

        Raises:
            InvalidValueError: a context is full, or the two lists differ in length.
        """
        if len(contexts) != len(tokens):
            raise InvalidValueError(f"{len(contexts)} contexts but {len(tokens)} tokens; give one token a context")
        if not contexts:
            return
        cached_lens = [context.length for context in contexts]
        if any(length >= self.context_length for length in cached_lens):
            raise InvalidValueError(f"a context already holds {self.context_length} tokens, the model's context length")
        if self._recorder is not None:
            final_GND = self._recorded_step(self._recorder, contexts, tokens, cached_lens)
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

    def _check_prompt(self, prompt: Sequence[int]) -> None:
        if not 1 <= len(prompt) <= self.context_length:
            raise InvalidValueError(
                f"a prompt of {len(prompt)} tokens: it must have 1 to {self.context_length}, the model's context length"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise InvalidValueError(
                f"a prompt token is outside the model's vocabulary of {self.vocab_size} tokens; the tokenizer is not "
                "this model's, or knows tokens that were added later"
            )

    def _step(self, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """All blocks for one new token a context; final hidden states [1 + M, N, D]."""
        trunk_1ND = self._blocks.run_trunk(tokens_N, positions_N, attend)
        return self._decoder.final_hidden(self._blocks.run_rows(trunk_1ND, positions_N, attend, skip=1))

    def _recorded_step(
        self,
        recorder: StepRecorder,
        contexts: Sequence[EngineContext],
        tokens: Sequence[int],
        cached_lens: Sequence[int],
    ) -> Tensor:
        """`_step` without a shape or a host decision that depends on lengths, replayed where it can be."""
        for context, cached_len in zip(contexts, cached_lens, strict=True):
            for cache in context.caches:
                cache.reserve(cached_len)
        return recorder.run(self._step_in_place, contexts, tokens, cached_lens)

    def _step_in_place(self, contexts: Sequence[CachedContext], tokens_N: Tensor, positions_N: Tensor) -> Tensor:
        """`_step` for contexts with room for one more position; see `recording.StepFunction`."""
        architecture = self._decoder.architecture
        slopes_H = architecture.alibi_slopes_H
        biases = [
            biases_up_to(positions_N[index : index + 1], context.caches[0].capacity, slopes_H, architecture.dtype)
            for index, context in enumerate(contexts)
        ]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scale = architecture.layers[layer].attention_scale
            mixed = []
            for index, context in enumerate(contexts):
                here = slice(index, index + 1)
                stored = context.caches[layer].store_at(positions_N[here], key[:, here], value[:, here])
                mixed.append(cached_attention(query[:, here], *stored, scale, biases[index]))
            return torch.cat(mixed, dim=1)

        return self._step(tokens_N, positions_N, attend)

    def _storing_attention(self, context: EngineContext, first_row: int) -> Attend:
        """Attention within a prompt for some consecutive rows, whose keys and values go to the caches."""
        # Where the lowest adapter sits behind attention, that block's keys and values are still common to all rows.
        shared = self._blocks.adapted.start if self._blocks.first_attention_is_shared else None

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if layer != shared:
                context.caches[layer].store_rows(first_row, 1 + self.num_worlds, key, value)
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
