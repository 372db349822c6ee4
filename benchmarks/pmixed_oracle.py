"""PMixED's projection written plainly: one expert after another, bisection on the divergences as they are defined."""

import numpy as np
from numpy.typing import NDArray

_STEPS = 40


def renyi_divergence(p_V: NDArray[np.float64], q_V: NDArray[np.float64], order: int) -> float:
    """D_order(p ‖ q) in nats, by its definition in log space."""
    with np.errstate(divide="ignore"):
        terms = order * np.log(p_V) + (1 - order) * np.log(q_V)
    largest = terms.max()
    if largest == np.inf:
        return float("inf")
    return float(largest + np.log(np.exp(terms - largest).sum())) / (order - 1)


def in_ball(
    weight: float, expert_V: NDArray[np.float64], public_V: NDArray[np.float64], beta: float, orders: range
) -> bool:
    """True if the mixture stays within beta · order of the public distribution, both ways and at every order."""
    mixed_V = weight * expert_V + (1 - weight) * public_V
    return all(
        max(renyi_divergence(mixed_V, public_V, order), renyi_divergence(public_V, mixed_V, order)) <= beta * order
        for order in orders
    )


def mixing_weights(
    experts_NV: NDArray[np.float64], public_V: NDArray[np.float64], beta: float, orders: range
) -> NDArray[np.float64]:
    """Each expert's largest weight in the ball, to 40 bisections."""
    weights = []
    for expert_V in experts_NV:
        low, high = 0.0, 1.0
        if in_ball(high, expert_V, public_V, beta, orders):
            low = high
        for _ in range(_STEPS if low < high else 0):
            middle = 0.5 * (low + high)
            if in_ball(middle, expert_V, public_V, beta, orders):
                low = middle
            else:
                high = middle
        weights.append(low)
    return np.array(weights)
