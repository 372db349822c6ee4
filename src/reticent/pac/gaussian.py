"""The Gaussian release: calibrated noise on the realised world's one-hot vote, then the largest coordinate.

Contract: the realised world enters at one place only, the choice of whose vote is used. The noisy vector R never
leaves `GaussianMechanism.release`; what leaves is a token index and the worlds' log-likelihoods, and of the two only
the token may become public.

Formal guarantee: see `calibration`. Since R's coordinates sum to 1, its largest is at least 1/a; a token nobody voted
for has coordinate 0 and can never be released, so only active tokens need coordinates.

Shape suffixes: R sessions, M worlds, A active tokens, D = A − 1 directions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError
from reticent.pac.accounting import check_step_budget
from reticent.pac.calibration import Calibration, calibrate, calibrate_batch, vote_weights_batch
from reticent.pac.release import BatchRelease, Release, require_world
from reticent.randomness import NoiseSource


@dataclass(frozen=True, slots=True)
class GaussianMechanism:
    """Add calibrated Gaussian noise to the realised world's one-hot vote and release the largest coordinate.

    Attributes:
        step_budget: b, in nats.

    Raises:
        InvalidValueError: the budget is out of range.
    """

    step_budget: float

    def __post_init__(self) -> None:
        check_step_budget(self.step_budget)

    def calibrate(self, vote_weights_A: NDArray[np.float64]) -> Calibration:
        """Return the noise for these vote weights; see `calibration.calibrate`."""
        return calibrate(vote_weights_A, self.step_budget)

    def release(self, index_M: NDArray[np.int64], calibration: Calibration, secret: int, noise: NoiseSource) -> Release:
        """Draw R = onehot(v_S) + Σ_i √e_i g_i u_i and return its largest coordinate with the log-likelihoods.

        Args:
            index_M: each world's vote as an index among the active tokens, int64[m].
            calibration: this mechanism's calibration for the posterior mass behind those tokens.
            secret: S, in [0, m).
            noise: the source of the normal values g.

        Raises:
            InvalidValueError: the calibration is for another budget, or the secret is not a world.
        """
        if calibration.step_budget != self.step_budget:
            raise InvalidValueError(
                f"calibrated for a step budget of {calibration.step_budget!r} nats, used at {self.step_budget!r}"
            )
        require_world(secret, index_M)
        normals_D = noise.standard_normal(calibration.noise_variances.size)
        noisy_A = calibration.directions.dot(np.sqrt(calibration.noise_variances) * normals_D)
        noisy_A[index_M[secret]] += 1.0
        return Release(int(noisy_A.argmax()), log_likelihood(calibration, index_M, noisy_A))

    def release_batch(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """Release one token in each of R sessions; see `BatchMechanism.release_batch`."""
        noisy = calibrate_batch(vote_weights_batch(index_M, weights_RM), self.step_budget)
        shape = noisy.noise_variances_RD.shape
        normals_RD = noise.standard_normal(shape[0] * shape[1]).reshape(shape)
        noisy_RA = np.einsum("rad,rd->ra", noisy.directions_RAD, np.sqrt(noisy.noise_variances_RD) * normals_RD)
        noisy_RA[np.arange(len(secrets_R)), index_M[secrets_R]] += 1.0
        return noisy_RA.argmax(axis=1), noisy.log_likelihood(noisy_RA)[:, index_M]


def log_likelihood(
    calibration: Calibration, index_M: NDArray[np.int64], noisy_vector_A: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return each world's log-likelihood of a noisy vector, up to a constant common to all worlds, float64[m].

    With A_j = (onehot(v_j) − q)·U and z = (R − q)·U it is Σ_i (A_ji z_i / e_i − A_ji² / (2 e_i)): the squared
    distance expanded, without the term in z² that all worlds share. At b = 2^-32 that term is some 10^5 times what
    remains, and in the unexpanded form its rounding would drown the rest.
    """
    offset_D = (noisy_vector_A - calibration.vote_weights).dot(calibration.directions)
    centred_AD = calibration.centred_votes
    per_token_A = (centred_AD * (offset_D - 0.5 * centred_AD)).dot(1.0 / calibration.noise_variances)
    by_world_M: NDArray[np.float64] = per_token_A[index_M]
    return by_world_M


def noise_covariance(calibration: Calibration) -> NDArray[np.float64]:
    """Return the covariance of the noise over active tokens, U diag(e) Uᵀ, float64[A, A]."""
    covariance: NDArray[np.float64] = (calibration.directions * calibration.noise_variances) @ calibration.directions.T
    return covariance


def gaussian_bound_nats(calibration: Calibration) -> float:
    """Return ½ Σ log(1 + λ_i / e_i), which lies between I(S; R | history) and the step budget, in nats."""
    return 0.5 * float(np.log1p(calibration.variances / calibration.noise_variances).sum())
