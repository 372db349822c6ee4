"""The curator's belief over worlds, given everything the mechanism has ever drawn.

Contract: a `Posterior` never changes; it holds float64 log-weights, normalised, without NaN; a world of weight zero
(log-weight -inf) stays at zero. It depends on the noisy vectors, so it is as secret as they are: its repr shows none
of it.

Shape suffix: M worlds.
"""

import math
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr

from reticent import _validate
from reticent.errors import InvalidValueError

_NORMALISATION_TOLERANCE = 1e-9


@final
class Posterior:
    """A probability over m worlds (p in the papers), kept as log-weights.

    Args:
        log_weights_M: natural logarithms of the weights, float64[m], -inf allowed, as an earlier posterior gave them.

    Raises:
        InvalidValueError: the log-weights are not a normalised float64 vector of an even length, or hold NaN.
    """

    __slots__ = ("_log_weights", "_weights")

    _log_weights: NDArray[np.float64]
    _weights: NDArray[np.float64]

    def __init__(self, log_weights_M: NDArray[np.float64]) -> None:
        log_weights = np.array(log_weights_M, dtype=np.float64)
        if log_weights.ndim != 1:
            raise InvalidValueError(f"log-weights must be one vector over worlds, got shape {log_weights.shape}")
        _validate.num_worlds(log_weights.size)
        with np.errstate(over="ignore"):
            weights = np.exp(log_weights)
            total = float(weights.sum())
        if not abs(total - 1.0) <= _NORMALISATION_TOLERANCE:
            raise InvalidValueError(
                f"the posterior's weights must sum to 1, but sum to {total!r}; the stored posterior is damaged"
            )
        self._freeze(log_weights, weights)

    @classmethod
    def uniform(cls, num_worlds: int) -> "Posterior":
        """Return the prior: weight 1/m on each of `num_worlds` worlds."""
        return cls(np.full(_validate.num_worlds(num_worlds), -math.log(num_worlds)))

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self._log_weights.size

    @property
    def log_weights(self) -> NDArray[np.float64]:
        """The log-weights, float64[m], read-only."""
        return self._log_weights

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights, float64[m], read-only, summing to 1 up to rounding; weights below 1e-323 show as 0."""
        return self._weights

    def updated(self, log_likelihood_M: NDArray[np.float64]) -> "Posterior":
        """Return the posterior after an observation, by Bayes' rule in logarithms.

        Args:
            log_likelihood_M: each world's log-likelihood of the observation up to a common constant, float64[m].

        Raises:
            InvalidValueError: the shape differs, a value is NaN or +inf, or no world remains possible.
        """
        if log_likelihood_M.shape != self._log_weights.shape:
            raise InvalidValueError(
                f"log-likelihoods must have shape {self._log_weights.shape}, got {log_likelihood_M.shape}"
            )
        largest = float(log_likelihood_M.max(where=self._log_weights > -math.inf, initial=-math.inf))
        if not -math.inf < largest < math.inf:
            raise InvalidValueError(f"the largest log-likelihood of a possible world must be finite, got {largest!r}")
        # Each constant goes by itself, the likelihoods' first: behind a token of tiny mass they reach 10^9, where a sum
        # with log-weights, or with the logarithm of the total, would lose the digits that make the weights add up.
        log_weights = self._log_weights + (log_likelihood_M - largest)
        log_weights -= float(log_weights.max())
        total = float(np.exp(log_weights).sum())
        if not total >= 1.0:
            raise InvalidValueError("the log-likelihood of an impossible world is no number, or infinite")
        log_weights -= math.log(total)
        successor = object.__new__(Posterior)
        # The weights are those that the stored log-weights give, so that a restart moves no bit.
        successor._freeze(log_weights, np.exp(log_weights))
        return successor

    def entropy(self) -> float:
        """Return the entropy of the belief in nats."""
        return float(entr(self._weights).sum())

    def __repr__(self) -> str:
        return f"Posterior(num_worlds={self.num_worlds})"

    def _freeze(self, log_weights: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        log_weights.flags.writeable = False
        weights.flags.writeable = False
        self._log_weights = log_weights
        self._weights = weights
