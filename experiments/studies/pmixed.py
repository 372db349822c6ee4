"""PMixED: sample the next token from projected experts mixed with the public model (arXiv 2403.15638).

The private corpus is cut into N disjoint shards, with one adapted expert each. Per token, each expert takes part with
probability q; its distribution p is pulled towards the public p₀ to p̄ = λ p + (1 − λ) p₀, with the largest λ in [0, 1]
for which p̄ stays in the ball

    D_o(p̄ ‖ p₀) ≤ β o  and  D_o(p₀ ‖ p̄) ≤ β o   for every order o = 2 … 2α that the accounting in `rdp` relies on,

and the token is drawn from the mean of the p̄ (from p₀ if no expert takes part). The public code checks order α alone.

Both divergences grow with λ, so the search for λ ends on the private side. In the forward direction the o-th power
mean is a polynomial in λ whose coefficients are central moments of p/p₀ under p₀: one pass over the vocabulary serves
all orders and all trial values of λ. Only experts that the backward direction restricts further cost more passes.

Shape suffixes: N experts, V vocabulary, J powers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import binom

from reticent import _validate
from reticent.errors import InvalidValueError

_SAFETY = 1.0 - 2.0**-20
"""Share of the ball's radius that is used: more than what rounding over a large vocabulary can hide."""
_HALVINGS = 60
_EXPERTS_AT_ONCE = 2
"""So few that their ratios stay in a processor's cache over a vocabulary of some ten thousand tokens."""


@dataclass(frozen=True)
class PMixedSettings:
    """Settings that determine PMixED's release.

    Attributes:
        num_shards: N, the number of experts.
        sampling_rate: q in (0, 1], with which each expert takes part in a token.
        max_order: α, the highest order of the accounting; the ball holds up to order 2α.
        beta: the ball's radius per order, in nats.

    Raises:
        InvalidValueError: a value out of range.
    """

    num_shards: int
    sampling_rate: float
    max_order: int
    beta: float

    def __post_init__(self) -> None:
        _validate.integer_in_range("num_shards", self.num_shards, 1)
        _validate.integer_in_range("max_order", self.max_order, 2, 64)
        _validate.non_negative_finite("beta", self.beta)
        if not 0.0 < self.sampling_rate <= 1.0:
            raise InvalidValueError(f"sampling_rate must lie in (0, 1], got {self.sampling_rate!r}")


def projection_orders(max_order: int) -> range:
    """The orders at which a projection must stay in the ball, for accounting up to `max_order`."""
    return range(2, 2 * max_order + 1)


def mixing_weights(
    experts_NV: NDArray[np.float64], public_V: NDArray[np.float64], beta: float, orders: range
) -> NDArray[np.float64]:
    """The largest λ of each expert that keeps its mixture with the public distribution in the ball, float64[N].

    Args:
        experts_NV: each expert's distribution, rows that sum to 1.
        public_V: the public distribution, positive everywhere.
        beta: the ball's radius per order, in nats.
        orders: consecutive integers from 2.

    Raises:
        InvalidValueError: shapes disagree, or a row is no distribution.
    """
    _check_distributions(experts_NV, public_V)
    _validate.non_negative_finite("beta", beta)
    # What E_p₀[(p̄/p₀)^o] − 1 may be at most, and E_p₀[(p̄/p₀)^(1 − o)] − 1 too.
    limits = np.array([_expm1((o - 1) * o * beta * _SAFETY) for o in orders])
    weights_N = np.empty(len(experts_NV))
    for start in range(0, len(experts_NV), _EXPERTS_AT_ONCE):
        rows = slice(start, start + _EXPERTS_AT_ONCE)
        excess_NV = experts_NV[rows] / public_V
        excess_NV -= 1.0
        forward_N = _forward_weights(excess_NV, public_V, orders, limits)
        weights_N[rows] = _restrict_backward(forward_N, excess_NV, public_V, limits)
    return weights_N


def mixed_distribution(
    experts_NV: NDArray[np.float64], public_V: NDArray[np.float64], weights_N: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The mean of the projected experts, float64[V]; the public distribution if there are none."""
    if len(weights_N) == 0:
        return public_V
    mean_V: NDArray[np.float64] = (weights_N @ experts_NV + (1.0 - weights_N).sum() * public_V) / len(weights_N)
    return mean_V


def token_distribution(
    experts_NV: NDArray[np.float64],
    public_V: NDArray[np.float64],
    settings: PMixedSettings,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """The distribution that the next token is drawn from, after drawing which experts take part; float64[V].

    Each expert takes part at most once: Poisson sampling is without replacement.

    Raises:
        InvalidValueError: shapes disagree, or a row is no distribution.
    """
    if experts_NV.shape[0] != settings.num_shards:
        raise InvalidValueError(f"{experts_NV.shape[0]} experts where the settings have {settings.num_shards} shards")
    taking_part = np.flatnonzero(generator.random(settings.num_shards) < settings.sampling_rate)
    chosen_NV = experts_NV[taking_part]
    orders = projection_orders(settings.max_order)
    return mixed_distribution(chosen_NV, public_V, mixing_weights(chosen_NV, public_V, settings.beta, orders))


def _forward_weights(
    excess_NV: NDArray[np.float64], public_V: NDArray[np.float64], orders: range, limits: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The largest λ for which E_p₀[(1 + λ d)^o] − 1 = Σ_{j ≥ 2} binom(o, j) λ^j E_p₀[d^j] is within every limit."""
    largest = orders[-1]
    # Powers of the ratio to the largest excess stay finite; λ carries the scale.
    scale_N = np.maximum(np.abs(excess_NV).max(axis=1, initial=0.0), np.finfo(np.float64).tiny)
    scaled_NV = excess_NV / scale_N[:, None]
    power_NV = scaled_NV * public_V
    moments_NJ = np.empty((len(excess_NV), largest - 1))
    for column in range(largest - 1):
        moments_NJ[:, column] = np.einsum("nv,nv->n", power_NV, scaled_NV)
        if column < largest - 2:
            power_NV *= scaled_NV
    j = np.arange(2, largest + 1)
    coefficients = np.array([binom(o, j) for o in orders])

    # Order 2 alone is solved by hand; the other orders lie below it, by many powers of two where ratios are huge.
    with np.errstate(divide="ignore", over="ignore"):
        ceiling_N = np.minimum(1.0, np.sqrt(limits[0] / moments_NJ[:, 0]) / scale_N)

    def within(share_N: NDArray[np.float64]) -> NDArray[np.bool_]:
        with np.errstate(over="ignore", invalid="ignore"):
            powers_NJ = (share_N * ceiling_N * scale_N)[:, None] ** j
            sums = (powers_NJ * moments_NJ) @ coefficients.T
        allowed: NDArray[np.bool_] = (sums <= limits).all(axis=1)
        return allowed

    weights_N: NDArray[np.float64] = _largest_within(within, len(excess_NV)) * ceiling_N
    return weights_N


def _restrict_backward(
    weights_N: NDArray[np.float64],
    excess_NV: NDArray[np.float64],
    public_V: NDArray[np.float64],
    limits: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Lower the weights until the backward divergences are within every limit too."""
    beyond = np.flatnonzero(~_within_backward(weights_N, excess_NV, public_V, limits))
    if beyond.size == 0:
        return weights_N
    rows_NV, ceiling_N = excess_NV[beyond], weights_N[beyond]

    def within(share_N: NDArray[np.float64]) -> NDArray[np.bool_]:
        return _within_backward(share_N * ceiling_N, rows_NV, public_V, limits)

    lowered_N = weights_N.copy()
    lowered_N[beyond] = _largest_within(within, beyond.size, halvings=30) * ceiling_N
    return lowered_N


def _within_backward(
    weights_N: NDArray[np.float64],
    excess_NV: NDArray[np.float64],
    public_V: NDArray[np.float64],
    limits: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """True if E_p₀[(1 + λ d)^(1 − o)] − 1 is within the limit of each order o = 2, 3, …."""
    ratio_NV = weights_N[:, None] * excess_NV
    allowed = np.ones(len(weights_N), dtype=np.bool_)
    power_N, step_N = np.zeros(len(weights_N)), np.zeros(len(weights_N))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # With u = λ d of mean zero and i = 1/(1 + u): E[i^n] − E[i^(n−1)] = E[−u i^n] = E[−u i^(n−1)] + E[u² i^n],
        # so that sums of the positive E[u² i^n] give the means without cancellation.
        inverse_NV = 1.0 / (1.0 + ratio_NV)
        term_NV = ratio_NV * ratio_NV
        term_NV *= public_V
        for limit in limits:
            term_NV *= inverse_NV
            step_N = step_N + term_NV.sum(axis=1)
            power_N = power_N + step_N
            allowed &= power_N <= limit
    return allowed


def _largest_within(
    within: Callable[[NDArray[np.float64]], NDArray[np.bool_]], size: int, halvings: int = _HALVINGS
) -> NDArray[np.float64]:
    """For each row the largest number in [0, 1] that is allowed, from below; 0 always is."""
    low_N, high_N = np.zeros(size), np.ones(size)
    low_N[within(high_N)] = 1.0
    for _ in range(halvings):
        middle_N = 0.5 * (low_N + high_N)
        allowed_N = within(middle_N)
        low_N = np.where(allowed_N, np.maximum(low_N, middle_N), low_N)
        high_N = np.where(allowed_N, high_N, middle_N)
    return low_N


def _check_distributions(experts_NV: NDArray[np.float64], public_V: NDArray[np.float64]) -> None:
    if experts_NV.ndim != 2 or experts_NV.shape[1:] != public_V.shape:
        raise InvalidValueError(f"experts of shape {experts_NV.shape} over a public distribution of {public_V.shape}")
    if not public_V.min() > 0.0 or not abs(public_V.sum() - 1.0) < 1e-9:
        raise InvalidValueError("the public distribution must be positive everywhere and sum to 1; use float64")
    if experts_NV.size and not (experts_NV.min() >= 0.0 and np.abs(experts_NV.sum(axis=1) - 1.0).max() < 1e-9):
        raise InvalidValueError("each expert's distribution must be non-negative and sum to 1; use float64")


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 700.0 else math.inf
