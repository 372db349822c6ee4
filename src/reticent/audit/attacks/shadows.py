"""From shadow models' likelihoods to what LiRA and RMIA need, text by text.

Shape suffixes: N texts, M shadow models.
"""

import numpy as np
from numpy.typing import NDArray

from reticent.audit.attacks.evidence import Missing, ShadowEvidence
from reticent.audit.attacks.rmia import log_probability_ratio
from reticent.errors import InvalidValueError

OWN_VARIANCE_FROM = 32
"""From so many models on each side, a text has variances of its own; with fewer, all texts share two (Carlini 2022)."""


def pooled_variance(means_NM: NDArray[np.float64], chosen_NM: NDArray[np.bool_]) -> float:
    """Variance over a text's chosen models, pooled over texts by degrees of freedom; 0 where there are none."""
    count_N = chosen_NM.sum(axis=1)
    values_NM = np.where(chosen_NM, means_NM, 0.0)
    centre_N = values_NM.sum(axis=1) / np.maximum(count_N, 1)
    squares_NM = np.where(chosen_NM, (means_NM - centre_N[:, None]) ** 2, 0.0)
    degrees = int(np.maximum(count_N - 1, 0).sum())
    return float(squares_NM.sum()) / degrees if degrees else 0.0


def shadow_evidence(
    target_N: NDArray[np.float64], shadow_NM: NDArray[np.float64], is_in_NM: NDArray[np.bool_]
) -> list[ShadowEvidence | Missing]:
    """What the shadow models say about each text. RMIA's population is all the texts.

    Args:
        target_N: mean ℓ of each text under the target, nats per token; NaN where it has no scored token.
        shadow_NM: the same under each shadow model.
        is_in_NM: whether the shadow model was trained on the text. A public reference alone, as the only model and
            trained on none of them, serves RMIA; LiRA then has no score.

    Returns:
        One entry per text; `Missing` for a text without finite likelihoods or that every shadow model was trained on.

    Raises:
        InvalidValueError: the shapes do not fit.
    """
    if shadow_NM.ndim != 2 or is_in_NM.shape != shadow_NM.shape or target_N.shape != shadow_NM.shape[:1]:
        raise InvalidValueError(
            f"shadow likelihoods must be texts x models: target {target_N.shape}, "
            f"shadows {shadow_NM.shape}, membership {is_in_NM.shape}"
        )
    usable_N = np.isfinite(target_N) & np.isfinite(shadow_NM).all(axis=1)
    comparable_N = usable_N & ~is_in_NM.all(axis=1)
    in_NM, out_NM = is_in_NM & comparable_N[:, None], ~is_in_NM & comparable_N[:, None]
    variances = (pooled_variance(shadow_NM, in_NM), pooled_variance(shadow_NM, out_NM))
    ratio_N = np.full(len(target_N), np.nan)
    for row in np.flatnonzero(comparable_N):
        ratio_N[row] = log_probability_ratio(float(target_N[row]), shadow_NM[row, out_NM[row]])
    population = ratio_N[comparable_N]
    evidence: list[ShadowEvidence | Missing] = []
    for n in range(len(target_N)):
        if not usable_N[n]:
            evidence.append(Missing("the text has no finite likelihood under the target and all shadow models"))
        elif not comparable_N[n]:
            evidence.append(Missing("every shadow model was trained on the text"))
        else:
            in_means, out_means = shadow_NM[n, in_NM[n]], shadow_NM[n, out_NM[n]]
            enough = min(len(in_means), len(out_means)) >= OWN_VARIANCE_FROM
            evidence.append(ShadowEvidence(in_means, out_means, None if enough else variances, population))
    return evidence
