"""Sampling error where observations come in clusters, as several texts of one owner do.

Texts of one owner are alike, so owners are what was sampled. An area gets its interval by resampling owners (Field and
Welsh 2007). A rate gets that of as many independent texts as the clusters are worth where texts of one owner agree
entirely, (Σ n_i)² / Σ n_i² (Kish 1965, with an intraclass correlation of 1): never too narrow for that reason.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent._validate import open_probability
from reticent.errors import InvalidValueError
from reticent.stats.intervals import NUM_RESAMPLES, bootstrap_auc_interval
from reticent.stats.roc import auc, check_scores


def cluster_numbers(names: Sequence[Hashable]) -> NDArray[np.int64]:
    """Number each observation's cluster from 0, in order of first occurrence, int64[observations]."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)


def effective_size(clusters: ArrayLike) -> float:
    """Return the number of independent observations that clustered ones are worth at least.

    Args:
        clusters: the number of each observation's cluster, int64[observations].
    """
    sizes = np.bincount(np.asarray(clusters, np.int64)).astype(np.float64)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def clustered_auc_interval(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    member_clusters: ArrayLike,
    nonmember_clusters: ArrayLike,
    seed: int,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> tuple[float, float]:
    """Percentile-bootstrap interval of the AUC over clusters, members' and non-members' each drawn with replacement.

    At an AUC of exactly 0 or 1 it is the interval of clusters in place of texts; see `bootstrap_auc_interval`.

    Args:
        member_scores: float64[members]; ±inf is allowed.
        nonmember_scores: float64[non-members].
        member_clusters: the number of each member's cluster, from 0.
        nonmember_clusters: the same of each non-member.
        seed: of the resampling.
        confidence: of the interval.
        num_resamples: how many.

    Raises:
        InvalidValueError: a score is NaN, or clusters and scores differ in number.
    """
    members, nonmembers = (
        check_scores("member scores", member_scores),
        check_scores("non-member scores", nonmember_scores),
    )
    sides = ((members, np.asarray(member_clusters, np.int64)), (nonmembers, np.asarray(nonmember_clusters, np.int64)))
    for scores, clusters in sides:
        if scores.shape != clusters.shape:
            raise InvalidValueError(f"{len(scores)} scores need as many clusters, got {len(clusters)}")
    value = auc(members, nonmembers)
    if value in (0.0, 1.0):
        first, second = (np.zeros(int(clusters.max()) + 1) for _, clusters in sides)
        low, high = bootstrap_auc_interval(first + value, second + (1.0 - value), seed, confidence)
        return low, high
    wins = _wins_by_cluster(*sides[0], *sides[1])
    sizes = np.bincount(sides[0][1]), np.bincount(sides[1][1])
    areas = _resampled_areas(wins, sizes[0], sizes[1], seed, num_resamples)
    error = (1.0 - open_probability("confidence", confidence)) / 2.0
    low, high = np.quantile(areas, [error, 1.0 - error])
    return min(float(low), value), max(float(high), value)


def _wins_by_cluster(
    members: NDArray[np.float64],
    member_clusters: NDArray[np.int64],
    nonmembers: NDArray[np.float64],
    nonmember_clusters: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Pairs that a member wins, ties by half, between each two clusters, float64[member clusters, others]."""
    by_text = np.zeros((len(members), int(nonmember_clusters.max()) + 1))
    for cluster in range(by_text.shape[1]):
        ordered = np.sort(nonmembers[nonmember_clusters == cluster])
        below, not_above = (np.searchsorted(ordered, members, side=side) for side in ("left", "right"))
        by_text[:, cluster] = (below + not_above) / 2.0
    wins = np.zeros((int(member_clusters.max()) + 1, by_text.shape[1]))
    np.add.at(wins, member_clusters, by_text)
    return wins


def _resampled_areas(
    wins: NDArray[np.float64],
    member_sizes: NDArray[np.intp],
    nonmember_sizes: NDArray[np.intp],
    seed: int,
    num_resamples: int,
) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    counts = [
        rng.multinomial(len(n), np.full(len(n), 1.0 / len(n)), num_resamples) for n in (member_sizes, nonmember_sizes)
    ]
    pairs = (counts[0] @ member_sizes) * (counts[1] @ nonmember_sizes)
    areas: NDArray[np.float64] = ((counts[0] @ wins) * counts[1]).sum(axis=1) / pairs
    return areas
