"""Every charging rule: what is reserved covers what is charged, in the account, the curator and the plan."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pac_oracles import MemoryStore

from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import InvalidValueError
from reticent.pac.account import Account
from reticent.pac.bounds import attack_success, plan
from reticent.pac.charging import Charging, ChargingRule
from reticent.pac.curator import Ballot, Curator, CuratorState
from reticent.randomness import SeededNoise

RULES = list(ChargingRule)
BUDGETS = st.floats(2.0**-128, 2.0**10)


@pytest.mark.parametrize("rule", RULES)
@given(budget=BUDGETS, num_active=st.integers(1, 1000))
def test_a_charge_is_at_most_its_reserve(rule, budget, num_active):
    charging = Charging(budget, rule)
    assert 0 <= charging.charge(num_active) <= charging.reserve_units


@pytest.mark.parametrize("rule", RULES)
@given(budget=BUDGETS, units=st.integers(0, 2**90))
def test_tokens_within_a_total_can_all_be_paid_in_the_worst_case(rule, budget, units):
    charging = Charging(budget, rule)
    tokens = charging.tokens_within(units)
    assert tokens * charging.reserve_units <= units < (tokens + 1) * charging.reserve_units
    assert Account(0, units).tokens_left(charging) == tokens
    assert Account(0, None).tokens_left(charging) is None


@given(budget=BUDGETS, num_active=st.integers(1, 1000))
def test_the_fixed_rule_charges_the_budget_rounded_up_whatever_the_votes_are(budget, num_active):
    assert Charging(budget, ChargingRule.FIXED).charge(num_active) == math.ceil(Fraction(budget) * 2**64)


@pytest.mark.parametrize("rule", RULES)
def test_what_the_curator_charges_is_what_the_rule_says_of_each_token(rule):
    charging, store = Charging(2.0**-8, rule), MemoryStore()
    curator = Curator.for_experiments(CuratorState.initial(4, SeededNoise(0)), store, SeededNoise(1))
    votes = [[1, 1, 1, 1], [1, 2, 1, 2], [1, 2, 3, 4]]
    tokens = curator.release_many([Ballot(np.array(row), charging, "r", step) for step, row in enumerate(votes)])
    expected = [charging.charge(num_active) for num_active in (1, 2, 4)]
    assert [token.charge_units for token in tokens] == expected
    [(state, *records)] = store.commits
    assert [record.charge_units for record in records] == expected
    assert state.spent_units == curator.account.spent_units == sum(expected)


class OverchargingRule(Charging):
    def charge(self, num_active):
        return self.reserve_units + 1


def test_a_charge_above_its_reserve_releases_nothing():
    store = MemoryStore()
    curator = Curator.for_experiments(CuratorState.initial(4, SeededNoise(0)), store, SeededNoise(1))
    with pytest.raises(InvalidValueError, match="reserves"):
        curator.release(np.array([1, 1, 1, 1]), OverchargingRule(0.1), request="r", step=0)
    assert (curator.account.spent_units, store.commits) == (0, [])


@pytest.mark.parametrize("rule", RULES)
def test_a_plan_states_the_worst_case_of_its_rule(rule):
    planned = plan(tokens=1000, step_budget=2.0**-20, charging_rule=rule)
    assert planned.total_nats == Charging(2.0**-20, rule).most_nats(1000) == 1000 * 2.0**-20


def test_unknown_rules_and_bad_counts_are_refused():
    with pytest.raises(InvalidValueError, match="charging rule must be one of fixed"):
        Charging(0.1, "free")
    with pytest.raises(InvalidValueError, match="charging rule must be one of fixed"):
        DecodingSettings(Decoder.GREEDY, 0.1, charging_rule="free")
    with pytest.raises(InvalidValueError, match="num_active"):
        Charging(0.1).charge(0)


def test_an_account_tells_what_is_left_and_what_it_bounds():
    unit = 2**64
    account = Account(3 * unit // 8, unit)
    assert (account.spent_nats, account.cap_nats, account.left_nats) == (0.375, 1.0, 0.625)
    assert account.left_units == 5 * unit // 8
    assert account.half_success == attack_success(0.375, 0.5)
    assert account.world_success(16) == attack_success(0.375, 1 / 16)
    assert account.at_cap == Account(unit, unit)
    uncapped = Account(unit)
    assert (uncapped.cap_nats, uncapped.left_units, uncapped.left_nats, uncapped.at_cap) == (None,) * 4
