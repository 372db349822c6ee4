"""LiRA, online: a likelihood-ratio test between models with the text and models without it (Carlini 2022).

The statistic is the mean log-probability per token, which over models is close to Gaussian; the logit scaling of the
paper is for the confidence of one class and has no counterpart for a text.
"""

import math

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, Score


def _log_normal_density(x: float, mean: float, variance: float) -> float:
    return -0.5 * (math.log(2.0 * math.pi * variance) + (x - mean) ** 2 / variance)


def lira(
    score: float,
    in_scores: NDArray[np.float64],
    out_scores: NDArray[np.float64],
    variances: tuple[float, float] | None = None,
) -> Score:
    """The log-likelihood ratio log N(s; μ_in, σ²_in) − log N(s; μ_out, σ²_out).

    Args:
        score: the statistic s of the text under the target.
        in_scores: the same under the shadow models trained on the text, float64[models].
        out_scores: the same under those not trained on it, float64[models].
        variances: σ²_in and σ²_out, where few shadow models make a variance of the text's own too noisy; without them,
            the unbiased sample variances of `in_scores` and `out_scores`.
    """
    fewest = 1 if variances is not None else 2
    for scores, which in ((in_scores, "with"), (out_scores, "without")):
        if len(scores) < fewest:
            return Missing(f"{len(scores)} shadow models {which} the text, where {fewest} are needed")
    in_variance, out_variance = variances or (float(in_scores.var(ddof=1)), float(out_scores.var(ddof=1)))
    if not (in_variance > 0.0 and out_variance > 0.0):
        return Missing("the shadow models do not differ on the text")
    return _log_normal_density(score, float(in_scores.mean()), in_variance) - _log_normal_density(
        score, float(out_scores.mean()), out_variance
    )
