"""Plans of corpus deployments: any two of tokens, bound and gain, against the formulas of the specification."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reticent.dp import bounds
from reticent.dp.accounting import cap_units
from reticent.dp.plan import CorpusBound, plan
from reticent.dp.relations import Relation
from reticent.errors import InvalidValueError


@pytest.mark.parametrize(("places", "tokens"), [(1, 524_288), (2, 131_072)])
@pytest.mark.parametrize("w", [0.4, 1.0])
def test_tokens_of_the_table(places, tokens, w):
    """At m = 512: 131,072 ρ/w² by replacement and 524,288 ρ/w² by add-remove, less what rounding charges."""
    found = plan(bound=CorpusBound(total_rho=1.0), gain=2 * w, num_worlds=512, places=places)
    assert found.settings.w == pytest.approx(w)
    assert 0.9999 * tokens / w**2 - 1 <= found.tokens <= tokens / w**2
    assert found.settings.relation is (Relation.ADD_REMOVE if places == 1 else Relation.REPLACEMENT)


BOUNDS = st.one_of(
    st.floats(1e-4, 10).map(lambda rho: CorpusBound(total_rho=rho)),
    st.floats(0.05, 20).map(lambda epsilon: CorpusBound(total_epsilon=epsilon)),
    st.floats(0.501, 0.98).map(lambda success: CorpusBound(membership_success=success)),
)


@given(bound=BOUNDS, worlds=st.integers(2, 2000), places=st.integers(1, 3), gain=st.floats(0.01, 2), data=st.data())
def test_two_give_the_third_within_the_bound(bound, worlds, places, gain, data):
    options = {"num_worlds": worlds, "places": places, "delta": 1e-7}
    target = bound.rho(1e-7)
    if plan(1, gain=gain, **options).settings.charge_units > cap_units(target):
        with pytest.raises(InvalidValueError, match="less than one token"):
            plan(bound=bound, gain=gain, **options)
        return
    by_gain = plan(bound=bound, gain=gain, **options)
    assert by_gain.rho <= target
    assert (by_gain.tokens + 1) * by_gain.settings.charge_units > cap_units(target)
    by_tokens = plan(by_gain.tokens, bound, **options)
    assert by_tokens.rho <= target
    assert by_tokens.settings.gain >= gain * (1 - 1e-9)
    longer = replace(by_tokens.settings, gain=by_tokens.settings.gain * (1 + 1e-6))
    assert longer.charge_units * by_gain.tokens > cap_units(target) or by_tokens.settings.w == pytest.approx(37)
    both = plan(by_gain.tokens, gain=gain, **options)
    assert both == by_gain
    assert both.epsilon == bounds.epsilon(both.rho, 1e-7)
    if bound.total_epsilon is not None:
        assert both.epsilon <= bound.total_epsilon
    if bound.membership_success is not None:
        assert both.membership_success <= bound.membership_success


def test_blocks_read_the_same_tokens_more_tightly():
    found = plan(64_000, gain=2.0, num_worlds=512)
    assert found.blocks.membership_success < found.membership_success
    assert found.blocks.epsilon(found.delta) < found.epsilon


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly two"),
        ({"tokens": 5}, "exactly two"),
        ({"tokens": 5, "gain": 1.0, "bound": CorpusBound(total_rho=1.0)}, "exactly two"),
        ({"tokens": 0, "gain": 1.0}, "tokens"),
        ({"tokens": 5, "gain": math.nan}, "gain"),
        ({"tokens": 5, "gain": 1.0, "temperature": 0.0}, "temperature"),
        ({"tokens": 5, "gain": 1.0, "clip": 0.0}, "clip"),
        ({"tokens": 5, "gain": 1.0, "delta": 1 / 512}, "1/512"),
        ({"tokens": 5, "gain": 1.0, "delta": 0.0}, "delta"),
        ({"tokens": 5, "gain": 1.0, "places": 0}, "places"),
        ({"tokens": 5, "gain": 1.0, "num_candidates": 1}, "num_candidates"),
        ({"bound": CorpusBound(total_rho=1e-12), "gain": 1.0}, "less than one token"),
        ({"bound": CorpusBound(total_rho=1e-18), "tokens": 10**9}, "no gain"),
    ],
)
def test_what_does_not_fit_is_named(options, message):
    with pytest.raises(InvalidValueError, match=message):
        plan(**({"num_worlds": 512} | options))


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ({"total_rho": 1.0, "total_epsilon": 8.0}, "one bound"),
        ({"total_rho": 0.0}, "total rho"),
        ({"total_epsilon": -1.0}, "total epsilon"),
        ({"total_epsilon": math.nan}, "total epsilon"),
        ({"membership_success": 0.5}, "membership success"),
        ({"membership_success": 1.0}, "membership success"),
    ],
)
def test_a_bound_out_of_range_is_named(bound, message):
    with pytest.raises(InvalidValueError, match=message):
        CorpusBound(**bound)


def test_delta_is_checked_against_the_places_whoever_takes_them():
    assert plan(5, gain=1.0, num_worlds=100, places=5, delta=0.00199).delta == 0.00199
    with pytest.raises(InvalidValueError, match="1/500"):
        plan(5, gain=1.0, num_worlds=100, places=5, delta=0.002)
