"""φ(x) = (1 + x) log(1 + x) − x, from which relative entropies near zero are summed without cancellation.

For distributions P and Q with P = (1 + x) Q, KL(P ‖ Q) = Σ Q φ(x): every term is non-negative, as φ ≥ 0.
"""

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_SERIES_BELOW = 0.1
_SERIES_ORDER = 18

_Number = TypeVar("_Number", float, NDArray[np.float64])


def phi(x: float) -> float:
    """Return φ(x) for x ≥ −1."""
    if x <= -1.0:
        return 1.0
    if abs(x) > _SERIES_BELOW:
        return (1.0 + x) * math.log1p(x) - x
    return _series(x)


def phi_of_array(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return φ of each entry ≥ −1 of an array."""
    near = np.abs(x) <= _SERIES_BELOW
    ordinary = np.maximum(np.where(near, 0.0, x), -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        product = (1.0 + ordinary) * np.log1p(ordinary)
    closed = np.where(ordinary > -1.0, product, 0.0) - ordinary
    value: NDArray[np.float64] = np.where(near, _series(np.where(near, x, 0.0)), closed)
    return value


def _series(x: _Number) -> _Number:
    """Σ_{n≥2} (−x)ⁿ / (n(n − 1)), where the closed form would cancel."""
    total = 0.0 * x
    for n in range(_SERIES_ORDER, 1, -1):
        total = total * -x + 1.0 / (n * (n - 1))
    return total * x * x
