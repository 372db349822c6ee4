"""Readings of ρ, against independent numbers, 40-digit arithmetic, dp-accounting and published figures."""

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.dp import bounds
from reticent.dp.account import RhoAccount
from reticent.errors import BudgetExhaustedError, InvalidValueError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "corpus.json").read_text())["account"]
RHOS = st.floats(-12, 4).map(lambda power: 10.0**power)
DELTAS = st.floats(-15, -1).map(lambda power: 10.0**power)


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_independent_readings(vector):
    rho, delta = vector["total_rho"], vector["delta"]
    assert bounds.epsilon(rho, delta) == pytest.approx(vector["epsilon"], rel=1e-8)
    # The independent number is for an order a little above 1, which allows a little more.
    assert bounds.membership_success(rho) == pytest.approx(vector["success"], abs=2e-7)
    assert bounds.membership_success(rho) <= vector["success"] + 1e-11


@pytest.mark.parametrize(("rho", "success", "epsilon"), [(0.0008, 0.51, 0.14), (0.08, 0.60, 1.69), (1.0, 0.82, 7.08)])
def test_figures_of_the_specification(rho, success, epsilon):
    assert bounds.membership_success(rho) == pytest.approx(success, abs=0.005)
    assert bounds.epsilon(rho, 1e-5) == pytest.approx(epsilon, abs=0.005)


@pytest.mark.parametrize(("rho", "delta"), [(0.001, 1e-6), (0.1, 1e-5), (1.0, 1e-9), (20.0, 1e-6)])
def test_epsilon_is_that_of_another_accountant(rho, delta):
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = np.concatenate([1 + np.geomspace(1e-3, 1e4, 20_000)])
    other, _ = rdp.compute_epsilon(orders, rho * orders, delta)
    assert bounds.epsilon(rho, delta) == pytest.approx(other, rel=1e-5)
    assert bounds.epsilon(rho, delta) <= other * (1 + 1e-9)


@given(rho=RHOS, delta=DELTAS)
def test_epsilon_is_never_below_the_best_order(rho, delta):
    """Not below the infimum, found apart in 40 digits by a search over the convex curve of (α − 1)(ε(α) − …)."""
    found = bounds.epsilon(rho, delta)
    with mpmath.workdps(40):

        def at(log_x):
            x = mpmath.exp(log_x)
            return (1 + x) * rho - mpmath.log1p(1 / x) - (mpmath.log(delta) + mpmath.log1p(x)) / x

        low, high = mpmath.mpf(-30), mpmath.mpf(60)
        for _ in range(200):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if at(left) < at(right) else (left, high)
        least = max(mpmath.mpf(0), at(low))
    assert found >= least
    assert found == pytest.approx(float(least), rel=1e-8, abs=1e-12)


@given(rho=RHOS)
def test_success_is_the_root_rounded_up(rho):
    success = bounds.membership_success(rho)
    assert 0.5 < success <= 1.0
    if success < 1.0:
        with mpmath.workdps(40):
            s = mpmath.mpf(success)
            reached = (2 * s - 1) * mpmath.log(s / (1 - s))
            slope = 2 * mpmath.log(s / (1 - s)) + (2 * s - 1) / (s * (1 - s))
        assert reached >= rho
        assert reached <= rho * (1 + 1e-9) + slope * 2**-51


@given(rho=RHOS, delta=DELTAS)
def test_inverses_end_on_the_private_side(rho, delta):
    epsilon, success = bounds.epsilon(rho, delta), bounds.membership_success(rho)
    if epsilon > 1e-9:
        back = bounds.rho_for_epsilon(epsilon, delta)
        assert back == pytest.approx(rho, rel=1e-6)
        assert bounds.epsilon(back, delta) <= epsilon
    if 0.5 + 1e-6 < success < 1.0 - 1e-9:
        assert bounds.rho_for_success(success) == pytest.approx(rho, rel=1e-6)
        assert bounds.membership_success(bounds.rho_for_success(success)) <= success


def best_symmetric_test(losses, probabilities):
    """The success of the best test between a distribution and its mirror image, prior ½."""
    return sum(max(p, p * math.exp(-loss)) for loss, p in zip(losses, probabilities, strict=True)) / 2


@pytest.mark.parametrize("eta", [0.01, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_no_product_of_balanced_pairs_beats_the_bound(eta, steps):
    """The balanced pair of range η attains more than half of what one token's bound allows, and never more than it."""
    p = 1 / (1 + math.exp(-eta / 2))
    losses = [(2 * ups - steps) * eta / 2 for ups in range(steps + 1)]
    chances = [math.comb(steps, ups) * p**ups * (1 - p) ** (steps - ups) for ups in range(steps + 1)]
    success = best_symmetric_test(losses, chances)
    bound = bounds.membership_success(steps * eta**2 / 8)
    assert 0.5 + (bound - 0.5) / 2 < success <= bound


def test_nothing_spent_says_nothing():
    assert bounds.epsilon(0.0, 1e-6) == 0.0
    assert bounds.membership_success(0.0) == 0.5
    assert bounds.membership_success(1e6) == 1.0


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_numbers_out_of_range_are_refused(bad):
    for call in (
        lambda: bounds.epsilon(bad, 1e-6),
        lambda: bounds.epsilon(1.0, bad),
        lambda: bounds.rho_for_epsilon(bad, 1e-6),
        lambda: bounds.membership_success(bad),
        lambda: bounds.rho_for_success(bad),
    ):
        with pytest.raises(InvalidValueError):
            call()


def test_an_account_adds_up_to_its_cap_and_no_further():
    account = RhoAccount(0, 2**64)
    third = (2**64 + 2) // 3
    account = account.charged(third).charged(third)
    assert (account.spent_units, account.left_units, account.tokens_left(third)) == (2 * third, 2**64 - 2 * third, 0)
    assert not account.can_afford(third)
    with pytest.raises(BudgetExhaustedError, match="cap of 1"):
        account.charged(third)
    assert account.epsilon(1e-6) == bounds.epsilon(account.spent_rho, 1e-6)
    assert account.membership_success == bounds.membership_success(account.spent_rho)
    assert account.at_cap.membership_success == bounds.membership_success(1.0)
    assert account.left_rho == pytest.approx(1 / 3)
    assert RhoAccount(5).charged(7) == RhoAccount(12)
    assert (RhoAccount(5).left_rho, RhoAccount(5).tokens_left(1), RhoAccount(5).at_cap) == (None, None, None)
    with pytest.raises(InvalidValueError, match="exceeds"):
        RhoAccount(2, 1)
