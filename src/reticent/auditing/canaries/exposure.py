"""Exposure of a canary: its rank among the secrets that might have been planted instead (Carlini 2019, equation 2)."""

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from reticent.stats.roc import check_scores


@dataclass(frozen=True)
class Exposure:
    """A canary's place, 1 for the most likely, among itself and the candidates, and its exposure in bits."""

    rank: int
    num_candidates: int
    bits: float


def exposure(canary_score: float, candidate_scores: ArrayLike) -> Exposure:
    """log2 of the number of candidates − log2 of the canary's rank.

    The candidates are drawn like the canary and were never planted; the canary itself is counted with them. Equal
    scores count against the canary, so that a model that cannot tell them apart exposes nothing. Of a canary that the
    model never saw, at most log2(e) = 1.44 bits are expected.

    Args:
        canary_score: more = more likely under the model, such as mean ℓ.
        candidate_scores: the same for the candidates, float64[candidates], at least one.

    Raises:
        InvalidValueError: a score is NaN or there is no candidate.
    """
    canary = check_scores("the canary's score", [canary_score])[0]
    candidates = check_scores("candidate scores", candidate_scores)
    rank, total = 1 + int((candidates >= canary).sum()), 1 + len(candidates)
    return Exposure(rank, total, math.log2(total) - math.log2(rank))
