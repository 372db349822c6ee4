"""Min-K%: the mean of the least likely tokens alone (Shi 2024)."""

import math

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.errors import InvalidValueError
from reticent.protocols import TokenSignals

DEFAULT_FRACTION = 0.2


def mean_of_lowest(values_T: NDArray[np.float64], fraction: float) -> float:
    """Mean of the lowest max(1, ⌈fraction · T⌉) of at least one value.

    Raises:
        InvalidValueError: `fraction` is not in (0, 1].
    """
    if not 0.0 < fraction <= 1.0:
        raise InvalidValueError(f"the fraction of tokens must be above 0 and at most 1, got {fraction!r}")
    # Rounding first: 0.07 * 100 is 7.000000000000001 in binary, and its ceiling would be 8.
    count = max(1, math.ceil(round(fraction * len(values_T), 9)))
    return float(np.sort(values_T)[:count].mean())


def min_k(target: TokenSignals, fraction: float = DEFAULT_FRACTION) -> Score:
    """Mean of the lowest max(1, ⌈kT⌉) of ℓ, in nats; k is `fraction`."""
    if target.num_tokens == 0:
        return Missing("the text has no scored token")
    return mean_of_lowest(target.logp, fraction)
