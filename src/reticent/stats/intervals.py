"""Confidence intervals for rates, for differences of rates and for areas."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc
from scipy.stats import beta, binom, norm

from reticent._validate import integer_in_range, open_probability
from reticent.stats.roc import auc, check_scores

NUM_RESAMPLES = 2000
_CHUNK_ELEMENTS = 1 << 22
_NEGLIGIBLE = 1e-9
_HALVINGS = 40


def lower_bounds(successes: ArrayLike, trials: int, error: float) -> NDArray[np.float64]:
    """One-sided exact lower bounds on a rate (Clopper and Pearson 1934), each wrong with at most chance `error`."""
    k = np.asarray(successes, dtype=np.float64)
    return np.where(k == 0, 0.0, beta.ppf(error, np.maximum(k, 1), trials - k + 1))


def upper_bounds(successes: ArrayLike, trials: int, error: float) -> NDArray[np.float64]:
    """One-sided exact upper bounds on a rate, each wrong with at most chance `error`."""
    return 1.0 - lower_bounds(trials - np.asarray(successes), trials, error)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a rate; it covers with at least the confidence."""
    integer_in_range("trials", trials, 1)
    integer_in_range("successes", successes, 0, trials)
    error = (1.0 - open_probability("confidence", confidence)) / 2.0
    return float(lower_bounds(successes, trials, error)), float(upper_bounds(successes, trials, error))


def wilson(successes: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """The score interval of a rate (Wilson 1927)."""
    z = float(norm.ppf((1.0 + confidence) / 2.0))
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * float(np.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)))
    # At the ends the interval reaches 0 or 1 exactly, up to rounding.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == trials else centre + half)


def newcombe_difference(
    first: tuple[float, float], second: tuple[float, float], confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of a difference of two independent rates from their score intervals (Newcombe 1998, method 10).

    Args:
        first: successes and trials of the rate that is subtracted from; both may be effective numbers, not whole.
        second: successes and trials of the rate that is subtracted.
        confidence: of the interval; coverage is close to it, not exact.
    """
    p, q = first[0] / first[1], second[0] / second[1]
    (p_low, p_high), (q_low, q_high) = wilson(*first, confidence), wilson(*second, confidence)
    below = float(np.hypot(p - p_low, q_high - q))
    above = float(np.hypot(p_high - p, q - q_low))
    return p - q - below, p - q + above


def tpr_interval(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    fpr: float,
    confidence: float = 0.95,
    effective_sizes: tuple[float, float] | None = None,
) -> tuple[float, float]:
    """Interval of the true-positive rate at the threshold whose true false-positive rate is `fpr`.

    That threshold is not known. So many of m non-members score above it as a binomial(m, fpr) draw says, which places
    it between two of their order statistics, and so between two numbers of flagged members, each with an exact bound
    (Clopper-Pearson). The interval's ends are quantiles of these bounds' distributions mixed over the draws: the fewer
    members for the low end, the more for the high end. Above the highest non-member nothing is known; there, the
    members above it count as flagged. Without a threshold's error (fpr = 0) it is the exact interval.

    Args:
        member_scores: float64[members]; ±inf is allowed.
        nonmember_scores: float64[non-members].
        fpr: in [0, 1).
        confidence: coverage is a little above it; the simulations of the tests say by how much.
        effective_sizes: how many independent members and non-members the texts are worth, where they come in clusters.
    """
    members = np.sort(check_scores("member scores", member_scores))
    nonmembers = np.sort(check_scores("non-member scores", nonmember_scores))[::-1]
    error = (1.0 - open_probability("confidence", confidence)) / 2.0
    n, m = len(members), len(nonmembers)
    above = np.append(n - np.searchsorted(members, nonmembers, side="right"), n)
    members_worth, nonmembers_worth = effective_sizes or (n, m)
    trials = max(1, int(nonmembers_worth))
    fewest, most = (int(binom.ppf(q, trials, fpr)) for q in (_NEGLIGIBLE, 1.0 - _NEGLIGIBLE))
    draws = np.arange(fewest, most + 1)
    weights = binom.pmf(draws, trials, fpr)
    # The order statistics and counts of all texts, at the places and in the numbers that the effective sizes have.
    before, after = (np.ceil(np.maximum(draws - 1, 0) * m / trials), np.ceil(draws * m / trials))
    flagged = above * (members_worth / n)
    low = _mixed_beta_quantile(weights, flagged[before.astype(np.int64)], members_worth + 1, error)
    high = _mixed_beta_quantile(weights, flagged[after.astype(np.int64)] + 1, members_worth + 1, 1.0 - error)
    return low, high


def _mixed_beta_quantile(weights: NDArray[np.float64], a: NDArray[np.floating], total: float, quantile: float) -> float:
    """A quantile of a mixture of Beta(a, total − a); a of 0 is a point mass at 0, of `total` one at 1."""
    inside = (a > 0) & (a < total)
    first, second = np.where(inside, a, 1), np.where(inside, total - a, 1)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        below = np.where(inside, betainc(first, second, middle), a == 0)
        if float(weights @ below) < quantile * float(weights.sum()):
            low = middle
        else:
            high = middle
    # An end that was never moved is a point mass.
    return low if low == 0.0 else high


def bootstrap_aucs(
    member_scores: ArrayLike, nonmember_scores: ArrayLike, seed: int, num_resamples: int = NUM_RESAMPLES
) -> NDArray[np.float64]:
    """The AUC of resampled texts, members and non-members each drawn with replacement, float64[num_resamples]."""
    members = check_scores("member scores", member_scores)
    nonmembers = np.sort(check_scores("non-member scores", nonmember_scores))
    below, not_above = (np.searchsorted(nonmembers, members, side=side) for side in ("left", "right"))
    n, m = len(members), len(nonmembers)
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK_ELEMENTS // (n + m))
    areas = []
    for start in range(0, num_resamples, rows):
        size = min(rows, num_resamples - start)
        drawn = rng.integers(m, size=(size, m)) + m * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * m).reshape(size, m)
        cumulative = np.concatenate([np.zeros((size, 1), np.int64), counts.cumsum(axis=1)], axis=1)
        beaten_twice = cumulative[:, below] + cumulative[:, not_above]
        members_drawn = rng.integers(n, size=(size, n))
        areas.append(np.take_along_axis(beaten_twice, members_drawn, axis=1).sum(axis=1) / (2 * n * m))
    return np.concatenate(areas)


def bootstrap_auc_interval(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    seed: int,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
) -> tuple[float, float]:
    """Percentile-bootstrap interval of the AUC over texts.

    At an AUC of exactly 0 or 1 all resamples agree, which says nothing of chance. There the interval is the exact one
    for as many pairs of a member and a non-member as can be formed without using a text twice.
    """
    value = auc(member_scores, nonmember_scores)
    error = (1.0 - open_probability("confidence", confidence)) / 2.0
    if value in (0.0, 1.0):
        pairs = min(len(np.asarray(member_scores)), len(np.asarray(nonmember_scores)))
        return clopper_pearson(round(value * pairs), pairs, confidence)
    areas = bootstrap_aucs(member_scores, nonmember_scores, seed, num_resamples)
    low, high = np.quantile(areas, [error, 1.0 - error])
    return min(float(low), value), max(float(high), value)
