"""φ(x) = (1 + x) log(1 + x) − x over arrays: relative entropies near zero without cancellation."""

import numpy as np
from numpy.typing import NDArray

_SERIES_BELOW = 0.01
_SERIES_ORDER = 9


def phi(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """φ(x) for x ≥ −1; by its series Σ_{n≥2} (−x)ⁿ / (n(n − 1)) near 0, where the closed form cancels.

    For distributions P = (1 + x) Q it is KL(P ‖ Q) = Σ Q φ(x), each term non-negative.
    """
    near = np.abs(x) < _SERIES_BELOW
    small = np.where(near, x, 0.0)
    series = np.zeros_like(small)
    for n in range(_SERIES_ORDER, 1, -1):
        series = series * -small + 1.0 / (n * (n - 1))
    ordinary = np.maximum(np.where(near, 0.0, x), -1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        product = (1.0 + ordinary) * np.log1p(ordinary)
    closed = np.where(ordinary > -1.0, product, 0.0) - ordinary
    value: NDArray[np.float64] = np.where(near, series * small * small, closed)
    return value
