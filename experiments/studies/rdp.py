"""Rényi differential privacy of an ensemble that mixes projected distributions, and what it says about membership.

The neighbour relation is one record in or out: it changes the distribution of the one shard that holds it. Orders are
integers. All quantities are in nats, and every bound errs on the side of privacy.

Lemmas used. With every expert's projection P̄ inside the ball D_o(P̄ ‖ P₀), D_o(P₀ ‖ P̄) ≤ β o for the orders
o = 2 … 2α around the public distribution P₀:

* two projections are at most 4 β k apart at order k ≤ α, which needs the ball at orders 2k − 1 and 2k (Bun and Steinke,
  arXiv 1605.02065, proposition 27 with two steps);
* averaged with n − 1 others that stay the same, log((n − 1)/n + exp((k − 1) 4 β k)/n)/(k − 1) remains (convexity;
  arXiv 2403.15638, theorem 4.2). It is used at n = 1 as well, where both sides are a projection and not P₀;
* a shard that takes part with probability q < 1 changes the mixture (1 − q) A + q B into (1 − q) A + q B′. The ternary
  bound of Wang, Balle and Kasiviswanathan (arXiv 1808.00087, theorem 9) covers this; the tighter formula for
  (1 − q) A + q B against A, which the public code of arXiv 2403.15638 applies, does not, as both neighbours have the
  shard. The number of the other shards that take part is averaged over, which convexity of exp((k − 1) D_k) allows.

Shape suffix: K orders.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from reticent import _validate
from reticent.errors import InvalidValueError


def mixed_rdp(order: int, num_mixed: int, beta: float) -> float:
    """Rényi divergence at an order between two averages of `num_mixed` projections that differ in one, at most.

    Args:
        order: k, at least 2.
        num_mixed: n, at least 1.
        beta: radius of the ball per order, at least 0.

    Raises:
        InvalidValueError: a value out of range.
    """
    _validate.integer_in_range("order", order, 2)
    _validate.integer_in_range("num_mixed", num_mixed, 1)
    _validate.non_negative_finite("beta", beta)
    exponent = (order - 1) * 4.0 * beta * order
    if exponent > 700.0:
        return (exponent - math.log(num_mixed) + math.log1p((num_mixed - 1) * math.exp(-exponent))) / (order - 1)
    return math.log1p(math.expm1(exponent) / num_mixed) / (order - 1)


def step_rdp(order: int, num_shards: int, sampling_rate: float, beta: float) -> float:
    """Rényi divergence of one released token at an order.

    Args:
        order: k, at least 2; the ball must hold up to order 2k.
        num_shards: N, at least 1.
        sampling_rate: q in (0, 1], with which each shard takes part, independently of the others.
        beta: radius of the ball per order.

    Raises:
        InvalidValueError: a value out of range.
    """
    _validate.integer_in_range("num_shards", num_shards, 1)
    if not 0.0 < sampling_rate <= 1.0:
        raise InvalidValueError(f"sampling_rate must lie in (0, 1], got {sampling_rate!r}")
    if sampling_rate == 1.0:
        return mixed_rdp(order, num_shards, beta)
    sizes = np.arange(1, num_shards + 1)
    log_excess = [_log_sampled_excess(order, int(size), sampling_rate, beta) for size in sizes]
    log_mean_excess = logsumexp(log_excess, b=binom.pmf(sizes - 1, num_shards - 1, sampling_rate))
    return float(np.logaddexp(0.0, log_mean_excess) if log_mean_excess > -30.0 else math.exp(log_mean_excess)) / (
        order - 1
    )


def published_step_rdp(order: int, num_mixed: int, sampling_rate: float, beta: float) -> float:
    """One token's divergence as the public code of arXiv 2403.15638 accounts for it; for comparison, not for a bound.

    It applies the add/remove formula of Poisson subsampling, charges order `order` at every smaller order, and takes
    β k for a single expert.
    """
    loss = beta * order if num_mixed == 1 else mixed_rdp(order, num_mixed, beta)
    k = np.arange(2, order + 1)
    terms = np.array([math.comb(order, int(j)) for j in k], dtype=np.float64)
    head = (1 - sampling_rate) ** (order - 1) * (1 + (order - 1) * sampling_rate)
    tail = terms * (1 - sampling_rate) ** (order - k) * sampling_rate**k * np.exp((k - 1) * loss)
    return math.log(head + float(tail.sum())) / (order - 1)


def success_of_epsilon(epsilon: float, delta: float = 0.0) -> float:
    """Largest success in telling two neighbours apart at even odds under (ε, δ)-DP: (exp(ε) + δ)/(exp(ε) + 1).

    Kairouz, Oh and Viswanath, arXiv 1311.0776, for the trade-off of the two errors.
    """
    _validate.non_negative_finite("epsilon", epsilon)
    if not 0.0 <= delta <= 1.0:
        raise InvalidValueError(f"delta must lie between 0 and 1, got {delta!r}")
    return (1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon))


def success_of_rdp(orders: Sequence[int], divergences: Sequence[float]) -> float:
    """Largest success in telling two neighbours apart at even odds that no order forbids.

    A test turns the neighbours' outputs into two coins, and data processing bounds their divergence in both directions
    at every order. The allowed pairs of error rates are convex (joint quasi-convexity) and symmetric, so the best test
    errs equally often either way: coins s and 1 − s.

    Args:
        orders: integers of at least 2.
        divergences: a bound for each order, of all tokens together.

    Raises:
        InvalidValueError: no orders, or a value out of range.
    """
    if not orders or len(orders) != len(divergences):
        raise InvalidValueError(f"{len(orders)} orders and {len(divergences)} divergences; give one for each order")
    return min(_success_at(order, bound) for order, bound in zip(orders, divergences, strict=True))


def _success_at(order: int, bound: float) -> float:
    """The least s with D_order(s ‖ 1 − s) > bound, approached from above."""
    _validate.integer_in_range("order", order, 2)
    _validate.non_negative_finite("divergence", bound)
    low, high = 0.0, 0.5
    # Searching for the gain s − ½ keeps its digits where the bound is tiny.
    while low < (middle := 0.5 * (low + high)) < high:
        if _symmetric_divergence(order, middle) <= bound * (1.0 + 1e-12):
            low = middle
        else:
            high = middle
    return 0.5 + high


def _symmetric_divergence(order: int, gain: float) -> float:
    """D_order between coins ½ + gain and ½ − gain, exact also for small gains."""
    log_ratio = math.log1p(2 * gain) - math.log1p(-2 * gain) if gain < 0.5 else math.inf
    if log_ratio == math.inf or (order - 1) * log_ratio > 700.0:
        return math.inf if log_ratio == math.inf else log_ratio + math.log(0.5 + gain) / (order - 1)
    success = 0.5 + gain
    # Σ p^k r^(1−k) − 1 over both sides, without the 1.
    excess = success * math.expm1((order - 1) * log_ratio) + (1 - success) * math.expm1(-(order - 1) * log_ratio)
    return math.log1p(excess) / (order - 1)


def _log_sampled_excess(order: int, num_mixed: int, rate: float, beta: float) -> float:
    """Log of E[(P/Q)^order] − 1 for a shard that takes part with a probability; the better of two bounds."""
    whole = (order - 1) * mixed_rdp(order, num_mixed, beta)
    by_convexity = math.log(rate) + _log_expm1(whole)
    second = mixed_rdp(2, num_mixed, beta)
    log_terms = [
        math.log(math.comb(order, 2))
        + 2 * math.log(rate)
        + min(math.log(4.0) + _log_expm1(second), math.log(2) + second)
    ]
    log_terms += [
        math.log(math.comb(order, j)) + j * math.log(rate) + math.log(2.0) + (j - 1) * mixed_rdp(j, num_mixed, beta)
        for j in range(3, order + 1)
    ]
    return min(by_convexity, float(logsumexp(log_terms)))


def _log_expm1(x: float) -> float:
    if x == 0.0:
        return -math.inf
    return x + math.log1p(-math.exp(-x)) if x > 1.0 else math.log(math.expm1(x))


def rdp_curve(
    orders: Sequence[int], num_shards: int, sampling_rate: float, beta: float, num_tokens: int
) -> NDArray[np.float64]:
    """Divergence of `num_tokens` released tokens at each order, float64[K]; adaptive composition adds up."""
    _validate.integer_in_range("num_tokens", num_tokens, 1)
    steps = [step_rdp(order, num_shards, sampling_rate, beta) for order in orders]
    return num_tokens * np.asarray(steps, dtype=np.float64)
