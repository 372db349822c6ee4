"""The forward pass of one module over a batch of texts, with the adapter on or off and a shared beginning read once.

Shape suffixes: B texts, T positions read, N scored tokens, D hidden size, V vocabulary.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from reticent.errors import ModelError
from reticent.models.token_signals import signals_of_hidden, signals_of_logits, split_signals
from reticent.protocols import TokenSignals
from reticent.training.lean_lora import lean_lora
from reticent.training.techniques.registry import demonstration_ids, disabled, positions_taken
from reticent.training.vocabulary_head import VocabularyHead

Draw = Callable[[NDArray[np.float32]], NDArray[np.int64]]

_PROBE_IDS = np.array([1, 2, 3, 5], dtype=np.int64)
_NO_IDS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ScoredSequence:
    """One text behind whatever precedes it.

    Attributes:
        number: its place in the list that is scored.
        token_ids: all tokens, int64[N].
        is_scored: the tokens that are predicted, bool[N]; the others are given.
        encoder_ids: the encoder's input, or None for a causal model.
    """

    number: int
    token_ids: NDArray[np.int64]
    is_scored: NDArray[np.bool_]
    encoder_ids: NDArray[np.int64] | None

    @property
    def num_scored(self) -> int:
        """The number of predicted tokens."""
        return int(self.is_scored.sum())

    @property
    def cost(self) -> int:
        """Tokens that the model reads."""
        return len(self.token_ids) + (0 if self.encoder_ids is None else len(self.encoder_ids))


@dataclass(frozen=True, eq=False)
class SharedBeginning:
    """The keys and values of a beginning that several sequences share, and its number of tokens; 0 for none."""

    num_tokens: int
    cache: Any

    def for_batch(self, size: int) -> Any:
        """Return a separate copy of the cache for a batch of `size` sequences."""
        own = copy.deepcopy(self.cache)
        own.batch_select_indices(torch.zeros(size, dtype=torch.int64, device=own.layers[0].keys.device))
        return own


_NOTHING_SHARED = SharedBeginning(0, None)


class TextForward:
    """Runs a `transformers`-style module on texts; see the module's docstring.

    Demonstrations of in-context learning are left to the caller to put before a causal model's texts, so that they are
    read once and not with every text; an encoder-decoder reads them in its encoder.
    """

    def __init__(self, module: nn.Module, *, with_adapter: bool) -> None:
        """Take a module into evaluation mode; without its adapter the base beneath it is what runs.

        Raises:
            ModelError: its adapters are merged into the base, or it predicts no tokens.
        """
        if any(getattr(part, "merged", False) for part in module.modules()):
            raise ModelError("the adapter is merged into its base, where rounding has changed both; load it unmerged")
        self._module: Any = module.eval()
        self._with_adapter = with_adapter
        # The model inside all wrappers. What adapters hang in its layers, it computes with.
        self._inner: Any = next(part for part in module.modules() if isinstance(part, PreTrainedModel))
        self.is_encoder_decoder = bool(self._inner.config.is_encoder_decoder)
        self.demonstration_ids = demonstration_ids(module) if with_adapter else _NO_IDS
        if len(self.demonstration_ids):
            self._module = self._inner
        self._head = VocabularyHead(self._inner)
        probe = ScoredSequence(
            0, _PROBE_IDS, np.arange(len(_PROBE_IDS)) > 0, _PROBE_IDS if self.is_encoder_decoder else None
        )
        with torch.inference_mode(), self.ready():
            self._skips_head = self._head.is_plain and self._head.is_last(
                lambda: self._logits([probe], _NOTHING_SHARED, 0)
            )

    @property
    def inner(self) -> PreTrainedModel:
        """The `transformers` model inside all wrappers."""
        model: PreTrainedModel = self._inner
        return model

    @property
    def dtype(self) -> torch.dtype:
        """The type the model computes in."""
        dtype: torch.dtype = self._inner.dtype
        return dtype

    @property
    def num_embeddings(self) -> int:
        """Token ids that have an embedding."""
        return int(unwrap(self._inner.get_input_embeddings()).weight.shape[0])

    @property
    def vocab_size(self) -> int:
        """Entries of a row of logits, V."""
        return int(unwrap(self._inner.get_output_embeddings()).weight.shape[0])

    @property
    def context_length(self) -> int | None:
        """The most tokens of a sequence, without virtual tokens and demonstrations; None for no limit."""
        limit = getattr(self._inner.config, "max_position_embeddings", None)
        if limit is None or self.is_encoder_decoder:
            return limit
        taken = len(self.demonstration_ids)
        if self._with_adapter and not taken:
            taken = positions_taken(self._module)
        return int(limit) - taken

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Within this context the adapter is on or off as asked for; everything below runs within it."""
        if self._with_adapter:
            with lean_lora(self._module):
                yield
        else:
            with disabled(self._module):
                yield

    def read_shared(self, token_ids: NDArray[np.int64]) -> SharedBeginning:
        """Read what all sequences begin with. A decoder's beginning is read with every sequence."""
        if not len(token_ids) or self.is_encoder_decoder:
            return _NOTHING_SHARED
        caches: list[Any] = []

        def forward() -> None:
            ids = torch.from_numpy(token_ids)[None].to(self._inner.device)
            caches.append(self._module(input_ids=ids, use_cache=True).cache)

        self._head.inputs_of(forward)
        if not all(hasattr(layer, "keys") for layer in getattr(caches[0], "layers", [None])):
            raise ModelError("the model keeps no keys and values of what it reads, so texts cannot share a prefix")
        return SharedBeginning(len(token_ids), caches[0])

    def signals(
        self, batch: Sequence[ScoredSequence], shared: SharedBeginning, pad_id: int
    ) -> list[TokenSignals | None]:
        """The signals of each sequence, which begins with what is shared and has at least one scored token."""
        lead = self._lead + shared.num_tokens
        width = self._width(batch, shared)
        scored_BT = torch.zeros(len(batch), width, dtype=torch.bool)
        for row, sequence in zip(scored_BT, batch, strict=True):
            row[: len(sequence.token_ids) - lead] = torch.from_numpy(sequence.is_scored[lead:])
        targets_N = torch.from_numpy(np.concatenate([s.token_ids[s.is_scored] for s in batch]))
        scored_BT, targets_N = scored_BT.to(self._inner.device), targets_N.to(self._inner.device)

        # Virtual tokens have leading rows: those of the tokens are the last.
        if self._skips_head:
            hidden_BTD = self._head.inputs_of(lambda: self._logits(batch, shared, pad_id))
            rows_ND = hidden_BTD[:, -width:][scored_BT]
            stacked = signals_of_hidden(rows_ND, self._head.weight, self._head.bias, targets_N)
        else:
            stacked = signals_of_logits(self._logits(batch, shared, pad_id)[:, -width:][scored_BT], targets_N)
        return split_signals(stacked, [sequence.num_scored for sequence in batch])

    def next_token_logits(self, sequence: ScoredSequence) -> Tensor:
        """The logits that predict each scored token of one sequence, [N, V]."""
        logits_TV = self._logits([sequence], _NOTHING_SHARED, 0)[0]
        rows_TV = logits_TV[-(len(sequence.token_ids) - self._lead) :]
        return rows_TV[torch.from_numpy(sequence.is_scored[self._lead :]).to(rows_TV.device)]

    def continuations(
        self, ids_BT: NDArray[np.int64], encoder_ids: Sequence[NDArray[np.int64] | None], draw: Draw, num_tokens: int
    ) -> NDArray[np.int64]:
        """Go on from beginnings of equal length, a token at a time, int64[B, num_tokens].

        Args:
            ids_BT: the beginnings; a causal model's hold at least one token.
            encoder_ids: what an encoder-decoder's encoder reads for each.
            draw: from next-token logits, float32[B, V], to tokens, int64[B].
            num_tokens: how many to add to each.
        """
        new_BN = np.zeros((len(ids_BT), num_tokens), dtype=np.int64)
        cache: Any = None
        for step in range(num_tokens):
            if self.is_encoder_decoder:
                whole = np.concatenate([ids_BT, new_BN[:, : step + 1]], axis=1)
                given = np.zeros(whole.shape[1], dtype=np.bool_)
                rows = [ScoredSequence(0, ids, given, read) for ids, read in zip(whole, encoder_ids, strict=True)]
                logits_BV = self._decoder_logits(rows, 0)[:, -1]
            else:
                # Virtual tokens are in the cache once the beginning is read, so the wrapped model continues from there.
                model = self._module if cache is None else self._inner
                read = ids_BT if cache is None else new_BN[:, step - 1 : step]
                output = model(input_ids=torch.from_numpy(read).to(self._inner.device), cache=cache, use_cache=True)
                logits_BV, cache = output.logits[:, -1], output.cache
            new_BN[:, step] = draw(logits_BV.float().cpu().numpy())
        return new_BN

    @property
    def _lead(self) -> int:
        """Row t of the logits predicts token t + lead of what is read: a decoder has a start token before its own."""
        return 0 if self.is_encoder_decoder else 1

    def _width(self, batch: Sequence[ScoredSequence], shared: SharedBeginning) -> int:
        """Positions that the batch reads: the last token of a text is only predicted."""
        return max(len(sequence.token_ids) for sequence in batch) - self._lead - shared.num_tokens

    def _logits(self, batch: Sequence[ScoredSequence], shared: SharedBeginning, pad_id: int) -> Tensor:
        """[B, virtual + T, V]."""
        if self.is_encoder_decoder:
            return self._decoder_logits(batch, pad_id)
        # No attention mask: with the padding on the right, causal attention hides it from every real token.
        ids = self._pad_rows([s.token_ids[shared.num_tokens : -1] for s in batch], pad_id)
        if shared.num_tokens:
            # Virtual tokens come first in the cache, so the wrapped model continues from there.
            cache = shared.for_batch(len(batch))
            logits: Tensor = self._inner(input_ids=ids, cache=cache, use_cache=True).logits
        else:
            logits = self._module(input_ids=ids, use_cache=False).logits
        return logits

    def _decoder_logits(self, batch: Sequence[ScoredSequence], pad_id: int) -> Tensor:
        read = [_NO_IDS if s.encoder_ids is None else s.encoder_ids for s in batch]
        start = np.array([self._inner.config.decoder_start_token_id], dtype=np.int64)
        logits: Tensor = self._module(
            input_ids=self._pad_rows(read, pad_id),
            attention_mask=self._pad_rows([np.ones_like(ids) for ids in read], 0),
            decoder_input_ids=self._pad_rows([np.concatenate([start, s.token_ids[:-1]]) for s in batch], pad_id),
            use_cache=False,
        ).logits
        return logits

    def _pad_rows(self, rows: Sequence[NDArray[np.int64]], value: int) -> Tensor:
        padded = torch.full((len(rows), max(len(row) for row in rows)), value, dtype=torch.int64)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = torch.from_numpy(row)
        return padded.to(self._inner.device)


def unwrap(part: Any) -> Any:
    """The base's own module beneath what an adapter put in its place."""
    for name in ("original_module", "base_layer"):
        part = getattr(part, name, part)
    return part
