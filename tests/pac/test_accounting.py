"""Integer accounting, against exact rational arithmetic and exhaustive sequences of charges."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reticent.errors import BudgetExhaustedError, InvalidValueError
from reticent.pac.account import Account
from reticent.pac.accounting import NATS_PER_UNIT, cap_units, charge_units, parse_nats, units_to_nats

UNIT = Fraction(1, 2**64)
positive_nats = st.floats(min_value=5e-324, max_value=1e300, allow_nan=False)


@settings(max_examples=100)
@given(positive_nats)
@example(2.0**-64)
@example(math.nextafter(2.0**-64, 1.0))
@example(5e-324)
def test_charges_round_up_and_caps_round_down_by_less_than_a_unit(nats):
    exact = Fraction(nats)
    assert 0 <= charge_units(nats) * UNIT - exact < UNIT
    assert 0 <= exact - cap_units(nats) * UNIT < UNIT


def test_a_million_charges_of_the_papers_budget_add_up_exactly():
    account, charge = Account(), charge_units(2.0**-32)
    for _ in range(1_000_000):
        account = account.charged(charge)
    assert account.spent_units == 1_000_000 * 2**32
    assert Fraction(account.spent_nats) == Fraction(1_000_000, 2**32)
    assert NATS_PER_UNIT == 2.0**-64


def test_a_float32_sum_would_have_frozen():
    """The defect that integer units avoid: in float32 the sum of 2^-32 stops at 2^24 terms."""
    frozen = np.float32(2.0**24 * 2.0**-32)
    assert frozen + np.float32(2.0**-32) == frozen
    account = Account(spent_units=charge_units(2.0**-32) << 24)
    assert account.charged(charge_units(2.0**-32)).spent_units > account.spent_units


def test_composing_n_times_equals_composing_once_with_n():
    charge = charge_units(0.1)
    account = Account()
    for _ in range(1_000):
        account = account.charged(charge)
    assert account == Account().charged(1_000 * charge)


def _greatest_total(accepts, cap, charges, length):
    """Exhaustively, the most that a rule `accepts(spent, charge, cap)` lets through."""
    worst = 0
    for sequence in itertools.product(charges, repeat=length):
        spent = 0
        for charge in sequence:
            if accepts(spent, charge, cap):
                spent += charge
        worst = max(worst, spent)
    return worst


def test_no_sequence_of_charges_passes_the_cap_and_the_checker_flags_a_late_check():
    def account_rule(spent, charge, cap):
        return Account(spent, cap).can_afford(charge)

    def checks_after_charging(spent, charge, cap):
        return spent < cap

    for cap in range(1, 9):
        assert _greatest_total(account_rule, cap, (1, 2, 4), 6) <= cap
    assert _greatest_total(account_rule, 8, (1, 2, 4), 6) == 8
    assert _greatest_total(checks_after_charging, 8, (6,), 6) == 1.5 * 8


def test_an_exhausted_account_says_what_was_asked_and_stays_as_it_was():
    account = Account(cap_units=cap_units(0.01)).charged(charge_units(0.008))
    with pytest.raises(BudgetExhaustedError, match=r"0\.004 nats on top of 0\.008 nats .* 0\.01 nats"):
        account.charged(charge_units(0.004))
    assert account.spent_units == charge_units(0.008)
    exact = Account(spent_units=3, cap_units=5)
    assert exact.can_afford(2)
    assert not exact.can_afford(3)
    assert exact.charged(2).spent_units == 5


def test_a_cap_of_zero_units_allows_nothing():
    with pytest.raises(BudgetExhaustedError, match="0 nats;"):
        Account(cap_units=0).charged(1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("2^-32", 2.0**-32), (" 2^-1 ", 0.5), ("2^3", 8.0), ("2^+1", 2.0), ("1e-9", 1e-9), ("0.001", 0.001), (".5", 0.5)],
)
def test_budgets_are_read_as_powers_of_two_or_decimals(text, value):
    assert parse_nats(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "nan", "inf", "-1", "0", "0.0", "2^", "2^-1.5", "3^-2", "2^-99999", "2^99999", "1e999", "1e-999", "1_0", "b",
     "2^-32 nats", "0x1p-3", "1e", "-2^-3", "٣"],
)  # fmt: skip
def test_nonsense_budgets_are_refused(text):
    with pytest.raises(InvalidValueError, match="budget in nats"):
        parse_nats(text)


@pytest.mark.parametrize("nats", [math.nan, math.inf, -1.0, "1"])
def test_amounts_must_be_finite_and_not_negative(nats):
    for convert in (charge_units, cap_units):
        with pytest.raises(InvalidValueError, match="in nats"):
            convert(nats)


@pytest.mark.parametrize(
    "arguments", [(-1, None), (0, -1), (2, 1), (1.0, None), (True, None)], ids=["spent", "cap", "over", "float", "bool"]
)
def test_an_account_refuses_impossible_numbers(arguments):
    with pytest.raises(InvalidValueError, match="units"):
        Account(*arguments)
    with pytest.raises(InvalidValueError, match="units"):
        Account().charged(-1)


def test_units_convert_back_with_one_rounding():
    assert units_to_nats(charge_units(0.001)) == 0.001
    assert units_to_nats(2**64 + 1) == 1.0
