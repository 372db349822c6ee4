"""The release as its formula reads, over all k candidates: covariance of one-hot votes, SVD, noise in k dimensions.

Written from the paper (arXiv 2609.05676 on arXiv 2210.03458): with Σ = U diag(λ) Uᵀ the covariance of the vote under
the posterior, the noise has variance e_i = √λ_i · Σ_j √λ_j / (2b) along u_i, and the posterior follows from squared
distances along the noisy directions.

Shape suffixes: M worlds, K candidates, D directions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.randomness import NoiseSource

_SMALLEST_SHARE = 1e-12

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FullNoise:
    """Noise of one release: orthonormal directions, float64[K, D], and their variances, float64[D]."""

    directions: Floats
    noise_variances: Floats


def calibrate(onehot_MK: Floats, weights_M: Floats, step_budget: float) -> FullNoise:
    """Fix the noise for the posterior's weights over worlds."""
    centred_MK = onehot_MK - weights_M @ onehot_MK
    covariance_KK = (centred_MK.T * weights_M) @ centred_MK
    directions, variances, _ = np.linalg.svd(covariance_KK, hermitian=True)
    kept = variances > _SMALLEST_SHARE * variances[0]
    deviations = np.sqrt(variances[kept])
    return FullNoise(directions[:, kept], deviations * deviations.sum() / (2.0 * step_budget))


def release(onehot_MK: Floats, noise: FullNoise, secret: int, source: NoiseSource) -> tuple[int, Floats]:
    """Return the released candidate's index and the noisy vector, float64[K]."""
    normals = source.standard_normal(noise.noise_variances.size)
    noisy_K = onehot_MK[secret] + noise.directions @ (np.sqrt(noise.noise_variances) * normals)
    return int(noisy_K.argmax()), noisy_K


def update_weights(weights_M: Floats, onehot_MK: Floats, noise: FullNoise, noisy_K: Floats) -> Floats:
    """Bayes' rule: p_j ∝ p_j · exp(−½ Σ_i ((R − v_j)·u_i)² / e_i)."""
    distances_MD = (noisy_K - onehot_MK) @ noise.directions
    log_weights = np.log(weights_M) - 0.5 * (distances_MD**2 / noise.noise_variances).sum(1)
    weights: Floats = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights


def covariance(noise: FullNoise) -> Floats:
    """Covariance of the noise over all candidates, float64[K, K]."""
    full: Floats = (noise.directions * noise.noise_variances) @ noise.directions.T
    return full
