"""The posterior over worlds: Bayes' rule, its extremes, and 10^6 steps without decay."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reticent.errors import InvalidValueError
from reticent.pac.posterior import Posterior


def test_uniform():
    prior = Posterior.uniform(128)
    np.testing.assert_allclose(prior.weights, 1 / 128, rtol=1e-15)
    assert prior.entropy() == pytest.approx(math.log(128), rel=1e-14)


@settings(max_examples=80)
@given(arrays(np.float64, 6, elements=st.floats(0.01, 1.0)), arrays(np.float64, 6, elements=st.floats(-30.0, 30.0)))
def test_update_is_bayes_rule(raw, log_likelihood):
    prior = raw / raw.sum()
    expected = prior * np.exp(log_likelihood)
    expected /= expected.sum()
    after = Posterior(np.log(prior)).updated(log_likelihood)
    np.testing.assert_allclose(after.weights, expected, rtol=1e-12)
    np.testing.assert_allclose(np.exp(after.log_weights), expected, rtol=1e-12)


def test_updates_commute_with_adding_the_evidence():
    generator = np.random.default_rng(0)
    first, second = generator.standard_normal((2, 10))
    twice = Posterior.uniform(10).updated(first).updated(second)
    np.testing.assert_allclose(twice.log_weights, Posterior.uniform(10).updated(first + second).log_weights, rtol=1e-13)


def test_a_world_of_weight_zero_never_comes_back():
    posterior = Posterior(np.array([math.log(0.5), math.log(0.5), -math.inf, -math.inf]))
    for push in (700.0, 1e300, -1e300, 0.0):
        posterior = posterior.updated(np.array([0.0, 1.0, push, abs(push)]))
        assert posterior.weights[2:].tolist() == [0.0, 0.0]
        assert posterior.log_weights[2:].tolist() == [-math.inf, -math.inf]
        assert posterior.weights.sum() == pytest.approx(1.0, abs=1e-15)


def test_a_weight_that_underflows_is_not_forgotten():
    posterior = Posterior.uniform(2).updated(np.array([0.0, -2_000.0]))
    assert posterior.weights[1] == 0.0
    restored = posterior.updated(np.array([0.0, 2_000.0]))
    np.testing.assert_allclose(restored.weights, 0.5, rtol=1e-12)


def test_extreme_evidence_gives_no_nan():
    posterior = Posterior.uniform(4).updated(np.array([-4e307, 4e307, 0.0, -4e307]))
    assert posterior.weights.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert posterior.entropy() == 0.0
    assert not np.isnan(posterior.log_weights).any()


def test_a_million_steps_do_not_decay():
    """Against the normalised exact sum (math.fsum) of all increments, at the size they have for b = 2^-32."""
    num_worlds, block, repeats = 16, 1_000, 1_000
    increments = np.random.default_rng(7).standard_normal((block, num_worlds)) * 3e-5
    posterior = Posterior.uniform(num_worlds)
    for _ in range(repeats):
        for increment in increments:
            posterior = posterior.updated(increment)
    total = np.array([repeats * math.fsum(column) for column in increments.T])
    expected = total - total.max()
    expected -= math.log(math.fsum(np.exp(expected)))
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(posterior.log_weights, expected, rtol=0, atol=1e-9)
    assert posterior.weights.sum() == pytest.approx(1.0, abs=1e-14)
    assert (posterior.weights > 0).all()
    # What float32 would have made of it: the same walk is off by far more than the tolerance above.
    walk = np.full(num_worlds, -math.log(num_worlds), dtype=np.float32)
    for increment in np.tile(increments.astype(np.float32), (20, 1)):
        walk += increment
    exact = 20 * increments.sum(axis=0) - math.log(num_worlds)
    assert np.abs(walk - exact).max() > 1e-6


def test_stored_log_weights_come_back_bit_for_bit_and_cannot_be_changed():
    source = Posterior.uniform(6).updated(np.random.default_rng(1).standard_normal(6))
    restored = Posterior(source.log_weights)
    np.testing.assert_array_equal(restored.log_weights, source.log_weights)
    for array in (source.log_weights, source.weights, restored.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0
    mutable = np.array(source.log_weights)
    kept = Posterior(mutable)
    mutable[:] = 0.0
    np.testing.assert_array_equal(kept.log_weights, source.log_weights)


@pytest.mark.parametrize(
    "stored",
    [
        [math.nan, 0.0],
        [math.inf, -math.inf],
        [-math.inf, -math.inf],
        [0.0, 0.0],
        [-1.0, -1.0],
        [0.0],
        [[0.0, -math.inf]],
        [],
        [-math.log(3)] * 3,
        [1e308, 0.0],
    ],
)
def test_damaged_log_weights_are_refused(stored):
    with pytest.raises(InvalidValueError):
        Posterior(np.array(stored))


@pytest.mark.parametrize("evidence", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf], [0.0], [0.0, 0.0, 0.0]])
def test_impossible_evidence_is_refused(evidence):
    with pytest.raises(InvalidValueError, match=r"log-likelihoods must have shape|largest updated log-weight"):
        Posterior.uniform(2).updated(np.array(evidence))


def test_repr_shows_no_weight():
    assert repr(Posterior.uniform(4)) == "Posterior(num_worlds=4)"
