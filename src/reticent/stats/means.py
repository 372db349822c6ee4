"""Means over positions with standard errors over texts.

The positions of one text are alike, so texts are the units of sampling. A mean over all positions is a ratio of sums
over texts, Σ y_i / Σ x_i, and its standard error follows from the residuals y_i − r x_i (Cochran, "Sampling
Techniques", 1977, section 6.3: the delta method). The share of a gain is a ratio of the same form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from reticent import _validate
from reticent._settings import FiniteModel
from reticent.errors import InvalidValueError

CONFIDENCE = 0.95


class Mean(FiniteModel):
    """An estimate with its sampling error.

    Attributes:
        value: the estimate.
        standard_error: over the sampled units; None where there are fewer than two.
        num_samples: how many units (texts, sessions) were sampled.
    """

    value: float
    standard_error: float | None
    num_samples: int

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Student's interval with `num_samples` − 1 degrees of freedom; None without a standard error."""
        if self.standard_error is None:
            return None
        reach = float(stats.t.ppf(0.5 + 0.5 * confidence, self.num_samples - 1)) * self.standard_error
        return self.value - reach, self.value + reach


@dataclass(frozen=True)
class TextSpans:
    """Spans of texts in positions: text i has positions offsets[i] to offsets[i + 1] − 1; int64[texts + 1]."""

    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or self.offsets.size < 2 or self.offsets[0] != 0 or (np.diff(self.offsets) < 0).any():
            raise InvalidValueError("offsets of texts must rise from 0 and name at least one text")

    @property
    def num_texts(self) -> int:
        """The number of texts."""
        return self.offsets.size - 1

    @property
    def num_positions(self) -> int:
        """The number of positions."""
        return int(self.offsets[-1])

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Sum values over the positions of each text: [positions, …] -> float64[texts, …]."""
        if len(values) != self.num_positions:
            raise InvalidValueError(f"{self.num_positions} positions need as many values, got {len(values)}")
        running = np.zeros((self.num_positions + 1, *values.shape[1:]))
        np.cumsum(values, axis=0, dtype=np.float64, out=running[1:])
        sums: NDArray[np.float64] = running[self.offsets[1:]] - running[self.offsets[:-1]]
        return sums

    def mean(self, values_N: NDArray[Any]) -> Mean:
        """The mean over positions, with its standard error over texts."""
        return ratio(self.sums(values_N), np.diff(self.offsets).astype(np.float64))

    def mean_at(self, positions_P: NDArray[np.int64], values_P: NDArray[Any]) -> Mean:
        """The mean over some of the positions, with its standard error over texts."""
        text_P = np.searchsorted(self.offsets, positions_P, side="right") - 1
        numerators, denominators = (
            np.bincount(text_P, weights=weights, minlength=self.num_texts) for weights in (values_P, None)
        )
        return ratio(numerators.astype(np.float64), denominators.astype(np.float64))

    def text_of_position(self) -> NDArray[np.int64]:
        """The text of each position, int64[positions]."""
        return np.repeat(np.arange(self.num_texts), np.diff(self.offsets))


def ratio(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> Mean:
    """Σ numerators / Σ denominators over independent units, with its standard error.

    Units that add nothing to either sum are not counted.

    Raises:
        InvalidValueError: the denominators sum to 0, or a value is not finite.
    """
    counted = (numerators != 0.0) | (denominators != 0.0)
    numerators, denominators = numerators[counted], denominators[counted]
    total = float(denominators.sum())
    if not total or not math.isfinite(total) or not np.isfinite(numerators).all():
        raise InvalidValueError(f"a ratio of sums needs a denominator other than 0, got {total!r}")
    value = float(numerators.sum()) / total
    count = numerators.size
    if count < 2:
        return Mean(value=value, standard_error=None, num_samples=count)
    residuals = (numerators - value * denominators) / total
    error = math.sqrt(count / (count - 1) * float((residuals * residuals).sum()))
    return Mean(value=value, standard_error=error, num_samples=count)


def sample_mean(values: NDArray[np.float64] | Sequence[float]) -> Mean:
    """The mean of independent values, with its standard error."""
    array = np.asarray(values, dtype=np.float64)
    _validate.integer_in_range("number of values", array.size, 1)
    error = None if array.size < 2 else float(array.std(ddof=1)) / math.sqrt(array.size)
    return Mean(value=float(array.mean()), standard_error=error, num_samples=array.size)
