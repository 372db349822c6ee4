"""RMIA, offline: the share of other texts that this one beats (arXiv 2312.03262).

A text's probability is taken per token, p = exp(mean ℓ), the geometric mean of its tokens' probabilities: products over
texts of different lengths would not compare. Such a p is some hundredths, so that the paper's settings for the
confidence of an image's class, a = 0.33 and γ = 2, would leave p̄ near ⅓ whatever the reference says: the attack would
be the likelihood. Here γ = 1, and `a` is chosen on models whose members are known, or is 1 where there are none.

Shape suffixes: N texts, K models.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.stats.roc import auc

GAMMA = 1.0
UNSCALED_A = 1.0
"""p̄ is p_out itself: for models without the text that nothing was tuned on."""

A_GRID = (1.0, 0.999, 0.997, 0.99, 0.97, 0.9, 0.7, 0.33, 0.0)
"""Scalings that are tried, from the one that trusts the models without the text most."""


@dataclass(frozen=True)
class OfflineScaling:
    """The offline scaling `a` and the number of paired models that it was chosen on; 0 where it was not chosen."""

    a: float
    num_models: int


def log_probability_ratio(mean_logp: float, out_means: NDArray[np.float64], a: float = UNSCALED_A) -> float:
    """log(p / p̄) of one text, with p̄ = ½((1 + a) p_out + 1 − a) and p_out the mean of p over the models without it.

    Args:
        mean_logp: mean ℓ under the target, nats per token.
        out_means: mean ℓ under each model that was not trained on the text, float64[models], at least one.
        a: the offline scaling: p_in is taken to be a · p_out + 1 − a.
    """
    return mean_logp - float(_log_expected(float(logsumexp(out_means)) - math.log(len(out_means)), a))


def rmia(log_ratio: float, population_log_ratios: NDArray[np.float64], gamma: float = GAMMA) -> Score:
    """Fraction of the population's texts z with (p_x/p̄_x)/(p_z/p̄_z) > γ.

    The text may be in the population itself: for γ ≥ 1 it never counts.
    """
    if len(population_log_ratios) == 0:
        return Missing("there is no other text to compare with")
    return float((log_ratio - population_log_ratios > math.log(gamma)).mean())


def tune_offline_scaling(means_NK: NDArray[np.float64], members_NK: NDArray[np.bool_]) -> OfflineScaling:
    """The `a` whose log-ratios separate members best, by mean AUC, where each shadow model in turn is the target.

    The other shadow models are then its references. Nothing of the audited target is looked at. Equal areas are decided
    for the larger `a`.

    Args:
        means_NK: mean ℓ under each shadow model, nats per token; NaN where a model scored no token of the text.
        members_NK: whether the model was trained on the text.
    """
    areas = []
    for model in range(means_NK.shape[1]):
        outside_NK = ~members_NK & np.isfinite(means_NK)
        outside_NK[:, model] = False
        usable_N = outside_NK.any(axis=1) & np.isfinite(means_NK[:, model])
        members_N = members_NK[usable_N, model]
        if not 0 < members_N.sum() < len(members_N):
            continue
        outside_NK = outside_NK[usable_N]
        log_out_N = logsumexp(np.where(outside_NK, means_NK[usable_N], -np.inf), axis=1) - np.log(
            outside_NK.sum(axis=1)
        )
        ratios = [means_NK[usable_N, model] - _log_expected(log_out_N, a) for a in A_GRID]
        areas.append([auc(ratio_N[members_N], ratio_N[~members_N]) for ratio_N in ratios])
    if not areas:
        return OfflineScaling(UNSCALED_A, 0)
    return OfflineScaling(A_GRID[int(np.argmax(np.mean(areas, axis=0)))], len(areas))


def _log_expected(log_out: NDArray[np.float64] | float, a: float) -> NDArray[np.float64]:
    """Log p̄, in logarithms throughout, so that a text of no probability under any model divides by nothing."""
    rest = math.log((1.0 - a) / 2.0) if a < 1.0 else -math.inf
    return np.logaddexp(math.log((1.0 + a) / 2.0) + np.asarray(log_out, dtype=np.float64), rest)
