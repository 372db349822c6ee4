"""Calibration of the Gaussian noise of one release (arXiv 2609.05676, on arXiv 2210.03458).

A release adds Gaussian noise to the one-hot vote of the realised world. Under the curator's posterior that vote has
covariance Σ = diag(q) − q qᵀ, and noise of covariance tr(Σ^½) Σ^½ / (2b) on the sum-zero subspace is the least that
keeps the information at b nats.

Formal guarantee. For a `Calibration` with orthonormal directions u_i and noise variances e_i,

    I(S; R | history) ≤ ½ log det(1 + N⁻¹ Σ) ≤ ½ Σ_i (u_iᵀ Σ u_i) / e_i ≤ b.

The last two terms need the directions to be orthonormal and the λ_i to be at least u_iᵀ Σ u_i, nothing more: they hold
for *computed* eigenvectors. So the λ_i are taken as u_iᵀ Σ u_i = Σ_c q_c (u_ci − Σ_d q_d u_di)², a sum of squares
without cancellation, and all roundings go up.

| case | outcome |
|---|---|
| a dissenting token of tiny mass | its direction keeps noise: λ is floored relative to the largest |
| a mass that is 0 in float64 | the same |
| every mass but one is 0 in float64 | λ is floored absolutely: noise stays positive and finite |
| one active token | no calibration: the votes are unanimous, see `curator` |

Shape suffixes: R sessions, M worlds, A active tokens, D = A − 1 directions.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dsyevd

from reticent.errors import InvalidValueError
from reticent.pac.accounting import check_step_budget
from reticent.pac.posterior import Posterior

_RELATIVE_FLOOR = 2.0**-52
_ABSOLUTE_FLOOR = 2.0**-104
# Far above the rounding of roots, sums and eigenvectors (about A · 2^-52), far below anything that matters to utility.
_ROUND_UP = 1.0 + 2.0**-40
_MASS_TOLERANCE = 1e-9
_SQRT_2 = math.sqrt(2.0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Calibration:
    """The noise of one release. It derives from the posterior, so its repr shows none of it.

    Attributes:
        step_budget: b, in nats.
        vote_weights: q, the posterior mass behind each active token, float64[A].
        directions: U, an orthonormal basis of the sum-zero subspace, one column a direction, float64[A, D].
        centred_votes: (onehot(c) − q)·U for each active token c, float64[A, D].
        variances: λ, the variance of the vote along each direction, rounded and floored upward, float64[D].
        noise_variances: e, the variance of the noise along each direction, float64[D].
    """

    step_budget: float
    vote_weights: NDArray[np.float64]
    directions: NDArray[np.float64]
    centred_votes: NDArray[np.float64]
    variances: NDArray[np.float64]
    noise_variances: NDArray[np.float64]

    @property
    def num_active(self) -> int:
        """The number of active tokens, a."""
        return self.vote_weights.size

    def __repr__(self) -> str:
        return f"Calibration(num_active={self.num_active}, step_budget={self.step_budget!r})"


@dataclass(frozen=True)
class BatchCalibration:
    """A `Calibration` with a leading dimension of sessions."""

    vote_weights_RA: NDArray[np.float64]
    directions_RAD: NDArray[np.float64]
    centred_RAD: NDArray[np.float64]
    noise_variances_RD: NDArray[np.float64]

    def log_likelihood(self, noisy_RA: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return that of each active token's voters, up to a constant a session, float64[R, A]; see `gaussian`."""
        offset_RD = np.einsum("ra,rad->rd", noisy_RA - self.vote_weights_RA, self.directions_RAD)
        terms_RAD = self.centred_RAD * (offset_RD[:, None] - 0.5 * self.centred_RAD)
        likelihood: NDArray[np.float64] = np.einsum("rad,rd->ra", terms_RAD, 1.0 / self.noise_variances_RD)
        return likelihood


def active_votes(votes_M: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct voted tokens, ascending, and each world's index among them.

    Args:
        votes_M: each world's token, int64[m].

    Returns:
        int64[A] and int64[m].
    """
    active_A = np.array(sorted(set(votes_M.tolist())), dtype=np.int64)
    return active_A, active_A.searchsorted(votes_M)


def vote_weights(index_M: NDArray[np.int64], posterior: Posterior) -> NDArray[np.float64]:
    """Return q, the posterior mass behind each active token, float64[A].

    Args:
        index_M: each world's vote as an index among the active tokens, int64[m]; every index up to the largest occurs.
        posterior: the belief over the same m worlds.
    """
    mass_A: NDArray[np.float64] = np.bincount(index_M, weights=posterior.weights)  # type: ignore[assignment]
    return mass_A


def vote_weights_batch(index_M: NDArray[np.int64], weights_RM: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the posterior mass behind each active token in each session, float64[R, A], rows summing to 1."""
    voted_MA = (index_M[:, None] == np.arange(index_M.max() + 1)).astype(np.float64)
    weights_RA = weights_RM @ voted_MA
    normalised: NDArray[np.float64] = weights_RA / weights_RA.sum(axis=1, keepdims=True)
    return normalised


def check_vote_weights(vote_weights_A: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vote weights, divided by their sum, if they are a distribution over at least two tokens.

    Raises:
        InvalidValueError: fewer than two tokens, a negative mass, or masses that do not sum to 1.
    """
    if vote_weights_A.ndim != 1 or vote_weights_A.size < 2:
        raise InvalidValueError(f"a release needs at least two active tokens, got shape {vote_weights_A.shape}")
    masses = vote_weights_A.tolist()
    total = math.fsum(masses)
    if not abs(total - 1.0) <= _MASS_TOLERANCE or not min(masses) >= 0.0:
        raise InvalidValueError(f"vote weights must be non-negative and sum to 1, but sum to {total!r}")
    weights_A: NDArray[np.float64] = vote_weights_A / total
    return weights_A


def calibrate(vote_weights_A: NDArray[np.float64], step_budget: float) -> Calibration:
    """Return the noise that holds one release to `step_budget` nats.

    Args:
        vote_weights_A: q, the posterior mass behind each of a ≥ 2 active tokens, float64[A]; zeros are allowed.
        step_budget: b, in nats.

    Raises:
        InvalidValueError: fewer than two tokens, a negative mass, masses that do not sum to 1, or b out of range.
    """
    step_budget = check_step_budget(step_budget)
    weights_A = check_vote_weights(vote_weights_A)
    if weights_A.size == 2:
        return _two_way(weights_A, step_budget)
    return _many_way(weights_A, step_budget)


def calibrate_batch(weights_RA: NDArray[np.float64], step_budget: float) -> BatchCalibration:
    """Return the noise of many releases with one number of active tokens; for experiments, not rounded upward."""
    num_active = weights_RA.shape[1]
    basis_AD = _sum_zero_basis(num_active)
    if num_active == 2:
        directions_RAD = np.broadcast_to(basis_AD, (len(weights_RA), 2, 1))
        centred_RAD = (math.sqrt(2.0) * np.sign(basis_AD[:, 0]) * weights_RA[:, ::-1])[..., None]
    else:
        centred_RAD = basis_AD - (weights_RA @ basis_AD)[:, None]
        _, rotations_RDD = np.linalg.eigh(np.matmul((centred_RAD * weights_RA[..., None]).mT, centred_RAD))
        directions_RAD, centred_RAD = basis_AD @ rotations_RDD, centred_RAD @ rotations_RDD
    variances_RD = np.einsum("ra,rad->rd", weights_RA, centred_RAD * centred_RAD)
    floor_R1 = np.maximum(_RELATIVE_FLOOR * variances_RD.max(axis=1, keepdims=True), _ABSOLUTE_FLOOR)
    deviations_RD = np.sqrt(np.maximum(variances_RD, floor_R1))
    noise_RD = deviations_RD * deviations_RD.sum(axis=1, keepdims=True) / (2.0 * step_budget)
    return BatchCalibration(weights_RA, directions_RAD, centred_RAD, noise_RD)


def _two_way(weights_A: NDArray[np.float64], step_budget: float) -> Calibration:
    """Closed form along u = (1, −1)/√2: λ = 2 q(1 − q), e = λ / (2b)."""
    first, second = weights_A.tolist()
    variance = max(2.0 * first * second, _ABSOLUTE_FLOOR)
    return Calibration(
        step_budget,
        weights_A,
        _sum_zero_basis(2),
        np.array([[_SQRT_2 * second], [-_SQRT_2 * first]]),
        np.array([variance]),
        np.array([variance / (2.0 * step_budget) * _ROUND_UP]),
    )


def _many_way(weights_A: NDArray[np.float64], step_budget: float) -> Calibration:
    basis_AD = _sum_zero_basis(weights_A.size)
    # `dot`, not `@`: matrices this small are multiplied in half the time.
    centred_AD = basis_AD - weights_A.dot(basis_AD)
    _, rotation_DD, failed = dsyevd((centred_AD * weights_A[:, None]).T.dot(centred_AD))
    if failed:
        raise np.linalg.LinAlgError("the eigendecomposition of the vote covariance did not converge")
    centred_AD = centred_AD.dot(rotation_DD)
    variances = weights_A.dot(centred_AD * centred_AD).tolist()
    floor = max(_RELATIVE_FLOOR * max(variances), _ABSOLUTE_FLOOR)
    variances_D = np.array([max(variance, floor) for variance in variances])
    deviations_D = np.sqrt(variances_D)
    noise_D = deviations_D * (sum(deviations_D.tolist()) / (2.0 * step_budget) * _ROUND_UP)
    return Calibration(step_budget, weights_A, basis_AD.dot(rotation_DD), centred_AD, variances_D, noise_D)


@lru_cache(maxsize=256)
def _sum_zero_basis(num_active: int) -> NDArray[np.float64]:
    """The Helmert basis of the subspace orthogonal to 1: column k is (1, ..., 1, −k, 0, ..., 0) / √(k(k + 1))."""
    order = np.arange(1, num_active, dtype=np.float64)
    basis = np.triu(np.ones((num_active, num_active - 1)))
    basis[order.astype(np.int64), order.astype(np.int64) - 1] = -order
    basis /= np.sqrt(order * (order + 1.0))
    basis.flags.writeable = False
    return basis
