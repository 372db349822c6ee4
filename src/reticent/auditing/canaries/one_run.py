"""A lower bound on ε from one training run with many canaries (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846).

Formal guarantee: m canaries are each included by an independent fair coin; the auditor sees the model (not the
coins) and guesses r of them. If training is (ε, δ)-differentially private with respect to each canary, the number
of correct guesses V obeys, for every v (theorem 5.2, with q = e^ε / (1 + e^ε) and B ~ Binomial(r, q))

    P[V ≥ v] ≤ P[B ≥ v] + 2 m δ · max over i = 1..v of P[v − i ≤ B < v] / i.

An ε whose right side is at most 1 − confidence is rejected. The number of guesses is fixed before the coins are
seen; where several are tried, each is tested at an equal share of the error.

| edge | what happens |
|---|---|
| no more correct guesses than chance explains | ε = 0 |
| δ so large that the second term alone exceeds the error | ε = 0 |
| equal scores | ordered by a seeded permutation, never by position |
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from reticent._validate import integer_in_range, open_probability
from reticent.auditing.results import OneRunEpsilon
from reticent.errors import InvalidValueError
from reticent.stats.roc import check_scores

GUESSED_FRACTIONS = (0.05, 0.1, 0.2, 0.5, 1.0)
_LARGEST_EPSILON = 50.0
_TOLERANCE = 1e-9


def tail_bound(epsilon: float, num_canaries: int, num_guesses: int, num_correct: int, delta: float) -> float:
    """The largest chance, under (ε, δ)-privacy, of at least `num_correct` correct guesses; at most 1."""
    if num_correct == 0:
        return 1.0
    accuracy = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(num_correct - 1, num_guesses, accuracy))
    if delta == 0.0:
        return tail
    steps = np.arange(1, num_correct + 1)
    below = np.cumsum(binom.pmf(num_correct - steps, num_guesses, accuracy))
    return min(1.0, tail + 2.0 * num_canaries * delta * float((below / steps).max()))


def largest_rejected_epsilon(
    num_canaries: int, num_guesses: int, num_correct: int, delta: float = 0.0, confidence: float = 0.95
) -> float:
    """The largest ε, in nats, that the guesses reject at the confidence; 0 where they reject none.

    The search ends on the rejected side, so that the bound is never overstated.

    Raises:
        InvalidValueError: counts, δ or confidence are out of range.
    """
    integer_in_range("the number of canaries", num_canaries, 1)
    integer_in_range("the number of guesses", num_guesses, 1, num_canaries)
    integer_in_range("the number of correct guesses", num_correct, 0, num_guesses)
    error = 1.0 - open_probability("confidence", confidence)
    if not 0.0 <= delta < 1.0:
        raise InvalidValueError(f"delta must be at least 0 and below 1, got {delta!r}")

    def is_rejected(epsilon: float) -> bool:
        return tail_bound(epsilon, num_canaries, num_guesses, num_correct, delta) <= error

    if not is_rejected(0.0):
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    while high - low > _TOLERANCE:
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low


def guess_inclusion(scores: ArrayLike, num_guesses: int, seed: int) -> NDArray[np.int8]:
    """A guess for each canary: 1 "included" for the highest scores, −1 "left out" for the lowest, 0 for no guess.

    An odd guess goes to the top. Equal scores are ordered by a seeded permutation.

    Args:
        scores: more = more likely included, float64[canaries].
        num_guesses: how many canaries are guessed.
        seed: of the permutation.
    """
    values = check_scores("canary scores", scores)
    integer_in_range("the number of guesses", num_guesses, 1, len(values))
    shuffled = np.random.default_rng(seed).permutation(len(values))
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    guesses = np.zeros(len(values), np.int8)
    guesses[order[: num_guesses // 2]] = -1
    guesses[order[len(values) - (num_guesses + 1) // 2 :]] = 1
    return guesses


def one_run_epsilon(
    scores: ArrayLike,
    is_included: ArrayLike,
    delta: float,
    seed: int,
    confidence: float = 0.95,
    guessed_fractions: Sequence[float] = GUESSED_FRACTIONS,
) -> OneRunEpsilon:
    """The best lower bound on ε over several numbers of guesses, all of them right together with the confidence.

    Args:
        scores: of each canary, more = more likely included, float64[canaries].
        is_included: each canary's coin, bool[canaries]; the coins must be fair and independent.
        delta: the δ for which ε is bounded.
        seed: orders equal scores.
        confidence: that the bound is right.
        guessed_fractions: fractions of the canaries to guess.

    Raises:
        InvalidValueError: shapes differ, a score is NaN, or a number is out of range.
    """
    values, included = check_scores("canary scores", scores), np.asarray(is_included, dtype=bool)
    if included.shape != values.shape:
        raise InvalidValueError(f"there are {values.shape} canary scores and {included.shape} coins")
    if not guessed_fractions or not all(0.0 < fraction <= 1.0 for fraction in guessed_fractions):
        raise InvalidValueError(f"guessed fractions must be above 0 and at most 1, got {list(guessed_fractions)}")
    numbers = sorted({max(1, round(fraction * len(values))) for fraction in guessed_fractions})
    shared_confidence = 1.0 - (1.0 - open_probability("confidence", confidence)) / len(numbers)
    results = []
    for num_guesses in numbers:
        guesses = guess_inclusion(values, num_guesses, seed)
        num_correct = int((guesses == np.where(included, 1, -1)).sum())
        epsilon = largest_rejected_epsilon(len(values), num_guesses, num_correct, delta, shared_confidence)
        results.append(
            OneRunEpsilon(
                epsilon=epsilon,
                delta=delta,
                confidence=confidence,
                num_canaries=len(values),
                num_guesses=num_guesses,
                num_correct=num_correct,
            )
        )
    return max(results, key=lambda result: (result.epsilon, result.num_guesses))
