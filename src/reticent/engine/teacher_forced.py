"""Teacher-forced logits of the public model, every world and the full-data adapter at every position of a given text.

Teacher forcing: position n holds tokens 0 … n and predicts token n + 1. The text is read once; the blocks below the
lowest adapter run for one row, and the worlds go through the others some at a time, all positions together. The
numbers are those of `Engine.open` and `Engine.extend` up to rounding, without a cache.

Contract: what is computed, and in which order, is a function of the tokens alone.

Shape suffixes: G rows, M worlds, N positions, K candidates, D hidden size, V vocabulary, P normalised positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent._validate import integer_in_range
from reticent.errors import InvalidValueError
from reticent.layers.adapted_blocks import AdaptedBlocks
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import BatchedDecoder

_TOKENS_AT_ONCE = 4096
"""Most row-tokens that go through the adapted blocks at once; bounds memory for any m."""
_POSITIONS_AT_ONCE = 32
"""Positions in one `PositionBlock`."""
_LOGIT_ROWS_AT_ONCE = 256
"""Rows of the whole vocabulary computed at once."""

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class PositionBlock:
    """Some consecutive positions of a text.

    Attributes:
        start: the first position of the block.
        candidates_NK: the public model's k most likely tokens, most likely first (the lower id among equals), so that
            the first columns are the candidates of any smaller k; int64[N, K].
        worlds_MNK: every world's logits at the candidates; float32[M, N, K].
        public_NK, full_NK: the public model's and the full-data adapter's (None without one); float32[N, K].
        full_argmax_N: the full-data adapter's most likely token over the whole vocabulary; int64[N]. The public
            model's is the first candidate.
        normalised_P: the positions, counted from the start of the block, with a normaliser; int64[P].
        worlds_log_normaliser_MP: log Σ exp(logits) over the vocabulary of each world there; float32[M, P].
    """

    start: int
    candidates_NK: NDArray[np.int64]
    worlds_MNK: Float32
    public_NK: Float32
    full_NK: Float32 | None
    full_argmax_N: NDArray[np.int64] | None
    normalised_P: NDArray[np.int64]
    worlds_log_normaliser_MP: Float32


@dataclass(frozen=True)
class FinalStates:
    """Final hidden states of a text, [N, D] of the public row and of the full-data adapter, [M, N, D] of the worlds."""

    public_ND: Tensor
    worlds_MND: Tensor
    full_ND: Tensor | None

    def at(self, positions_P: Tensor) -> "FinalStates":
        """The states at some positions."""
        full_PD = None if self.full_ND is None else self.full_ND[positions_P]
        return FinalStates(self.public_ND[positions_P], self.worlds_MND[:, positions_P], full_PD)


class TeacherForcing:
    """Reads whole texts with the public model, m worlds and, if there is one, the full-data adapter.

    Args:
        decoder: the base.
        worlds: the worlds' adapters.
        full: the full-data adapter, M = 1, or None.
    """

    def __init__(self, decoder: BatchedDecoder, worlds: StackedAdapters, full: StackedAdapters | None = None) -> None:
        self._decoder = decoder
        self._num_worlds = worlds.num_adapters
        self._worlds = AdaptedBlocks(decoder, worlds)
        self._full = None if full is None else AdaptedBlocks(decoder, full)

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self._num_worlds

    @property
    def has_full(self) -> bool:
        """True if there is a full-data adapter."""
        return self._full is not None

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        return self._decoder.architecture.vocab_size

    @property
    def context_length(self) -> int:
        """The most tokens a text can hold."""
        return self._decoder.architecture.context_length

    @torch.inference_mode()
    def blocks(
        self,
        tokens: Sequence[int],
        num_candidates: int,
        normalise_every: int = 1,
        positions: NDArray[np.int64] | None = None,
    ) -> Iterator[PositionBlock]:
        """Evaluate a text and yield its positions 0 … len(tokens) − 2, or some of them, in blocks.

        Args:
            tokens: the text, at least two tokens; the last is predicted only.
            num_candidates: k.
            normalise_every: compute the worlds' normalisers at positions 0, s, 2 s, …; each costs m rows of the whole
                vocabulary.
            positions: those to yield, rising and at least one, int64; they are counted as if they stood alone.

        Raises:
            InvalidValueError: the text or k is outside its range.
        """
        integer_in_range("normalise_every", normalise_every, 1)
        if not 2 <= len(tokens) <= self.context_length:
            raise InvalidValueError(
                f"a text of {len(tokens)} tokens: it must have 2 to {self.context_length}, the model's context length"
            )
        integer_in_range("num_candidates", num_candidates, 1, self.vocab_size)
        states = self.final_states(tokens[:-1])
        if positions is not None:
            states = states.at(torch.from_numpy(positions).to(states.public_ND.device))
        count = len(states.public_ND)
        for start in range(0, count, _POSITIONS_AT_ONCE):
            stop = min(start + _POSITIONS_AT_ONCE, count)
            first = -start % normalise_every
            yield self._block(states, slice(start, stop), num_candidates, range(first, stop - start, normalise_every))

    @torch.inference_mode()
    def final_states(self, tokens: Sequence[int]) -> FinalStates:
        """The states from which `BatchedDecoder.logits` predicts the token after each of `tokens`, at least one."""
        device = self._decoder.architecture.device
        positions_N = torch.arange(len(tokens), device=device)
        tokens_N = torch.tensor(tokens, device=device)
        rows_GND = self._final_hidden(self._worlds, tokens_N, positions_N, num_public=1)
        full_ND = None
        if self._full is not None:
            full_ND = self._final_hidden(self._full, tokens_N, positions_N, num_public=0)[0]
        return FinalStates(rows_GND[0], rows_GND[1:], full_ND)

    def _final_hidden(self, blocks: AdaptedBlocks, tokens_N: Tensor, positions_N: Tensor, num_public: int) -> Tensor:
        """Final hidden states of the public row, where wanted, and then of each adapter: [G, N, D]."""
        attend = self._decoder.attention_over
        trunk_1ND = blocks.run_trunk(tokens_N, positions_N, attend)
        finals = []
        for some in blocks.parts(_TOKENS_AT_ONCE, len(positions_N)):
            skip = num_public if some.start == 0 else 0
            finals.append(self._decoder.final_hidden(blocks.run_rows(trunk_1ND, positions_N, attend, skip, some)))
        return torch.cat(finals)

    def _block(self, states: FinalStates, here: slice, num_candidates: int, normalised: range) -> PositionBlock:
        public_NV = self._decoder.logits(states.public_ND[here]).cpu().numpy()
        candidates_NK = np.stack([_rank_tokens(logits_V, num_candidates) for logits_V in public_NV])
        worlds_MND = states.worlds_MND[:, here]
        full_NK = full_argmax_N = None
        if states.full_ND is not None:
            full_NV = self._decoder.logits(states.full_ND[here]).cpu().numpy()
            full_NK = np.take_along_axis(full_NV, candidates_NK, axis=1)
            full_argmax_N = full_NV.argmax(axis=1)
        normalised_P = np.array(normalised, dtype=np.int64)
        return PositionBlock(
            start=here.start,
            candidates_NK=candidates_NK,
            worlds_MNK=self._candidate_logits(worlds_MND, candidates_NK),
            public_NK=np.take_along_axis(public_NV, candidates_NK, axis=1),
            full_NK=full_NK,
            full_argmax_N=full_argmax_N,
            normalised_P=normalised_P,
            worlds_log_normaliser_MP=self._log_normalisers(worlds_MND[:, torch.from_numpy(normalised_P)]),
        )

    def _candidate_logits(self, final_MND: Tensor, candidates_NK: NDArray[np.int64]) -> Float32:
        """Logits at each position's own candidates, float32[M, N, K]."""
        at_positions = [
            self._decoder.candidate_logits(final_MND[:, position], torch.from_numpy(candidates_K).to(final_MND.device))
            for position, candidates_K in enumerate(candidates_NK)
        ]
        return torch.stack(at_positions, dim=1).cpu().numpy()

    def _log_normalisers(self, final_MPD: Tensor) -> Float32:
        rows = final_MPD.flatten(0, 1)
        parts = [self._decoder.logits(some).logsumexp(-1) for some in torch.split(rows, _LOGIT_ROWS_AT_ONCE)]
        return torch.cat(parts).view(final_MPD.shape[:2]).cpu().numpy()


def _rank_tokens(logits_V: Float32, count: int) -> NDArray[np.int64]:
    """The `count` most likely tokens, most likely first, the lower id among equals."""
    if not np.isfinite(logits_V.max()):
        raise InvalidValueError("the public model's logits contain NaN or +inf, or are -inf throughout")
    cut = np.partition(logits_V, logits_V.size - count)[logits_V.size - count]
    contenders = np.flatnonzero(logits_V >= cut)
    ranked: NDArray[np.int64] = contenders[np.argsort(-logits_V[contenders], kind="stable")][:count].astype(np.int64)
    return ranked
