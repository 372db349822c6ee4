"""Membership advantage, TPR − FPR = 2 · balanced accuracy − 1, at a threshold that did not see the texts it judges."""

import numpy as np
from numpy.typing import ArrayLike

from reticent.auditing.metrics.splitting import cut_below, halves
from reticent.stats.clusters import effective_size
from reticent.stats.intervals import newcombe_difference
from reticent.stats.roc import threshold_counts


def best_threshold(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> float:
    """The threshold with the largest TPR − FPR, halfway between two scores; the highest of several."""
    thresholds, true_positives, false_positives = threshold_counts(member_scores, nonmember_scores)
    # In whole numbers, TPR − FPR times both totals, so that ties are exact.
    advantage = true_positives * false_positives[-1] - false_positives * true_positives[-1]
    return cut_below(thresholds, int(np.argmax(advantage)))


def membership_advantage(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    seed: int,
    confidence: float = 0.95,
    clusters: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[float, float, float]:
    """TPR − FPR and its interval, as (value, low, high).

    The texts are halved at random. Each half is judged by the threshold that is best on the other, so that every text
    counts once and none helps to choose its own threshold. Given the thresholds, both rates are means of independent
    decisions; the interval is Newcombe's for the difference of two rates. With `clusters`, the number of each member's
    and each non-member's cluster, no cluster is in both halves, and rates are of as many texts as clusters are worth
    at least (`stats.clusters`). The value is negative where the
    attack errs more often than a coin.

    Raises:
        InvalidValueError: there are fewer than two members or non-members, or a score is NaN.
    """
    first, second = halves(member_scores, nonmember_scores, seed, clusters)
    true_positives = false_positives = 0
    for chosen_on, judged in ((first, second), (second, first)):
        threshold = best_threshold(*chosen_on)
        true_positives += int((judged[0] >= threshold).sum())
        false_positives += int((judged[1] >= threshold).sum())
    num_members, num_nonmembers = len(first[0]) + len(second[0]), len(first[1]) + len(second[1])
    value = true_positives / num_members - false_positives / num_nonmembers
    worth = (float(num_members), float(num_nonmembers))
    if clusters is not None:
        worth = (effective_size(clusters[0]), effective_size(clusters[1]))
    rates = (true_positives / num_members * worth[0], worth[0]), (false_positives / num_nonmembers * worth[1], worth[1])
    low, high = newcombe_difference(*rates, confidence)
    return value, low, high
