"""The posterior over worlds: Bayes' rule, its extremes, and 10^6 steps without decay."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reticent.errors import InvalidValueError
from reticent.pac.calibration import vote_weights
from reticent.pac.gaussian import GaussianMechanism
from reticent.pac.posterior import Posterior
from reticent.randomness import SeededNoise


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
    with pytest.raises(InvalidValueError, match=r"log-likelihoods must have shape|largest log-likelihood"):
        Posterior.uniform(2).updated(np.array(evidence))


@pytest.mark.parametrize("evidence", [math.nan, math.inf])
def test_evidence_that_is_no_number_is_refused_of_an_impossible_world_too(evidence):
    certain = Posterior(np.array([0.0, -math.inf]))
    with np.errstate(invalid="ignore"), pytest.raises(InvalidValueError, match="impossible world"):
        certain.updated(np.array([0.0, evidence]))
    np.testing.assert_array_equal(certain.updated(np.array([-1.0, 5.0])).weights, [1.0, 0.0])


@given(
    light=st.floats(1e-300, 0.5),
    budget=st.floats(2.0**-40, 8.0),
    seed=st.integers(0, 2**32 - 1),
    from_the_light=st.booleans(),
)
@example(light=1e-9, budget=0.3, seed=0, from_the_light=True)
def test_a_posterior_behind_a_token_of_tiny_mass_can_be_stored_and_is_exact(light, budget, seed, from_the_light):
    """Compared with Bayes' rule in 60 digits, on the very likelihoods the mechanism gave."""
    mechanism, index_M = GaussianMechanism(budget), np.array([0, 0, 1, 1])
    before = Posterior(np.log([0.3 * light, 0.7 * light, (1.0 - light) / 2, (1.0 - light) / 2]))
    calibration = mechanism.calibrate(vote_weights(index_M, before))
    evidence = mechanism.release(index_M, calibration, 0 if from_the_light else 2, SeededNoise(seed)).log_likelihood
    after = before.updated(evidence)
    assert Posterior(after.log_weights).log_weights.tobytes() == after.log_weights.tobytes()
    with mpmath.workdps(60):
        exact = [mpmath.mpf(float(w)) + mpmath.mpf(float(e)) for w, e in zip(before.log_weights, evidence, strict=True)]
        top = max(exact)
        total = mpmath.log(mpmath.fsum(mpmath.exp(value - top) for value in exact))
        for value, found in zip(exact, after.log_weights, strict=True):
            expected = float(value - top - total)
            assert math.isclose(found, expected, rel_tol=1e-13, abs_tol=1e-12)


def test_repr_shows_no_weight():
    assert repr(Posterior.uniform(4)) == "Posterior(num_worlds=4)"
