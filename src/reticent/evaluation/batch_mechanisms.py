"""The release mechanisms of `pac` over many sessions at once.

R sessions that share the votes of a step differ in S, posterior and noise alone; the arithmetic of `pac.calibration`,
`pac.gaussian` and `pac.mixture` is done for all of them together. The tests hold it to those modules, release by
release. For experiments only: nothing here is rounded to the private side.

Shape suffixes: R sessions, M worlds, A active tokens, D = A − 1 directions.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from reticent.evaluation.divergence import phi
from reticent.pac.accounting import check_step_budget
from reticent.pac.gaussian import Mechanism
from reticent.pac.mechanism import ReleaseMechanism
from reticent.randomness import NoiseSource

# As in `pac.calibration` and `pac.mixture`.
_RELATIVE_FLOOR = 2.0**-52
_ABSOLUTE_FLOOR = 2.0**-104
_LEAST_MASS = 2.0**-1000
_MAX_STEPS = 200
_ACCURACY = 2.0**-32

BatchRelease = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Each session's released index among the active tokens, int64[R], and its log-likelihoods, float64[R, M]."""


class BatchMechanism(Protocol):
    """A release mechanism over R sessions that share the votes of each step."""

    def release(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """Release one token a session; `index_M` is each world's vote as an index among a ≥ 2 active tokens."""
        ...


def batch_mechanism(mechanism: ReleaseMechanism, step_budget: float) -> BatchMechanism:
    """Return the batched form of a release mechanism at a step budget in nats.

    Raises:
        InvalidValueError: the budget is out of range.
    """
    return MixtureBatch(step_budget) if mechanism is ReleaseMechanism.MIXTURE else GaussianBatch(step_budget)


@dataclass(frozen=True)
class GaussianBatch:
    """`pac.gaussian.GaussianMechanism` for many sessions; `step_budget` b in nats."""

    step_budget: float

    def __post_init__(self) -> None:
        check_step_budget(self.step_budget)

    def release(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """See `BatchMechanism.release`."""
        noisy = calibrate_batch(vote_weights_batch(index_M, weights_RM), self.step_budget)
        shape = noisy.noise_variances_RD.shape
        normals_RD = noise.standard_normal(shape[0] * shape[1]).reshape(shape)
        noisy_RA = np.einsum("rad,rd->ra", noisy.directions_RAD, np.sqrt(noisy.noise_variances_RD) * normals_RD)
        noisy_RA[np.arange(len(secrets_R)), index_M[secrets_R]] += 1.0
        return noisy_RA.argmax(axis=1), noisy.log_likelihood(noisy_RA)[:, index_M]


@dataclass(frozen=True)
class MixtureBatch:
    """`pac.mixture.MixtureMechanism` for many sessions; `step_budget` b in nats."""

    step_budget: float

    def __post_init__(self) -> None:
        check_step_budget(self.step_budget)

    def release(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """See `BatchMechanism.release`."""
        weights_RA = np.maximum(vote_weights_batch(index_M, weights_RM), _LEAST_MASS)
        keep_R = keep_probabilities(weights_RA, self.step_budget)
        kept_R, position_R = noise.uniform(2 * len(keep_R)).reshape(2, -1)
        cumulated_RA = weights_RA.cumsum(axis=1)
        drawn_R = (cumulated_RA < position_R[:, None] * cumulated_RA[:, -1:]).sum(axis=1)
        released_R = np.where(kept_R <= keep_R, index_M[secrets_R], drawn_R)
        mass_R = weights_RA[np.arange(len(keep_R)), released_R]
        with np.errstate(divide="ignore"):
            others_R = np.log1p(-keep_R)
        same_R = np.log1p(keep_R * (1.0 - mass_R) / mass_R)
        return released_R, np.where(index_M == released_R[:, None], same_R[:, None], others_R[:, None])


@dataclass(frozen=True)
class OneByOne:
    """Any `pac.gaussian.Mechanism`, one session after another."""

    mechanism: Mechanism[Any]

    def release(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """See `BatchMechanism.release`."""
        draws = []
        for weights_A, secret in zip(vote_weights_batch(index_M, weights_RM), secrets_R, strict=True):
            calibration = self.mechanism.calibrate(weights_A)
            draws.append(self.mechanism.release(index_M, calibration, int(secret), noise))
        return np.array([draw.index for draw in draws]), np.stack([draw.log_likelihood for draw in draws])


@dataclass(frozen=True)
class NoiseBatch:
    """`pac.calibration.Calibration` with a leading dimension of sessions."""

    vote_weights_RA: NDArray[np.float64]
    directions_RAD: NDArray[np.float64]
    centred_RAD: NDArray[np.float64]
    noise_variances_RD: NDArray[np.float64]

    def log_likelihood(self, noisy_RA: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each active token's voters, up to a constant a session, float64[R, A]; see `pac.gaussian`."""
        offset_RD = np.einsum("ra,rad->rd", noisy_RA - self.vote_weights_RA, self.directions_RAD)
        terms_RAD = self.centred_RAD * (offset_RD[:, None] - 0.5 * self.centred_RAD)
        likelihood: NDArray[np.float64] = np.einsum("rad,rd->ra", terms_RAD, 1.0 / self.noise_variances_RD)
        return likelihood


def vote_weights_batch(index_M: NDArray[np.int64], weights_RM: NDArray[np.float64]) -> NDArray[np.float64]:
    """The posterior mass behind each active token in each session, float64[R, A], rows summing to 1."""
    voted_MA = (index_M[:, None] == np.arange(index_M.max() + 1)).astype(np.float64)
    weights_RA = weights_RM @ voted_MA
    normalised: NDArray[np.float64] = weights_RA / weights_RA.sum(axis=1, keepdims=True)
    return normalised


def calibrate_batch(weights_RA: NDArray[np.float64], step_budget: float) -> NoiseBatch:
    """`pac.calibration.calibrate` for many vote weights of one number of active tokens."""
    num_active = weights_RA.shape[1]
    basis_AD = np.ascontiguousarray(helmert(num_active).T)
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
    return NoiseBatch(weights_RA, directions_RAD, centred_RAD, noise_RD)


def keep_probabilities(weights_RA: NDArray[np.float64], step_budget: float) -> NDArray[np.float64]:
    """The largest α of the mixture release whose information is at most b, float64[R].

    Newton's steps for log I as a function of log α, kept inside a bracket that they shrink; see `pac.mixture`.
    """
    low_R = np.full(len(weights_RA), math.sqrt(min(step_budget / (weights_RA.shape[1] - 1), 1.0)))
    whole_R = _mixture_information(weights_RA, np.ones_like(low_R)) <= step_budget
    keep_R, high_R = np.where(whole_R, 0.5, low_R), np.ones_like(low_R)
    for _ in range(_MAX_STEPS):
        nats_R = _mixture_information(weights_RA, keep_R)
        if np.all(whole_R | (np.abs(nats_R - step_budget) <= _ACCURACY * step_budget)):
            break
        low_R = np.where(nats_R <= step_budget, keep_R, low_R)
        high_R = np.where(nats_R > step_budget, keep_R, high_R)
        # Where the whole vote may be released the numbers do not matter, and may leave their range.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            elasticity_R = keep_R * _mixture_slope(weights_RA, keep_R) / nats_R
            step_R = keep_R * (step_budget / nats_R) ** (1.0 / elasticity_R)
        keep_R = np.where((low_R < step_R) & (step_R < high_R), step_R, np.sqrt(low_R * high_R))
    return np.where(whole_R, 1.0, keep_R)


def _mixture_information(weights_RA: NDArray[np.float64], keep_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """I(S; Y) = Σ_c q_c [q_c φ(α (1 − q_c) / q_c) + (1 − q_c) φ(−α)], in nats, float64[R]; see `pac.mixture`."""
    rest_RA = 1.0 - weights_RA
    gain_RA = weights_RA * phi(keep_R[:, None] * rest_RA / weights_RA)
    nats_R: NDArray[np.float64] = (weights_RA * (gain_RA + rest_RA * phi(-keep_R)[:, None])).sum(axis=1)
    return nats_R


def _mixture_slope(weights_RA: NDArray[np.float64], keep_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """dI/dα = Σ_c q_c (1 − q_c) (log(1 + x_c) − log(1 − α)), float64[R]."""
    rest_RA = 1.0 - weights_RA
    with np.errstate(divide="ignore"):
        rise_RA = np.log1p(keep_R[:, None] * rest_RA / weights_RA) - np.log1p(-keep_R)[:, None]
    slope_R: NDArray[np.float64] = (weights_RA * rest_RA * rise_RA).sum(axis=1)
    return slope_R
