"""RMIA, offline: how many other texts does this one beat by a factor γ (arXiv 2312.03262).

A text's probability is taken per token, p = exp(mean ℓ), the geometric mean of its tokens' probabilities: products over
texts of different lengths would not compare.
"""

import math

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, Score

OFFLINE_A = 0.33
GAMMA = 2.0


def log_probability_ratio(mean_logp: float, out_means: NDArray[np.float64], a: float = OFFLINE_A) -> float:
    """log(p / p̄) of one text, with p̄ = ½((1 + a) p_out + 1 − a) and p_out the mean of p over the models without it.

    Args:
        mean_logp: mean ℓ under the target, nats per token.
        out_means: mean ℓ under each model that was not trained on the text, float64[models], at least one.
        a: the offline scaling: p_in is taken to be a · p_out + 1 − a.
    """
    p_out = float(np.exp(out_means).mean())
    return mean_logp - math.log(0.5 * ((1.0 + a) * p_out + 1.0 - a))


def rmia(log_ratio: float, population_log_ratios: NDArray[np.float64], gamma: float = GAMMA) -> Score:
    """Fraction of the population's texts z with (p_x/p̄_x)/(p_z/p̄_z) > γ.

    The text may be in the population itself: for γ ≥ 1 it never counts.
    """
    if len(population_log_ratios) == 0:
        return Missing("there is no other text to compare with")
    return float((log_ratio - population_log_ratios > math.log(gamma)).mean())
