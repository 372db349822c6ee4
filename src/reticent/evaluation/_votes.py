"""The one check of a table of votes."""

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError


def votes_table(votes_NM: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return a table of votes, one row a position and one column a world, if it is one.

    Raises:
        InvalidValueError: not two-dimensional, not integers, or without worlds.
    """
    if votes_NM.ndim != 2 or votes_NM.shape[1] < 1 or votes_NM.dtype.kind not in "iu":
        raise InvalidValueError(
            f"votes must be token ids, one row a position and one column a world; got {votes_NM.dtype} of shape "
            f"{votes_NM.shape}"
        )
    return votes_NM
