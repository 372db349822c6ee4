"""Readings of ρ: (ε, δ), an adversary's success in telling whether a unit is in the corpus, and the inverse of each.

Formal guarantee. If everything released is ρ-zCDP, its Rényi divergences of every order α > 1 are at most αρ, so

* it is (ε, δ)-DP with ε = inf over α of αρ + ln(1 − 1/α) − (ln δ + ln α)/(α − 1) (Canonne, Kamath and Steinke 2020),
  each order being a proof of its own;
* whoever is asked whether a unit is in the corpus, with prior ½, is right with probability at most the largest s with
  (2s − 1) ln(s/(1 − s)) ≤ ρ: the order tends to 1, and as zCDP holds both ways and the divergence is jointly convex,
  the best test may be taken to err equally often on both sides.

Searches end on the private side: an ε or a success is never below the true bound, a ρ derived from one never above it.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from reticent._validate import non_negative_finite, open_probability, positive_finite
from reticent.errors import InvalidValueError

MEMBERSHIP_PRIOR: Final = 0.5

# Above the relative rounding errors of the formulas here.
_SAFETY: Final = 2.0**-40
# Logarithms of α − 1 from which the search for the best order starts.
_LOG_ORDERS: Final[NDArray[np.float64]] = np.linspace(-40.0, 80.0, 241)


def epsilon(rho: float, delta: float) -> float:
    """Return an ε such that ρ-zCDP gives (ε, δ)-DP; 0 where δ alone covers it.

    Args:
        rho: total ρ, non-negative and finite.
        delta: in (0, 1).

    Raises:
        InvalidValueError: a value out of range.
    """
    rho, delta = non_negative_finite("rho", rho), open_probability("delta", delta)
    if rho == 0.0:
        return 0.0

    def at(log_x: float) -> float:
        x = math.exp(log_x)
        return (1.0 + x) * rho + _order_cost(x, delta)

    best = at(_best_order(at))
    return max(0.0, best + _SAFETY * abs(best) + _SAFETY * rho)


def rho_for_epsilon(target: float, delta: float) -> float:
    """Return the largest ρ whose (ε, δ) stays within `target`, rounded down.

    Raises:
        InvalidValueError: the target is not positive and finite, or δ is not in (0, 1).
    """
    target, delta = positive_finite("total epsilon", target), open_probability("delta", delta)

    def at(log_x: float) -> float:
        x = math.exp(log_x)
        return -(target - _order_cost(x, delta)) / (1.0 + x)

    return -at(_best_order(at)) * (1.0 - 4.0 * _SAFETY)


def membership_success(rho: float) -> float:
    """Return the bound on the success of telling whether a unit is in the corpus (prior ½), rounded up.

    Raises:
        InvalidValueError: ρ is negative or not finite.
    """
    target = non_negative_finite("rho", rho) * (1.0 + _SAFETY)
    low, high = 0.0, min(0.5, math.sqrt(target / 8.0) * (1.0 + _SAFETY))
    while low < (middle := 0.5 * (low + high)) < high:
        if _rho_of_gain(middle) < target:
            low = middle
        else:
            high = middle
    success = MEMBERSHIP_PRIOR + high
    return min(1.0, success if success - MEMBERSHIP_PRIOR >= high else math.nextafter(success, 1.0))


def rho_for_success(success: float) -> float:
    """Return the largest ρ under which nobody exceeds `success`, rounded down.

    Raises:
        InvalidValueError: the success is not strictly between ½ and 1.
    """
    if not MEMBERSHIP_PRIOR < success < 1.0:
        raise InvalidValueError(
            f"membership success must lie strictly between 0.5 and 1, got {success!r}: guessing alone reaches 0.5"
        )
    return _rho_of_gain(success - MEMBERSHIP_PRIOR) * (1.0 - 4.0 * _SAFETY)


def _order_cost(x: float, delta: float) -> float:
    """The amount that the order 1 + x adds to (1 + x)ρ in the bound on ε."""
    return -math.log1p(1.0 / x) - (math.log(delta) + math.log1p(x)) / x


def _best_order(objective: Callable[[float], float]) -> float:
    """The logarithm of α − 1 at which an objective is least, as far as a search finds it; any would be valid."""
    start = float(min(_LOG_ORDERS, key=objective))
    step = float(_LOG_ORDERS[1] - _LOG_ORDERS[0])
    found = minimize_scalar(objective, bounds=(start - step, start + step), method="bounded", options={"xatol": 1e-9})
    return min(start, float(found.x), key=objective)


def _rho_of_gain(gain: float) -> float:
    """(2s − 1) ln(s/(1 − s)) at s = ½ + gain, without cancellation."""
    return 4.0 * gain * math.atanh(2.0 * gain) if gain < 0.5 else math.inf
