"""Sums of all worlds' integer votes at every position of test texts, under the corpus guarantee.

Texts are read teacher-forced. What a token is drawn from follows from the public row and the sum alone, so one set of
sums serves every gain and temperature at their clip. A file of sums says what private worlds say of the texts: keep it
where the run is kept.

Shape suffixes: N positions, M worlds, K candidates, I texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent._files import atomic_write
from reticent.dp.release import integer_votes, public_log_probabilities
from reticent.engine.teacher_forced import TeacherForcing

NOT_A_CANDIDATE = -1


@dataclass(frozen=True, eq=False)
class CorpusSums:
    """Everything that the release of each position's token depends on, and the token that the text has there.

    Attributes:
        offsets: where texts begin, int64[I + 1].
        target_N: the text's own next token as a column of the candidates; `NOT_A_CANDIDATE` where it is none, int64[N].
        public_logp_NK: the public model's log-probabilities over the candidates alone, float64[N, K].
        full_logp_NK: the full-data adapter's, likewise; of no columns without one.
        sum_NK: sums of integer votes, int64[N, K].
    """

    offsets: NDArray[np.int64]
    target_N: NDArray[np.int64]
    public_logp_NK: NDArray[np.float64]
    full_logp_NK: NDArray[np.float64]
    sum_NK: NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write one compressed `.npz`, durably.

        Raises:
            StorageError: it cannot be written.
        """

        def write(scratch: Path) -> None:
            with scratch.open("wb") as file:
                np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})

        atomic_write(path, write)

    @classmethod
    def load(cls, path: Path) -> "CorpusSums":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def sum_votes(
    forcing: TeacherForcing,
    tokens: Sequence[int],
    num_candidates: int,
    clip: float,
    occupied_M: NDArray[np.bool_],
    is_scored_N: NDArray[np.bool_] | None = None,
) -> CorpusSums:
    """Add up the worlds' integer votes at every position of one text.

    Args:
        forcing: the public model, the worlds and, if there is one, the full-data adapter.
        tokens: the text, at least two tokens.
        num_candidates: k.
        clip: c, in nats.
        occupied_M: whether any place of a world is taken.
        is_scored_N: the tokens that are predicted, bool[tokens]; all but the first unless given.

    Raises:
        InvalidValueError: the text or k is outside its range, or the public model gives no distribution.
    """
    targets, publics, fulls, sums = [], [], [], []
    for block in forcing.blocks(tokens, num_candidates, normalise_every=len(tokens)):
        for position, candidates_K in enumerate(block.candidates_NK):
            if is_scored_N is not None and not is_scored_N[block.start + position + 1]:
                continue
            public_logp_K = public_log_probabilities(block.public_NK[position])
            votes_MK = integer_votes(public_logp_K, block.worlds_MNK[:, position], occupied_M, clip)
            place = np.flatnonzero(candidates_K == tokens[block.start + position + 1])
            targets.append(int(place[0]) if place.size else NOT_A_CANDIDATE)
            publics.append(public_logp_K)
            sums.append(votes_MK.sum(0))
            fulls.append(np.zeros(0) if block.full_NK is None else public_log_probabilities(block.full_NK[position]))
    return CorpusSums(
        np.array([0, len(targets)]), np.array(targets), np.stack(publics), np.stack(fulls), np.stack(sums)
    )


def concatenate_sums(parts: Sequence[CorpusSums]) -> CorpusSums:
    """One set of sums over all texts of several, in order; at least one."""
    starts = np.cumsum([0, *(len(part.target_N) for part in parts)])
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(CorpusSums)
        if field.name != "offsets"
    }
    return CorpusSums(offsets=starts, **joined)
