"""Bounds, against vectors computed elsewhere, the published table, and 50-digit arithmetic."""

import json
import math
from pathlib import Path

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reticent.errors import InvalidValueError
from reticent.pac.account import Account
from reticent.pac.accounting import cap_units, charge_units
from reticent.pac.bounds import attack_gain, attack_success, binary_kl, nats_for_success, plan

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "mechanism.json").read_text())["bounds"]

# arXiv 2609.05676: membership % and world % (m = 128) by log2 of the step budget, for 10^2, 10^4, 10^5, 10^6, 10^7.
TOKENS = (10**2, 10**4, 10**5, 10**6, 10**7)
PUBLISHED = {
    -32: ("50.01/0.78", "50.11/0.80", "50.34/0.84", "51.08/0.98", "53.41/1.45"),
    -28: ("50.04/0.79", "50.43/0.86", "51.36/1.03", "54.31/1.66", "63.56/4.21"),
    -24: ("50.17/0.81", "51.73/1.10", "55.45/1.92", "67.09/5.42", "98.02/23.4"),
    -20: ("50.69/0.91", "56.89/2.28", "71.48/7.09", "100/32.6", "100/100"),
    -16: ("52.76/1.32", "76.89/9.44", "100/45.6", "100/100", "100/100"),
}


def _kl_exact(success, prior):
    with mpmath.workdps(100):
        s, p = mpmath.mpf(success), mpmath.mpf(prior)
        return s * mpmath.log(s / p) + (1 - s) * mpmath.log((1 - s) / (1 - p))


def _gain_exact(total_nats, prior):
    """Bisection in 50 digits, of a divergence whose cancellation costs as many more."""
    with mpmath.workdps(50):
        low, high = mpmath.mpf(0), min(1 - mpmath.mpf(prior), mpmath.sqrt(mpmath.mpf(total_nats) / 2))
        for _ in range(150):
            middle = (low + high) / 2
            if _kl_exact(prior + middle, prior) <= total_nats:
                low = middle
            else:
                high = middle
        return low


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['prior']}-{v['total_nats']:.0e}")
def test_vectors(vector):
    success = attack_success(vector["total_nats"], vector["prior"])
    assert success == pytest.approx(float(vector["success"]), rel=3e-15)


@pytest.mark.parametrize("exponent", PUBLISHED)
@pytest.mark.parametrize("column", range(5))
def test_the_published_table(exponent, column):
    stated = plan(tokens=TOKENS[column], step_budget=2.0**exponent, num_worlds=128)
    for published, success in zip(
        PUBLISHED[exponent][column].split("/"), (stated.half_success, stated.world_success), strict=True
    ):
        last_digit = 10.0 ** -len(published.partition(".")[2])
        # The table rounds twice in one place: 32.5499 is printed as 32.6, by way of 32.55.
        assert abs(100 * success - float(published)) <= 0.502 * last_digit


def test_the_papers_headline_number():
    assert f"{100 * plan(tokens=10**6, step_budget=2.0**-32).half_success:.4f}" == "51.0789"


@pytest.mark.parametrize("prior", [1e-12, 0.001, 1 / 128, 0.25, 0.5, 0.75, 0.999])
@pytest.mark.parametrize("total_nats", [1e-18, 1e-12, 1e-6, 0.01, 0.2])
def test_gains_are_accurate_at_every_prior_and_small_budgets(total_nats, prior):
    if total_nats >= math.log(1 / prior):
        assert attack_success(total_nats, prior) == 1.0
        return
    exact = _gain_exact(total_nats, prior)
    gain = attack_gain(total_nats, prior)
    assert gain >= exact
    assert gain == pytest.approx(float(exact), rel=1e-12)
    success = attack_success(total_nats, prior)
    with mpmath.workdps(50):
        assert mpmath.mpf(success) >= prior + exact
        assert mpmath.mpf(success) <= prior + exact * (1 + mpmath.mpf("1e-12")) + 2 * math.ulp(success)


@pytest.mark.parametrize("prior", [1 / 128, 0.25, 0.5, 0.75])
def test_a_tiny_budget_buys_the_normal_approximation(prior):
    gain = attack_success(1e-12, prior) - prior
    assert gain == pytest.approx(float(_gain_exact(1e-12, prior)), rel=1e-9)
    assert gain == pytest.approx(math.sqrt(prior * (1 - prior) * 2e-12), rel=1e-4)


@settings(max_examples=150)
@given(st.floats(0.0, 1.0), st.floats(1e-12, 1 - 1e-12))
def test_binary_kl_matches_exact_arithmetic(success, prior):
    exact = float(_kl_exact(success, prior)) if 0 < success < 1 else -math.log1p(-prior) if success == 0 else None
    if exact is None:
        exact = -math.log(prior)
    assert binary_kl(success, prior) == pytest.approx(exact, rel=1e-9, abs=1e-300)


@settings(max_examples=60)
@given(st.floats(1e-9, 1 - 1e-9), st.floats(1e-15, 5.0))
def test_success_is_monotone_and_never_below_the_prior(prior, total_nats):
    assert attack_success(0.0, prior) == prior
    assert prior < attack_success(total_nats, prior) <= attack_success(1.5 * total_nats, prior) <= 1.0


def test_the_bound_ends_exactly_where_it_says_nothing():
    for prior in (1 / 128, 0.25, 0.5, 0.9):
        edge = math.log(1 / prior)
        assert attack_success(edge, prior) == 1.0
        assert attack_success(0.99 * edge, prior) < 1.0


@settings(max_examples=60)
@given(st.floats(0.01, 0.9), st.floats(1e-6, 1 - 1e-6))
def test_nats_for_success_keeps_its_promise(prior, share):
    target = prior + share * (1 - prior)
    nats = nats_for_success(target, prior)
    assert nats < _kl_exact(target, prior)
    assert nats == pytest.approx(float(_kl_exact(target, prior)), rel=1e-9)
    assert attack_success(nats, prior) <= target


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, math.nan, "half"])
def test_priors_lie_strictly_inside(prior):
    for call in (
        lambda: binary_kl(0.5, prior),
        lambda: attack_success(1.0, prior),
        lambda: nats_for_success(0.9, prior),
    ):
        with pytest.raises(InvalidValueError, match="prior"):
            call()


@pytest.mark.parametrize("total", [-1e-9, math.nan, math.inf])
def test_totals_are_finite_and_not_negative(total):
    with pytest.raises(InvalidValueError, match="total_nats"):
        attack_success(total, 0.5)


@pytest.mark.parametrize("success", [0.5, 0.3, 1.0, math.nan])
def test_a_target_lies_above_the_prior_and_below_certainty(success):
    with pytest.raises(InvalidValueError, match="success"):
        nats_for_success(success, 0.5)


def test_plan_derives_a_budget_the_ledger_can_hold_to():
    made = plan(tokens=10**6, half_success=0.51)
    assert made.half_success == pytest.approx(0.51, abs=1e-9)
    assert made.half_success <= 0.51
    assert made.total_nats == pytest.approx(binary_kl(0.51, 0.5), rel=1e-9)
    assert made.world_success == attack_success(made.total_nats, 1 / 128)
    assert 10**6 * charge_units(made.step_budget) <= cap_units(nats_for_success(0.51, 0.5))


def test_plan_derives_tokens_rounded_down():
    made = plan(step_budget=2.0**-32, half_success=0.51)
    limit = float(_kl_exact(0.51, 0.5)) * 2**32
    assert made.tokens == math.floor(limit)
    assert made.half_success <= 0.51
    account = Account(cap_units=cap_units(nats_for_success(0.51, 0.5)))
    assert account.can_afford(made.tokens * charge_units(made.step_budget))
    assert not account.can_afford((made.tokens + 1) * charge_units(made.step_budget))


def test_plan_round_trips():
    made = plan(tokens=1_000, step_budget=1e-6, num_worlds=16)
    assert made.total_nats == pytest.approx(1e-3, rel=1e-12)
    assert made.worlds == 16
    again = plan(tokens=1_000, half_success=made.half_success, num_worlds=16)
    assert again.step_budget == pytest.approx(1e-6, rel=1e-9)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"tokens": 5},
        {"tokens": 5, "step_budget": 1e-3, "half_success": 0.6},
        {"tokens": 0, "step_budget": 1e-3},
        {"tokens": 1.5, "step_budget": 1e-3},
        {"tokens": 5, "step_budget": 0.0},
        {"tokens": 5, "step_budget": math.nan},
        {"tokens": 5, "step_budget": math.inf},
        {"tokens": 10**400, "step_budget": 1.0},
        {"tokens": 5, "half_success": 0.5},
        {"tokens": 5, "half_success": 1.0},
        {"step_budget": 1.0, "half_success": 0.51},
        {"tokens": 10**30, "half_success": 0.51},
        {"tokens": 5, "step_budget": 1e-3, "num_worlds": 7},
    ],
)
def test_plan_refuses_what_does_not_fit(arguments):
    with pytest.raises(InvalidValueError):
        plan(**arguments)
