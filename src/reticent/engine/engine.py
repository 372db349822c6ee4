"""The local engine: prompts, caches, decode steps and votes for the public model and all worlds at once.

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

from reticent import _validate
from reticent.decoding.engines import Drafts, VoteRequest
from reticent.decoding.logit_votes import public_vote, public_votes_from_logits, votes_from_logits
from reticent.engine.decode import DecodeSteps, TokenRun
from reticent.engine.kv_cache import LayerCache
from reticent.errors import InvalidValueError
from reticent.layers.adapted_blocks import AdaptedBlocks
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import Attend, BatchedDecoder

_CACHE_BLOCK = 32
_CAPTURED_CACHE_BLOCK = 256
"""Larger where steps are captured, since a captured graph lasts until a cache grows."""
_PREFILL_TOKENS = 2048
"""Most row-tokens that go through the adapted blocks at once while a prompt is read; bounds memory for any m, and how
long other answers wait for one part of it."""


@dataclass(eq=False)
class EngineContext:
    """One token sequence as the engine holds it; made by `Engine.open`.

    Attributes:
        caches: one a block; what they hold beyond `length` belongs to drafts.
        tokens: the sequence.
        final_hidden_GD: final hidden states after its last token.
        drafts: draft tokens that were computed behind it, each with the final hidden states after it.
    """

    caches: list[LayerCache]
    tokens: list[int] = field(default_factory=list)
    final_hidden_GD: Tensor | None = None
    drafts: list[tuple[int, Tensor]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of tokens the context holds."""
        return len(self.tokens)

    def append(self, token: int, final_hidden_GD: Tensor, drafts: list[tuple[int, Tensor]]) -> None:
        """Take the next token, the states after it, and the draft tokens computed behind it."""
        self.tokens.append(token)
        self.final_hidden_GD, self.drafts = final_hidden_GD, drafts


class Engine:
    """The public model and m worlds for next-token prediction; implements `reticent.decoding.engines.VoteEngine`.

    What is computed, and in which order, is a function of tokens alone. The same contexts in the same order give the
    same bits; another batch may round otherwise.
    """

    _public_apart = False
    """Whether the public row goes through the adapted blocks in a pass of its own."""

    def __init__(self, decoder: BatchedDecoder, adapters: StackedAdapters, capture_graphs: bool | None = None) -> None:
        """Take a decoder and the worlds' adapters; `capture_graphs` replays decode steps, by default on CUDA only."""
        captures = decoder.architecture.device.type == "cuda" if capture_graphs is None else capture_graphs
        self._decoder = decoder
        self._blocks = AdaptedBlocks(decoder, adapters)
        self._steps = DecodeSteps(decoder, self._blocks, captures, self._public_apart)
        self._cache_block = _CAPTURED_CACHE_BLOCK if captures else _CACHE_BLOCK

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
        chunks = self.prefill_in_chunks(prompt)
        while True:
            try:
                next(chunks)
            except StopIteration as end:
                context: EngineContext = end.value
                return context

    @torch.inference_mode()
    def prefill_in_chunks(self, prompt: Sequence[int]) -> Generator[None, None, EngineContext]:
        """`open`, yielding between chunks; the generator returns the context."""
        self._check_prompt(prompt)
        self._steps.drop_stale_graphs()
        caches = [LayerCache(self._cache_block) for _ in range(self._decoder.num_layers)]
        context = EngineContext(caches, list(prompt))
        device = self._decoder.architecture.device
        positions_N = torch.arange(len(prompt), device=device)
        trunk_1ND = self._blocks.run_trunk(
            torch.tensor(context.tokens, device=device), positions_N, self._trunk_attention(context)
        )
        finals: list[Tensor] = []
        if self._public_apart:
            attend = self._storing_attention(context, 0)
            hidden_GND = self._blocks.run_public(trunk_1ND, positions_N, attend)
            finals.append(self._decoder.final_hidden(hidden_GND[:, -1]))
        for some in self._blocks.parts(_PREFILL_TOKENS, len(prompt)):
            if finals:
                yield
            skip = 1 if some.start == 0 and not self._public_apart else 0
            attend = self._storing_attention(context, some.start + 1 - skip)
            hidden_GND = self._blocks.run_rows(trunk_1ND, positions_N, attend, skip, some)
            finals.append(self._decoder.final_hidden(hidden_GND[:, -1]))
        context.final_hidden_GD = torch.cat(finals)
        return context

    @torch.inference_mode()
    def extend(self, contexts: Sequence[EngineContext], tokens: Sequence[int], drafts: Drafts | None = None) -> None:
        """Append one token to each context, all in one step.

        Args:
            contexts: what to extend.
            tokens: the token each gets.
            drafts: tokens that may follow it, from `draft`. They are computed in the same step; a later token that is
                the next draft token costs nothing, and any other leaves no trace of the drafts.

        Raises:
            InvalidValueError: a context is full, or the lists differ in length.
        """
        drafts = [()] * len(contexts) if drafts is None else drafts
        if not len(contexts) == len(tokens) == len(drafts):
            raise InvalidValueError(f"{len(contexts)} contexts but {len(tokens)} tokens; give one token a context")
        if any(context.length >= self.context_length for context in contexts):
            raise InvalidValueError(f"a context already holds {self.context_length} tokens, the model's context length")
        runs: list[TokenRun] = []
        computed: list[EngineContext] = []
        for context, token, draft in zip(contexts, tokens, drafts, strict=True):
            if self.has_draft(context, token):
                _, final_hidden_GD = context.drafts[0]
                context.append(token, final_hidden_GD, context.drafts[1:])
            else:
                fitting = [token, *draft][: self.context_length - context.length]
                runs.append(TokenRun(context, context.length, fitting))
                computed.append(context)
        if not runs:
            return
        final_GND, first = self._steps.all_rows(runs), 0
        for context, run in zip(computed, runs, strict=True):
            after = [(token, final_GND[:, first + offset]) for offset, token in enumerate(run.tokens)]
            context.append(*after[0], after[1:])
            first += len(after)

    def has_draft(self, context: EngineContext, token: int) -> bool:
        """True if the token is the context's next draft token, so that appending it needs no computation."""
        return bool(context.drafts) and context.drafts[0][0] == token

    @torch.inference_mode()
    def draft(
        self,
        contexts: Sequence[EngineContext],
        tokens: Sequence[int],
        requests: Sequence[VoteRequest],
        counts: Sequence[int],
    ) -> list[list[int]]:
        """Draft tokens with the public model alone, to follow the next token of each context.

        Args:
            contexts: the contexts; unchanged but for what their caches hold beyond their length.
            tokens: the token each is about to get.
            requests: the request for the token after that one.
            counts: most draft tokens of each; fewer where the window ends, or the public model has no vote.
        """
        runs = [[token] for token in tokens]
        room = [self.context_length - context.length - 1 for context in contexts]
        counts = [min(count, most) for count, most in zip(counts, room, strict=True)]
        for position in range(max(counts, default=0)):
            drafting = [number for number, count in enumerate(counts) if position < count]
            if not drafting:
                break
            hidden_1ND = self._steps.public_row(
                [
                    TokenRun(contexts[number], contexts[number].length + position, runs[number][-1:])
                    for number in drafting
                ]
            )
            for logits_V, number in zip(self._decoder.logits(hidden_1ND[0]).cpu().numpy(), drafting, strict=True):
                try:
                    runs[number].append(public_vote(logits_V, requests[number].after(position)))
                except InvalidValueError:
                    # The step that reaches this position finds it, and says whose it is.
                    counts[number] = position
        return [run[1:] for run in runs]

    def votes(
        self, contexts: Sequence[EngineContext], requests: Sequence[VoteRequest]
    ) -> list[NDArray[np.int64] | Exception]:
        """Cast every world's vote for the next token of each context, int64[M], or say why there is none."""
        return votes_from_logits(self, contexts, requests)

    def public_votes(self, contexts: Sequence[EngineContext], requests: Sequence[VoteRequest]) -> list[int | Exception]:
        """Cast the public model's own vote for the next token of each context, or say why there is none."""
        return public_votes_from_logits(self, contexts, requests)

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
        _validate.in_vocabulary(prompt, self.vocab_size)

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

    def _trunk_attention(self, context: EngineContext) -> Attend:
        """Attention within a prompt for the one row of the trunk."""

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self._decoder.attention_over(layer, query, *context.caches[layer].append(0, key, value))

        return attend


def _final_hidden(context: EngineContext) -> Tensor:
    assert context.final_hidden_GD is not None, "a context comes from Engine.open"
    return context.final_hidden_GD
