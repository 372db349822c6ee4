"""Every charging rule: what is reserved covers what is charged, in the account, the curator and the plan."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pac_oracles import MemoryStore

from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import BudgetExhaustedError, InvalidValueError
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


def curator_of(rule, store, total_budget=None):
    initial = CuratorState.initial(4, SeededNoise(0), total_budget, rule)
    return Curator.for_experiments(initial, store, SeededNoise(1))


@pytest.mark.parametrize("rule", RULES)
def test_what_the_curator_charges_is_what_the_rule_says_of_each_token(rule):
    charging, store = Charging(2.0**-8, rule), MemoryStore()
    curator = curator_of(rule, store)
    votes = [[1, 1, 1, 1], [1, 2, 1, 2], [1, 2, 3, 4]]
    tokens = curator.release_many([Ballot(np.array(row), charging, "r", step) for step, row in enumerate(votes)])
    expected = [charging.charge(num_active) for num_active in (1, 2, 4)]
    [(state, *records)] = store.commits
    for shown in (tokens, records):
        assert [each.charge_units for each in shown] == expected
        assert [each.reserve_units for each in shown] == [charging.reserve_units] * 3
    assert state.spent_units == curator.account.spent_units == sum(expected)


def test_dissent_is_charged_the_budget_rounded_up_and_agreement_nothing():
    for budget in (2.0**-32, 0.1, 2.0**-128):
        charging = Charging(budget, ChargingRule.DISSENT)
        unit = math.ceil(Fraction(budget) * 2**64)
        assert [charging.charge(num_active) for num_active in (1, 2, 3, 1000)] == [0, unit, unit, unit]


AGREE, DIFFER = np.array([7, 7, 7, 7]), np.array([7, 7, 7, 8])


def release_many(curator, rows, budget=0.25):
    charging = Charging(budget, curator.charging_rule)
    return curator.release_many([Ballot(row, charging, "r", step) for step, row in enumerate(rows)])


def test_dissent_is_free_where_worlds_agree_also_once_the_cap_is_spent():
    """After the last dissenting step that the cap covers, agreement goes on, and no further dissent is released."""
    store = MemoryStore()
    curator = curator_of(ChargingRule.DISSENT, store, total_budget=0.5)
    release_many(curator, [AGREE] * 50)
    assert curator.account.spent_units == 0
    in_order = release_many(curator, [DIFFER, AGREE, DIFFER, DIFFER, AGREE, DIFFER, AGREE])
    assert [token is not None for token in in_order] == [True, True, True, False, True, False, True]
    assert curator.account.left_units == 0
    before = curator.state
    assert release_many(curator, [DIFFER]) == [None]
    with pytest.raises(BudgetExhaustedError, match="would pass the total budget"):
        curator.release(DIFFER, Charging(0.25, ChargingRule.DISSENT), request="r", step=0)
    assert curator.state is before
    assert release_many(curator, [AGREE])[0].token == 7
    assert (curator.state.dissenting_steps, curator.state.tokens_released) == (2, 56)
    np.testing.assert_array_equal(curator.state.log_posterior, before.log_posterior)


@pytest.mark.parametrize("rule", RULES)
@given(
    rows=st.lists(st.sampled_from([AGREE, DIFFER]), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    affordable=st.fractions(0, 5, max_denominator=4),
)
def test_every_path_stays_within_the_cap_and_counts_as_the_filter_in_words(rule, rows, cuts, affordable):
    """However the ballots are batched: test spent + charge against the cap, debit, then draw."""
    unit = Charging(0.25, rule).reserve_units
    cap = int(affordable * unit)
    initial = CuratorState.initial(4, SeededNoise(0), charging_rule=rule)
    curator = Curator.for_experiments(replace(initial, cap_units=cap), MemoryStore(), SeededNoise(1))
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    released = [token is not None for low, high in pairwise(edges) for token in release_many(curator, rows[low:high])]
    spent, expected = 0, []
    for row in rows:
        charge = unit if rule is ChargingRule.FIXED or row is DIFFER else 0
        expected.append(spent + charge <= cap)
        spent += charge if expected[-1] else 0
    assert released == expected
    assert curator.account.spent_units == spent <= cap


@pytest.mark.parametrize("rule", RULES)
def test_a_deployment_keeps_its_rule(rule):
    store = MemoryStore()
    curator = curator_of(rule, store)
    release_many(curator, [AGREE, DIFFER])
    assert curator.state.charging_rule is store.commits[-1][0].charging_rule is curator.charging_rule is rule
    [other] = set(RULES) - {rule}
    with pytest.raises(InvalidValueError, match=f"charges by the rule {rule}, a token came with {other}"):
        curator.release(AGREE, Charging(0.25, other), request="r", step=0)
    assert len(store.commits) == 1


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
