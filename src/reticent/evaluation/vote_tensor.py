"""The votes of all worlds at every position of a set of texts: computed once, studied many times.

A vote does not depend on the budget, on the secret or on noise, so one tensor serves every release mechanism. It holds
test texts' tokens and what private worlds say about them: keep it where the run directory is kept.

Shape suffixes: N positions of all texts together, M worlds, K candidates, L numbers of candidates, P positions with
normalisers, F positions with logits, I texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent._files import atomic_write
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.stats.means import TextSpans


@dataclass(frozen=True)
class DecoderVotes:
    """One decoder's votes at every position; all rows see the same candidates and the same coins.

    Attributes:
        worlds_NM: each world's vote, int32[N, M].
        public_N: the public model's, int32[N].
        full_N: the full-data adapter's, int32[N]; empty without one.
        unanimous_NL: true where all worlds agree with L candidates allowed, bool[N, L].
    """

    worlds_NM: NDArray[np.int32]
    public_N: NDArray[np.int32]
    full_N: NDArray[np.int32]
    unanimous_NL: NDArray[np.bool_]

    @property
    def dissent(self) -> NDArray[np.bool_]:
        """Positions at which at least two worlds differ, bool[N]."""
        dissent: NDArray[np.bool_] = (self.worlds_NM != self.worlds_NM[:, :1]).any(axis=1)
        return dissent

    @property
    def num_active(self) -> NDArray[np.int64]:
        """The number of distinct votes at each position, int64[N]."""
        ordered_NM = np.sort(self.worlds_NM, axis=1)
        count: NDArray[np.int64] = 1 + (ordered_NM[:, 1:] != ordered_NM[:, :-1]).sum(axis=1)
        return count


@dataclass(frozen=True)
class VoteTensor:
    """Votes, and what stability and sampling fidelity need beside them.

    Attributes:
        offsets: where texts begin, int64[I + 1]; see `TextSpans`.
        seconds_I: time the models took to read each text, float64[I].
        targets_N: the text's own next token, int32[N].
        candidates_NK: the public model's candidates, most likely first, int32[N, K].
        greedy, gumbel: the votes of either decoder.
        full_argmax_N: the full-data adapter's most likely token among all tokens, int32[N]; empty without one.
        candidate_counts_L: the numbers of candidates of `unanimous_NL` and `mass_PL`, rising, int64[L].
        mass_positions_P: positions with normalisers, int64[P].
        mass_PL: share of probability inside the candidates, mean over worlds, float32[P, L].
        logit_positions_F: positions with logits, int64[F].
        logits_FMK: every world's logits at the candidates, less the largest of each row, float16[F, M, K].
    """

    offsets: NDArray[np.int64]
    seconds_I: NDArray[np.float64]
    targets_N: NDArray[np.int32]
    candidates_NK: NDArray[np.int32]
    greedy: DecoderVotes
    gumbel: DecoderVotes
    full_argmax_N: NDArray[np.int32]
    candidate_counts_L: NDArray[np.int64]
    mass_positions_P: NDArray[np.int64]
    mass_PL: NDArray[np.float32]
    logit_positions_F: NDArray[np.int64]
    logits_FMK: NDArray[np.float16]
    spans: TextSpans = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", TextSpans(self.offsets))

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return int(self.greedy.worlds_NM.shape[1])

    @property
    def num_positions(self) -> int:
        """N."""
        return self.spans.num_positions

    @property
    def num_candidates(self) -> int:
        """K."""
        return int(self.candidates_NK.shape[1])

    @property
    def has_full(self) -> bool:
        """True if there is a full-data adapter."""
        return self.greedy.full_N.size > 0

    def votes(self, decoder: Decoder) -> DecoderVotes:
        """The votes of a decoder."""
        return self.greedy if decoder is Decoder.GREEDY else self.gumbel

    def save(self, path: Path) -> None:
        """Write one compressed `.npz`, durably.

        Raises:
            StorageError: it cannot be written.
        """
        arrays = _flatten_arrays(self)

        def write(scratch: Path) -> None:
            with scratch.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

        atomic_write(path, write)

    @classmethod
    def load(cls, path: Path) -> "VoteTensor":
        """Read what `save` wrote."""
        content: dict[str, Any] = {}
        with np.load(path, allow_pickle=False) as arrays:
            content |= {name: arrays[name] for name in _plain_fields()}
            for decoder in _DECODERS:
                content[decoder] = DecoderVotes(**{f.name: arrays[f"{decoder}.{f.name}"] for f in fields(DecoderVotes)})
        return cls(**content)


_DECODERS = ("greedy", "gumbel")
_SHARED = ("candidate_counts_L",)
_STARTS = ("offsets",)
_POSITIONS = ("mass_positions_P", "logit_positions_F")


def concatenate_votes(parts: Sequence[VoteTensor]) -> VoteTensor:
    """One tensor over all texts of several, in order.

    Raises:
        InvalidValueError: there is none, or they do not agree in worlds, candidates or numbers of candidates.
    """
    if not parts:
        raise InvalidValueError("there are no votes to join; give at least one text")
    if len({(part.num_worlds, part.num_candidates, part.has_full, *part.candidate_counts_L) for part in parts}) > 1:
        raise InvalidValueError("votes of different settings cannot be joined")
    starts = np.cumsum([0, *(part.num_positions for part in parts)])
    joined = _join_arrays(parts, _plain_fields(), starts)
    for decoder in _DECODERS:
        votes = [getattr(part, decoder) for part in parts]
        joined[decoder] = DecoderVotes(**_join_arrays(votes, [f.name for f in fields(DecoderVotes)], starts))
    return VoteTensor(**joined)


def _join_arrays(parts: Sequence[Any], names: Sequence[str], starts: NDArray[np.int64]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in names:
        arrays = [getattr(part, name) for part in parts]
        if name in _SHARED:
            result[name] = arrays[0]
        elif name in _STARTS:
            shifted = [array[1:] + start for array, start in zip(arrays, starts, strict=False)]
            result[name] = np.concatenate([arrays[0][:1], *shifted])
        elif name in _POSITIONS:
            result[name] = np.concatenate([array + start for array, start in zip(arrays, starts, strict=False)])
        else:
            result[name] = np.concatenate(arrays)
    return result


def _plain_fields() -> list[str]:
    return [f.name for f in fields(VoteTensor) if f.init and f.name not in _DECODERS]


def _flatten_arrays(tensor: VoteTensor) -> Mapping[str, NDArray[Any]]:
    arrays = {name: getattr(tensor, name) for name in _plain_fields()}
    for decoder in _DECODERS:
        votes = getattr(tensor, decoder)
        arrays |= {f"{decoder}.{f.name}": getattr(votes, f.name) for f in fields(DecoderVotes)}
    return arrays
