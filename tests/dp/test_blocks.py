"""The reading in blocks: its certificate against plain recursions, and its figures against SciPy."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from reticent.dp.blocks import BLOCK_TOKENS, BlockReading, block_reading, is_certified, worst_excess

ETAS = (1e-6, 1e-4, 0.003, 0.03, 0.2, 0.5, 1.0, 2.0)


def excess_by_plain_recursion(epsilon, steps, eta, choices):
    """F_n(ε) with the adversary's t on a grid of `choices` + 1 values: never above the true supremum."""
    if steps == 0:
        return max(0.0, 1.0 - math.exp(epsilon))
    best = 0.0
    for i in range(choices + 1):
        t = eta * i / choices
        p = (1 - math.exp(t - eta)) / (1 - math.exp(-eta))
        best = max(
            best,
            p * excess_by_plain_recursion(epsilon - t, steps - 1, eta, choices)
            + (1 - p) * excess_by_plain_recursion(epsilon - t + eta, steps - 1, eta, choices),
        )
    return best


@pytest.mark.parametrize("eta", [0.1, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_recursion_bounds_a_plain_one_from_above_and_closely(eta, steps):
    epsilons, excess = worst_excess(eta, steps, 256)
    for epsilon in np.linspace(0.0, steps * eta, 7):
        plain = excess_by_plain_recursion(epsilon, steps, eta, 16)
        bound = float(np.interp(epsilon, epsilons, excess))
        assert plain <= bound + 1e-12
        assert bound <= plain + 0.02 * eta


@pytest.mark.parametrize("eta", ETAS)
def test_blocks_of_64_tokens_are_certified_at_the_stated_factor_and_not_without_it(eta):
    assert is_certified(eta)
    assert not is_certified(eta, Fraction(98, 100))


def test_without_the_factor_an_adaptive_user_learns_more():
    """At μ² = 2ρ, as for a product of equal coins, the worst adaptive block lies above the Gaussian somewhere."""
    assert not is_certified(0.1, Fraction(1))
    assert is_certified(0.1, Fraction(103, 100))


def test_a_certificate_covers_what_lies_between_grid_points():
    """F at ranges and points that the grid does not hold, from a plain recursion, stays below the Gaussian's excess."""
    eta, steps = 0.5, 3
    epsilons, excess = worst_excess(eta, steps, 64)
    for epsilon in (0.0371, 0.2113, 0.777, 1.2345):
        assert excess_by_plain_recursion(epsilon, steps, eta * 0.9973, 13) <= np.interp(epsilon, epsilons, excess)


@pytest.mark.parametrize(("rho", "percent"), [(0.0008, 50.8), (0.08, 58.0), (1.0, 76.3)])
def test_figures_of_the_specification(rho, percent):
    tokens = 64 * 1000
    eta = Fraction(math.sqrt(8 * rho / tokens))
    reading = block_reading(tokens, eta)
    assert reading.mu**2 == pytest.approx(2.048 * rho, rel=1e-6)
    assert 100 * reading.membership_success == pytest.approx(percent, abs=0.06)


def test_a_block_that_has_begun_counts_as_a_whole_one():
    eta = Fraction(1, 100)
    mus = [block_reading(tokens, eta).mu for tokens in (0, 1, 64, 65, 128, 129)]
    assert mus[0] == 0.0
    assert mus[1] == mus[2] < mus[3] == mus[4] < mus[5]
    assert mus[5] == pytest.approx(math.sqrt(3) * mus[1])
    assert mus[1] ** 2 == pytest.approx(1.024 * 2 * BLOCK_TOKENS * 1e-4 / 8, rel=1e-6)


@pytest.mark.parametrize("eta", [Fraction(1, 10**8), Fraction(5)])
def test_no_reading_without_a_certificate(eta):
    assert block_reading(1000, eta) is None


@pytest.mark.parametrize("mu", [0.01, 0.4, 1.43, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_of_a_reading_by_quadrature(mu, delta):
    """δ(ε) = ∫ (φ(x − μ) − e^ε φ(x))₊ dx."""
    epsilon = BlockReading(mu).epsilon(delta)
    if epsilon == 0.0:
        assert 2 * stats.norm.cdf(mu / 2) - 1 <= delta * (1 + 1e-6)
        return
    start = epsilon / mu + mu / 2
    found, _ = integrate.quad(
        lambda x: stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x), start, start + 40, epsabs=1e-16
    )
    assert found == pytest.approx(delta, rel=1e-4)
    assert found <= delta


def test_readings_grow_with_mu():
    readings = [BlockReading(mu) for mu in (0.0, 0.1, 1.0, 4.0)]
    for less, more in pairwise(readings):
        assert less.membership_success < more.membership_success
        assert less.epsilon(1e-6) < more.epsilon(1e-6)
    assert readings[0].membership_success == pytest.approx(0.5)
