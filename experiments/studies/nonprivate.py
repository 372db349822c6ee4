"""The noiseless release: the realised world's own vote, token after token, and what it gives away.

It is the ceiling of utility that calibrated noise is measured against, and no protection: with the coins public, each
token tells for certain which worlds would have written it, so that the worlds that wrote the whole text so far are all
that an adversary still has to choose from.

Shape suffixes: N positions, M worlds.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from reticent._validate import integer_in_range
from reticent.evaluation._votes import votes_table


def noiseless_tokens(votes_NM: NDArray[np.integer], secret: int) -> NDArray[np.int64]:
    """Return the realised world's vote at each position, int64[N].

    Raises:
        InvalidValueError: votes that are not a table of token ids, or a secret that is not a world.
    """
    num_worlds = votes_table(votes_NM).shape[1]
    return votes_NM[:, integer_in_range("secret", secret, 0, num_worlds - 1)].astype(np.int64)


def noiseless_information_nats(votes_NM: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return I(S; Y_1:n) after each of N noiseless releases, for S uniform over worlds, exact, in nats, float64[N].

    A release is a function of S, so this is the entropy of the partition of worlds by what they have written so far, at
    most log m. For teacher-forced votes, whose later rows do not depend on what was released.

    Raises:
        InvalidValueError: votes that are not a table of token ids.
    """
    num_worlds = votes_table(votes_NM).shape[1]
    class_M = np.zeros(num_worlds, dtype=np.int64)
    nats_N = np.empty(votes_NM.shape[0])
    for position, votes_M in enumerate(votes_NM):
        _, vote_M = np.unique(votes_M, return_inverse=True)
        _, class_M, size = np.unique(class_M * num_worlds + vote_M, return_inverse=True, return_counts=True)
        nats_N[position] = entr(size / num_worlds).sum()
    return nats_N
