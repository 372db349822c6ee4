"""Warnings about figures that have another explanation than leakage."""

import numpy as np
from numpy.typing import ArrayLike

from reticent.stats.roc import check_scores

NEAR_PERFECT = 0.98
WORSE_THAN_REFERENCE_NATS = 0.1


def constant_scores(member_scores: ArrayLike, nonmember_scores: ArrayLike) -> bool:
    """True if all texts have one and the same score, so that the attack has decided nothing."""
    members = check_scores("member scores", member_scores)
    nonmembers = check_scores("non-member scores", nonmember_scores)
    return bool((members == members[0]).all() and (nonmembers == members[0]).all())


def separation_warning(area: float) -> str | None:
    """A warning where an AUC is so near 0 or 1 that a collapsed model or mismatched sets explain it as well."""
    if area >= NEAR_PERFECT:
        return (
            f"AUC {area:.3f}: members and non-members separate almost perfectly; check that the sets differ only in "
            "membership and that the model has not collapsed"
        )
    if area <= 1.0 - NEAR_PERFECT:
        return (
            f"AUC {area:.3f}: members score below almost every non-member; the model may have collapsed, "
            "or the two sets may be exchanged"
        )
    return None


def training_warning(member_target_means: ArrayLike, member_reference_means: ArrayLike) -> str | None:
    """A warning where the target gives its own members less than the reference does.

    Args:
        member_target_means: mean ℓ of each member under the target, nats per token.
        member_reference_means: the same under the reference, in the same order.
    """
    target = check_scores("target likelihoods", member_target_means)
    reference = check_scores("reference likelihoods", member_reference_means)
    with np.errstate(invalid="ignore"):
        gain = float((target - reference).mean())
    # Not `gain < ...`: infinite likelihoods on both sides make the mean NaN, and that is a collapse too.
    if gain >= -WORSE_THAN_REFERENCE_NATS:
        return None
    return (
        f"members gained {gain:.2f} nats per token from the reference to the target, which is a loss: training has "
        "collapsed the model, or these are not its members; no figure can be trusted"
    )
