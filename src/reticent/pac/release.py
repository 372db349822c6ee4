"""The protocol of a release mechanism: the realised world's vote becomes one token, at a charge that is fixed before.

Contract: the realised world enters at one place only, the choice of whose vote is used. Of a `Release` only the token's
index may become public.

Shape suffixes: R sessions, M worlds, A active tokens.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError
from reticent.randomness import NoiseSource

CalibrationT = TypeVar("CalibrationT")


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """One draw, as the curator gets it.

    Attributes:
        index: the released token's index among the active tokens; the only public part.
        log_likelihood: each world's log-likelihood of the draw up to a common constant, float64[m]; as secret as what
            was drawn.
    """

    index: int
    log_likelihood: NDArray[np.float64] = field(repr=False)


BatchRelease = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Each session's released index among the active tokens, int64[R], and its log-likelihoods, float64[R, M]."""


class BatchMechanism(Protocol):
    """A way of releasing one token in each of R sessions that share the votes of a step.

    The sessions differ in S, posterior and noise alone, so that the arithmetic is done for all of them together. For
    experiments: unlike that of a deployment, nothing is rounded to the private side.
    """

    def release_batch(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """Release one token a session.

        Args:
            index_M: each world's vote as an index among a ≥ 2 active tokens.
            weights_RM: each session's posterior.
            secrets_R: each session's S.
            noise: the source of all sessions' noise.
        """
        ...


class Mechanism(BatchMechanism, Protocol[CalibrationT]):
    """A way of releasing one token at a fixed charge, for a deployment and, in batches, for experiments."""

    @property
    def step_budget(self) -> float:
        """The mutual information to which one release is held, in nats."""
        ...

    def calibrate(self, vote_weights_A: NDArray[np.float64]) -> CalibrationT:
        """Fix the noise from the posterior mass behind each active token, before anything is drawn."""
        ...

    def release(
        self, index_M: NDArray[np.int64], calibration: CalibrationT, secret: int, noise: NoiseSource
    ) -> Release:
        """Draw one token. `index_M` is each world's vote as an index among the active tokens."""
        ...


def require_world(secret: int, index_M: NDArray[np.int64]) -> None:
    """Raise `InvalidValueError` if the secret is not one of the worlds that voted; the message does not show it."""
    if not 0 <= secret < index_M.size:
        raise InvalidValueError(f"the secret must be one of the {index_M.size} worlds")
