"""Many deployments in lockstep: one stream of votes, R secrets, posteriors and noise draws.

Unanimous steps cost nothing, and a dissenting one costs a few operations on arrays whatever R is. What a session does
is what `pac.curator.Curator` does, without an account; the tests hold it to that. For experiments only: the noise is
seeded.

Shape suffixes: R sessions, M worlds, A active tokens.
"""

import math

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent.errors import InvalidValueError
from reticent.pac.calibration import active_votes
from reticent.pac.release import BatchMechanism
from reticent.randomness import NoiseSource


class SessionBatch:
    """R deployments, each with its own S and posterior, all asked the same queries.

    Args:
        mechanism: releases the dissenting steps.
        secrets_R: S of each session, int64[R].
        num_worlds: m.
        noise: of all sessions.

    Raises:
        InvalidValueError: a secret is not a world.
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
        index_R, likelihood_RM = self._mechanism.release_batch(index_M, self.weights, self.secrets_R, self._noise)
        log_weights_RM = self._log_weights_RM + likelihood_RM
        largest_R1 = log_weights_RM.max(axis=1, keepdims=True)
        total_R1 = np.exp(log_weights_RM - largest_R1).sum(axis=1, keepdims=True)
        self._log_weights_RM = log_weights_RM - (largest_R1 + np.log(total_R1))
        return active_A[index_R]


def secret_indices(num_sessions: int, num_worlds: int, noise: NoiseSource) -> NDArray[np.int64]:
    """Draw S for each session independently, int64[R]."""
    return np.array([noise.secret_index(num_worlds) for _ in range(num_sessions)])
