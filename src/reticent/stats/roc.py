"""The empirical ROC curve, the area under it."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from reticent.errors import InvalidValueError


def check_scores(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    """The scores as float64[texts].

    Raises:
        InvalidValueError: there are none, they are not one-dimensional, or one is NaN.
    """
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise InvalidValueError(f"{name} must be one score a text and at least one, got shape {array.shape}")
    if np.isnan(array).any():
        raise InvalidValueError(f"{name} must not hold NaN; leave texts without a score out and report them as missing")
    return array


def auc(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> float:
    """The chance that a random member scores above a random non-member, equal scores counting half (Mann-Whitney)."""
    members, nonmembers = (
        check_scores("member scores", member_scores),
        check_scores("non-member scores", nonmember_scores),
    )
    ranks = rankdata(np.concatenate([members, nonmembers]))
    n = len(members)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * len(nonmembers)))


def threshold_counts(
    member_scores: ArrayLike, nonmember_scores: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Every distinct score t, from the highest, with the numbers of members and non-members that score at least t."""
    members, nonmembers = (
        check_scores("member scores", member_scores),
        check_scores("non-member scores", nonmember_scores),
    )
    thresholds = np.unique(np.concatenate([members, nonmembers]))[::-1]
    true_positives = len(members) - np.searchsorted(np.sort(members), thresholds, side="left")
    false_positives = len(nonmembers) - np.searchsorted(np.sort(nonmembers), thresholds, side="left")
    return thresholds, true_positives.astype(np.int64), false_positives.astype(np.int64)


def roc_curve(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """FPR and TPR at the corners of the empirical curve, from (0, 0) to (1, 1)."""
    _, true_positives, false_positives = threshold_counts(member_scores, nonmember_scores)
    tp, fp = np.concatenate([[0], true_positives]), np.concatenate([[0], false_positives])
    # Whole numbers, so that three points are on one line exactly or not.
    turn = np.diff(fp)[:-1] * np.diff(tp)[1:] != np.diff(fp)[1:] * np.diff(tp)[:-1]
    corner = np.concatenate([[True], turn, [True]])
    return fp[corner] / fp[-1], tp[corner] / tp[-1]
