"""The ε that two rates imply: no (ε, δ)-private training allows an attack with a higher TPR at that FPR.

For a test of "was this text in?" with error rates FPR and 1 − TPR, (ε, δ)-differential privacy demands
TPR ≤ e^ε FPR + δ and 1 − FPR ≤ e^ε (1 − TPR) + δ (Kairouz, Oh and Viswanath 2015, theorem 2.1).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent._validate import integer_in_range, open_probability
from reticent.auditing.metrics.splitting import cut_below, halves
from reticent.errors import InvalidValueError
from reticent.stats.intervals import lower_bounds, upper_bounds
from reticent.stats.roc import threshold_counts


@dataclass(frozen=True)
class SplitHalfEpsilon:
    """A lower bound on ε in nats and the counts, on the judged half, that it comes from."""

    epsilon: float
    true_positives: int
    num_members: int
    false_positives: int
    num_nonmembers: int


def _bounds(
    true_positives: ArrayLike,
    num_members: int,
    false_positives: ArrayLike,
    num_nonmembers: int,
    error: float,
    delta: float,
) -> NDArray[np.float64]:
    """ε lower bounds for many thresholds. Both inequalities need TPR from below and FPR from above: two events."""
    tpr_low = lower_bounds(true_positives, num_members, error / 2)
    fpr_high = upper_bounds(false_positives, num_nonmembers, error / 2)
    # Neither denominator is 0: exact bounds reach 1 or 0 on the other side only.
    ratios = np.maximum((tpr_low - delta) / fpr_high, (1 - fpr_high - delta) / (1 - tpr_low))
    return np.log(np.maximum(ratios, 1.0))


def implied_epsilon(
    true_positives: tuple[int, int], false_positives: tuple[int, int], confidence: float = 0.95, delta: float = 0.0
) -> float:
    """A lower bound on ε, in nats, from one threshold's counts; 0 where they show nothing.

    TPR from below and FPR from above are exact one-sided bounds at half the error each, so that both hold together
    with the confidence. The threshold must not have been chosen on the texts that are counted.

    Args:
        true_positives: members flagged, and members.
        false_positives: non-members flagged, and non-members.
        confidence: that the bound is right.
        delta: the δ for which ε is bounded.
    """
    for name, (count, total) in (("true positives", true_positives), ("false positives", false_positives)):
        integer_in_range(f"the total of {name}", total, 1)
        integer_in_range(name, count, 0, total)
    error = 1.0 - open_probability("confidence", confidence)
    if not 0.0 <= delta < 1.0:
        raise InvalidValueError(f"delta must be at least 0 and below 1, got {delta!r}")
    return float(_bounds(*true_positives, *false_positives, error, delta))


def split_half_epsilon(
    member_scores: ArrayLike, nonmember_scores: ArrayLike, seed: int, confidence: float = 0.95, delta: float = 0.0
) -> SplitHalfEpsilon:
    """The ε implied at the threshold with the largest bound on one random half, counted on the other half.

    Raises:
        InvalidValueError: there are fewer than two members or non-members, or a score is NaN.
    """
    chosen_on, (members, nonmembers) = halves(member_scores, nonmember_scores, seed)
    thresholds, tp, fp = threshold_counts(*chosen_on)
    bounds = _bounds(
        tp, len(chosen_on[0]), fp, len(chosen_on[1]), 1.0 - open_probability("confidence", confidence), delta
    )
    threshold = cut_below(thresholds, int(np.argmax(bounds)))
    true_positives, false_positives = int((members >= threshold).sum()), int((nonmembers >= threshold).sum())
    epsilon = implied_epsilon((true_positives, len(members)), (false_positives, len(nonmembers)), confidence, delta)
    return SplitHalfEpsilon(epsilon, true_positives, len(members), false_positives, len(nonmembers))
