"""Halves of the texts: a threshold is chosen on one and judged on the other."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.errors import InvalidValueError
from reticent.stats.roc import check_scores

Scores = NDArray[np.float64]
MIN_TEXTS = 2
"""Per side: fewer cannot be halved."""


def halves(
    member_scores: ArrayLike, nonmember_scores: ArrayLike, seed: int
) -> tuple[tuple[Scores, Scores], tuple[Scores, Scores]]:
    """Two random halves, each as (member scores, non-member scores).

    Raises:
        InvalidValueError: there are fewer than two members or two non-members.
    """
    rng = np.random.default_rng(seed)
    split: list[tuple[Scores, Scores]] = []
    for name, given in (("member scores", member_scores), ("non-member scores", nonmember_scores)):
        scores = rng.permutation(check_scores(name, given))
        if len(scores) < MIN_TEXTS:
            raise InvalidValueError(f"{name} must be at least {MIN_TEXTS}, to be halved; got {len(scores)}")
        middle = (len(scores) + 1) // 2
        split.append((scores[:middle], scores[middle:]))
    (member_first, member_second), (nonmember_first, nonmember_second) = split
    return (member_first, nonmember_first), (member_second, nonmember_second)


def cut_below(thresholds: Scores, index: int) -> float:
    """A threshold for other texts: halfway from a score that is flagged to the next lower one, which is not.

    Args:
        thresholds: distinct scores, from the highest.
        index: of the lowest score that is flagged.
    """
    flagged = float(thresholds[index])
    if index + 1 == len(thresholds):
        return flagged
    middle = float(thresholds[index + 1]) / 2 + flagged / 2
    # Between infinite or neighbouring floating-point numbers there is no middle.
    return middle if thresholds[index + 1] < middle < flagged else flagged
