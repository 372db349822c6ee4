"""The one function that relative entropies near zero are summed from without cancellation."""

import math

_SERIES_BELOW = 0.1
_SERIES_ORDER = 18


def phi(x: float) -> float:
    """Return φ(x) = (1 + x) log(1 + x) − x for x ≥ −1; by its series Σ_{n≥2} (−x)ⁿ / (n(n − 1)) near 0.

    For laws P and Q with P = (1 + x) Q, KL(P ‖ Q) = Σ Q φ(x): every term is non-negative, as φ ≥ 0.
    """
    if x <= -1.0:
        return 1.0
    if abs(x) > _SERIES_BELOW:
        return (1.0 + x) * math.log1p(x) - x
    total = 0.0
    for n in range(_SERIES_ORDER, 1, -1):
        total = total * -x + 1.0 / (n * (n - 1))
    return total * x * x
