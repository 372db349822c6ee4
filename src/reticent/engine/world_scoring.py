"""Likelihoods of texts under each world: the worlds as one another's shadow models, in batched passes.

Texts of like length go through the blocks below the lowest adapter once for all worlds, then through the others with
some worlds at a time, each beside the others in one matrix product; of the vocabulary only slices of rows exist. The
numbers are those of PEFT on one world's unmerged adapter, up to rounding.

Shape suffixes: B texts, G worlds at once, M worlds, N = B · T positions, S scored tokens of a batch, D hidden size.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent import _validate
from reticent._memory import keep_freed_memory
from reticent.errors import InvalidValueError
from reticent.layers.adapted_blocks import AdaptedBlocks
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import BatchedDecoder
from reticent.models.token_signals import log_probabilities_of_hidden, signals_of_hidden, split_signals
from reticent.protocols import TokenSignals
from reticent.text.template import EncodedText, TextTemplate, encode

_TEXT_TOKENS = 1024
"""Tokens of texts that go through the trunk at once, padding included."""
_ROW_TOKENS = 8192
"""The same times worlds, in the adapted blocks; bounds memory for any m."""


class WorldScorer:
    """Scores texts under every world of a run.

    Attributes:
        num_worlds: m.
    """

    def __init__(
        self,
        decoder: BatchedDecoder,
        adapters: StackedAdapters,
        tokenizer: Any,
        template: TextTemplate,
        fingerprint: str,
    ) -> None:
        """Take a base and its worlds.

        Args:
            decoder: the base.
            adapters: one adapter a world.
            tokenizer: the base's.
            template: what the worlds were trained with.
            fingerprint: identifies base, adapters and tokenizer.
        """
        keep_freed_memory()
        self._decoder = decoder
        self._blocks = AdaptedBlocks(decoder, adapters)
        self._tokenizer, self._template = tokenizer, template
        self.num_worlds = adapters.num_adapters
        identity = (fingerprint, template.model_dump_json(), str(decoder.architecture.dtype))
        self.fingerprint = hashlib.sha256("\n".join(("reticent worlds 1", *identity)).encode()).hexdigest()

    @torch.inference_mode()
    def mean_logps(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> NDArray[np.float64]:
        """Mean log p of a token in nats, of every text under every world, float64[texts, M].

        NaN for a text of which no token is predicted.

        Args:
            texts: the texts.
            progress: called with the number of texts that have just been finished.

        Raises:
            InvalidValueError: a text is longer than the base's context.
        """
        encoded = self._encode(texts)
        result = np.full((len(texts), self.num_worlds), np.nan)
        num_unscored = sum(not text.num_scored for text in encoded)
        if progress is not None and num_unscored:
            progress(num_unscored)
        for batch in self._batches(encoded):
            for worlds, scored_GSD in self._final_hidden(batch, slice(0, self.num_worlds)):
                logp_GS = self._log_probabilities(scored_GSD, batch.targets_S)
                sums_GB = np.add.reduceat(logp_GS, np.cumsum([0, *batch.counts[:-1]]), axis=1)
                result[batch.numbers, worlds] = (sums_GB / batch.counts).T
            if progress is not None:
                progress(len(batch.numbers))
        return result

    def world(self, index: int) -> "OneWorld":
        """One world as a `reticent.protocols.Scorer`.

        Raises:
            InvalidValueError: there is no such world.
        """
        _validate.integer_in_range("world", index, 0, self.num_worlds - 1)
        return OneWorld(self, index)

    @torch.inference_mode()
    def signals(self, texts: Sequence[str], world: int) -> list[TokenSignals | None]:
        """All signals of texts under one world, in order; see `world`."""
        result: list[TokenSignals | None] = [None] * len(texts)
        architecture = self._decoder.architecture
        for batch in self._batches(self._encode(texts)):
            for _, scored_GSD in self._final_hidden(batch, slice(world, world + 1)):
                stacked = signals_of_hidden(
                    scored_GSD[0], architecture.head_VD, architecture.head_bias_V, batch.targets_S
                )
                parts = split_signals(stacked, batch.counts.tolist())
                for number, part in zip(batch.numbers.tolist(), parts, strict=True):
                    result[number] = part
        return result

    def _encode(self, texts: Sequence[str]) -> list[EncodedText]:
        encoded = encode(self._tokenizer, self._template, texts)
        limit = self._decoder.architecture.context_length
        longest = max((len(text.token_ids) for text in encoded), default=0)
        if longest > limit:
            raise InvalidValueError(
                f"a text of {longest} tokens does not fit the base's context of {limit}; use a template with a lower "
                f"max_tokens than {self._template.max_tokens}"
            )
        return encoded

    def _batches(self, encoded: Sequence[EncodedText]) -> Iterator["_TextBatch"]:
        """Texts with scored tokens, those of like length together."""
        lengths = np.array([len(text.token_ids) for text in encoded], dtype=np.int64)
        order = [number for number in np.argsort(lengths, kind="stable").tolist() if encoded[number].num_scored]
        start = 0
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= _TEXT_TOKENS:
                stop += 1
            numbers = order[start:stop]
            device = self._decoder.architecture.device
            yield _TextBatch.of(np.array(numbers), [encoded[number] for number in numbers], device)
            start = stop

    def _final_hidden(self, batch: "_TextBatch", worlds: slice) -> Iterator[tuple[slice, Tensor]]:
        """Some worlds at a time, their final hidden states at the scored rows, [G, S, D]."""
        attend, num_tokens = self._decoder.attention_over, batch.tokens_BT.numel()
        positions_T = torch.arange(batch.tokens_BT.shape[1], device=batch.tokens_BT.device)
        trunk_1ND = self._blocks.run_trunk(batch.tokens_BT, positions_T, attend)
        for some in self._blocks.parts(_ROW_TOKENS, num_tokens, worlds):
            hidden_GND = self._blocks.run_rows(trunk_1ND, positions_T, attend, 0, some)
            yield some, self._decoder.final_hidden(hidden_GND[:, batch.scored_N])

    def _log_probabilities(self, scored_GSD: Tensor, targets_S: Tensor) -> NDArray[np.float64]:
        architecture = self._decoder.architecture
        targets = targets_S.repeat(len(scored_GSD))
        logp = log_probabilities_of_hidden(
            scored_GSD.flatten(0, 1), architecture.head_VD, architecture.head_bias_V, targets
        )
        result: NDArray[np.float64] = logp.view(scored_GSD.shape[:2]).double().cpu().numpy()
        return result


@dataclass(frozen=True)
class OneWorld:
    """One world of a `WorldScorer`; implements `reticent.protocols.Scorer`. Its parameters are not available."""

    worlds: WorldScorer
    index: int
    is_white_box: bool = False

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all worlds' and this one's number."""
        return hashlib.sha256(f"reticent world 1\n{self.worlds.fingerprint}\n{self.index}".encode()).hexdigest()

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """The signals of each text, in order; None for a text of which no token is predicted."""
        return self.worlds.signals(texts, self.index)


@dataclass(frozen=True, eq=False)
class _TextBatch:
    """Texts padded on the right, whose last tokens are only predicted.

    Attributes:
        numbers: the texts' places in the list that is scored, int64[B].
        tokens_BT: what is read, int64[B, T].
        scored_N: which of the B · T positions predict a scored token.
        targets_S: the scored tokens, text after text.
        counts: scored tokens of each text, int64[B].
    """

    numbers: NDArray[np.int64]
    tokens_BT: Tensor
    scored_N: Tensor
    targets_S: Tensor
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.int64], texts: Sequence[EncodedText], device: torch.device) -> "_TextBatch":
        width = max(len(text.token_ids) for text in texts) - 1
        tokens_BT = torch.zeros(len(texts), width, dtype=torch.int64)
        scored_BT = torch.zeros(len(texts), width, dtype=torch.bool)
        for tokens, scored, text in zip(tokens_BT, scored_BT, texts, strict=True):
            read = torch.from_numpy(text.token_ids[:-1])
            tokens[: len(read)] = read
            scored[: len(read)] = torch.from_numpy(text.is_scored[1:])
        targets = np.concatenate([text.token_ids[text.is_scored] for text in texts])
        return cls(
            numbers,
            tokens_BT.to(device),
            scored_BT.flatten().to(device),
            torch.from_numpy(targets).to(device),
            np.array([text.num_scored for text in texts], dtype=np.int64),
        )
