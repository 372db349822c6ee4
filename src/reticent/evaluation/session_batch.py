"""Many deployments in lockstep: one stream of votes, R secrets, posteriors and noise draws.

Teacher-forced sessions that ask the same queries see the same votes; they differ in S and in the noise alone. So the
arithmetic of `pac.calibration`, `pac.mechanism` and `pac.posterior` is done for R sessions at once, and unanimous steps
cost nothing. The tests hold it to those modules, release by release. For experiments only: the noise is seeded.

Shape suffixes: R sessions, M worlds, A active tokens, D = A − 1 directions.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from reticent import _validate
from reticent.errors import InvalidValueError
from reticent.pac.calibration import active_votes, validated_step_budget
from reticent.pac.mechanism import Mechanism
from reticent.randomness import NoiseSource

# As in `pac.calibration`; the noise is not rounded up here, a relative difference of 2^-40.
_RELATIVE_FLOOR = 2.0**-52
_ABSOLUTE_FLOOR = 2.0**-104

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


@dataclass(frozen=True)
class GaussianBatch:
    """`pac.mechanism.GaussianMechanism` for many sessions at once; `step_budget` b in nats."""

    step_budget: float

    def __post_init__(self) -> None:
        validated_step_budget(self.step_budget)

    def release(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """See `BatchMechanism.release`."""
        noisy = _calibrated(index_M, weights_RM, self.step_budget)
        sessions = np.arange(len(secrets_R))
        normals_RD = noise.standard_normal(noisy.noise_variances_RD.size).reshape(noisy.noise_variances_RD.shape)
        noisy_RA = np.einsum("rad,rd->ra", noisy.directions_RAD, np.sqrt(noisy.noise_variances_RD) * normals_RD)
        noisy_RA[sessions, index_M[secrets_R]] += 1.0
        return noisy_RA.argmax(axis=1), noisy.log_likelihood(noisy_RA)[:, index_M]


@dataclass(frozen=True)
class _NoiseBatch:
    """`pac.calibration.Calibration` with a leading dimension of sessions."""

    vote_weights_RA: NDArray[np.float64]
    directions_RAD: NDArray[np.float64]
    centred_RAD: NDArray[np.float64]
    noise_variances_RD: NDArray[np.float64]

    def log_likelihood(self, noisy_RA: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each active token's voters, up to a constant a session, float64[R, A]; see `pac.mechanism`."""
        offset_RD = np.einsum("ra,rad->rd", noisy_RA - self.vote_weights_RA, self.directions_RAD)
        terms_RAD = self.centred_RAD * (offset_RD[:, None] - 0.5 * self.centred_RAD)
        likelihood: NDArray[np.float64] = np.einsum("rad,rd->ra", terms_RAD, 1.0 / self.noise_variances_RD)
        return likelihood


def _calibrated(index_M: NDArray[np.int64], weights_RM: NDArray[np.float64], step_budget: float) -> _NoiseBatch:
    num_active = int(index_M.max()) + 1
    weights_RA = weights_RM @ (index_M[:, None] == np.arange(num_active)).astype(np.float64)
    weights_RA /= weights_RA.sum(axis=1, keepdims=True)
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
    return _NoiseBatch(weights_RA, directions_RAD, centred_RAD, noise_RD)


@dataclass(frozen=True)
class OneByOne:
    """Any `pac.mechanism.Mechanism`, one session after another."""

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
        for weights_M, secret in zip(weights_RM, secrets_R, strict=True):
            weights_A: NDArray[np.float64] = np.bincount(index_M, weights=weights_M)  # type: ignore[assignment]
            calibration = self.mechanism.calibrate(weights_A)
            draws.append(self.mechanism.release(index_M, calibration, int(secret), noise))
        return np.array([draw.index for draw in draws]), np.stack([draw.log_likelihood for draw in draws])


class SessionBatch:
    """R deployments, each with its own S and posterior, all asked the same queries.

    Args:
        mechanism: releases the dissenting steps.
        secrets_R: S of each session, int64[R].
        num_worlds: m.
        noise: of all sessions.
    """

    def __init__(
        self, mechanism: BatchMechanism, secrets_R: NDArray[np.int64], num_worlds: int, noise: NoiseSource
    ) -> None:
        _validate.num_worlds(num_worlds)
        if secrets_R.ndim != 1 or secrets_R.size < 1 or not 0 <= secrets_R.min() <= secrets_R.max() < num_worlds:
            raise InvalidValueError(f"secrets must be one or more of the {num_worlds} worlds")
        self.secrets_R = secrets_R
        self._mechanism = mechanism
        self._noise = noise
        self._log_weights_RM = np.full((secrets_R.size, num_worlds), -math.log(num_worlds))

    @property
    def num_sessions(self) -> int:
        """R."""
        return self.secrets_R.size

    @property
    def log_weights(self) -> NDArray[np.float64]:
        """Each curator's posterior as log-weights, float64[R, M]."""
        return self._log_weights_RM

    @property
    def weights(self) -> NDArray[np.float64]:
        """Each curator's posterior, float64[R, M]."""
        weights: NDArray[np.float64] = np.exp(self._log_weights_RM)
        return weights

    def release(self, votes_M: NDArray[np.int64]) -> NDArray[np.int64]:
        """Release one token in each session and update the posteriors; returns int64[R]."""
        active_A, index_M = active_votes(votes_M)
        if active_A.size == 1:
            return np.full(self.num_sessions, active_A[0])
        index_R, likelihood_RM = self._mechanism.release(index_M, self.weights, self.secrets_R, self._noise)
        log_weights_RM = self._log_weights_RM + likelihood_RM
        largest_R1 = log_weights_RM.max(axis=1, keepdims=True)
        total_R1 = np.exp(log_weights_RM - largest_R1).sum(axis=1, keepdims=True)
        self._log_weights_RM = log_weights_RM - (largest_R1 + np.log(total_R1))
        return active_A[index_R]


def secret_indices(num_sessions: int, num_worlds: int, noise: NoiseSource) -> NDArray[np.int64]:
    """Draw S for each session independently, int64[R]."""
    return np.array([noise.secret_index(num_worlds) for _ in range(num_sessions)])
