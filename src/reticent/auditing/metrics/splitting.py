"""Halves of the texts: a threshold is chosen on one and judged on the other."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.errors import InvalidValueError
from reticent.stats.roc import check_scores

Scores = NDArray[np.float64]
MIN_TEXTS = 2
"""Per side: fewer cannot be halved."""


def halves(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    seed: int,
    clusters: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[tuple[Scores, Scores], tuple[Scores, Scores]]:
    """Two random halves, each as (member scores, non-member scores); no cluster is in both.

    With `clusters`, the number of each member's and each non-member's cluster, halves are of clusters.

    Raises:
        InvalidValueError: there are fewer than two members or two non-members.
    """
    rng = np.random.default_rng(seed)
    split: list[tuple[Scores, Scores]] = []
    for side, (name, given) in enumerate((("member scores", member_scores), ("non-member scores", nonmember_scores))):
        scores = check_scores(name, given)
        owner = np.arange(len(scores)) if clusters is None else np.asarray(clusters[side], np.int64)
        order = rng.permutation(int(owner.max()) + 1 if len(owner) else 0)
        if len(order) < MIN_TEXTS:
            what = name if clusters is None else f"clusters of {name}"
            raise InvalidValueError(f"{what} must be at least {MIN_TEXTS}, to be halved; got {len(order)}")
        in_first = np.zeros(len(order), np.bool_)
        in_first[order[: (len(order) + 1) // 2]] = True
        split.append((scores[in_first[owner]], scores[~in_first[owner]]))
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
