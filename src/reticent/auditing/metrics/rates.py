"""The true-positive rate at a bounded false-positive rate, and when the data are too few to show it."""

import math

import numpy as np
from numpy.typing import ArrayLike

from reticent.errors import InvalidValueError
from reticent.stats.intervals import tpr_interval
from reticent.stats.roc import check_scores

NONMEMBERS_TIMES_FPR = 3
"""A rate is shown from 3/FPR non-members: if none of them is flagged, the FPR is below that one at 95 %."""


def unavailable_rate(fpr: float, num_nonmembers: int) -> str | None:
    """Explain why `num_nonmembers` cannot show a rate at this FPR; None where they can."""
    if not 0.0 < fpr < 1.0:
        raise InvalidValueError(f"the false-positive rate must lie strictly between 0 and 1, got {fpr!r}")
    needed = math.ceil(round(NONMEMBERS_TIMES_FPR / fpr, 9))
    if num_nonmembers >= needed:
        return None
    return f"an FPR of {100 * fpr:.3g} % needs {needed} scored non-members, and there are {num_nonmembers}"


def tpr_at_fpr(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    fpr: float,
    confidence: float = 0.95,
    effective_sizes: tuple[float, float] | None = None,
) -> tuple[float, float, float]:
    """The largest TPR of a threshold that flags at most `fpr` of the non-members, as (value, low, high).

    No interpolation, and equal scores are flagged together or not at all. The interval counts both errors, that of a
    rate among finitely many members and that of a threshold from finitely many non-members; see `tpr_interval`.
    """
    members = check_scores("member scores", member_scores)
    nonmembers = check_scores("non-member scores", nonmember_scores)
    if not 0.0 <= fpr < 1.0:
        raise InvalidValueError(f"the false-positive rate must be at least 0 and below 1, got {fpr!r}")
    # Rounding first: 0.29 * 100 is 28.999999999999996 in binary.
    allowed = math.floor(round(fpr * len(nonmembers), 9))
    highest_refused = np.sort(nonmembers)[::-1][allowed]
    flagged = int((members > highest_refused).sum())
    value = flagged / len(members)
    low, high = tpr_interval(members, nonmembers, fpr, confidence, effective_sizes)
    return value, min(low, value), max(high, value)
