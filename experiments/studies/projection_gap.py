"""The effect on PMixED's ball of a projection checked at one order only, as its public code does.

The accounting relies on D_o(p̄ ‖ p₀) ≤ β o and D_o(p₀ ‖ p̄) ≤ β o at every order o = 2 … 2α. A projection that is
checked at order α alone may take a larger λ; here is by how much, and how far the divergences then exceed the ball.
Written plainly, expert by expert, in log space: a study, not the path that `experiments.studies.pmixed` takes.

Shape suffixes: N experts, V vocabulary.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from reticent import _validate

_HALVINGS = 40


def renyi_divergence(order: int, first_V: NDArray[np.float64], second_V: NDArray[np.float64]) -> float:
    """D_o(P ‖ Q) = log Σ P^o Q^(1 − o) / (o − 1), in nats; Q positive everywhere."""
    _validate.integer_in_range("order", order, 2)
    with np.errstate(divide="ignore"):
        terms_V = order * np.log(first_V) + (1 - order) * np.log(second_V)
    return max(0.0, float(logsumexp(terms_V))) / (order - 1)


def excess(mixed_V: NDArray[np.float64], public_V: NDArray[np.float64], beta: float, orders: Iterable[int]) -> float:
    """The largest of D_o(p̄ ‖ p₀)/(β o) and D_o(p₀ ‖ p̄)/(β o) over some orders; at most 1 inside the ball."""
    _validate.positive_finite("beta", beta)
    return max(
        renyi_divergence(order, *pair) / (beta * order)
        for order in orders
        for pair in ((mixed_V, public_V), (public_V, mixed_V))
    )


def one_order_weights(
    experts_NV: NDArray[np.float64], public_V: NDArray[np.float64], beta: float, order: int
) -> NDArray[np.float64]:
    """The largest λ of each expert that keeps both divergences within β·order at that order alone, float64[N]."""
    weights_N = np.empty(len(experts_NV))
    for expert, expert_V in enumerate(experts_NV):
        low, high = 0.0, 1.0
        if excess(expert_V, public_V, beta, (order,)) <= 1.0:
            low = 1.0
        for _ in range(_HALVINGS if low < 1.0 else 0):
            middle = 0.5 * (low + high)
            mixed_V = public_V + middle * (expert_V - public_V)
            if excess(mixed_V, public_V, beta, (order,)) <= 1.0:
                low = middle
            else:
                high = middle
        weights_N[expert] = low
    return weights_N
