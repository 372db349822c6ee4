"""Calibration: the trace bound in exact arithmetic, its edge cases, and what must not change the noise."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from reticent.errors import InvalidValueError
from reticent.pac.calibration import active_votes, calibrate, vote_weights
from reticent.pac.gaussian import GaussianMechanism, gaussian_bound_nats, log_likelihood, noise_covariance
from reticent.pac.posterior import Posterior

masses = st.integers(2, 9).flatmap(
    lambda a: st.lists(st.one_of(st.just(0.0), st.floats(-40.0, 0.0).map(lambda x: 10.0**x)), min_size=a, max_size=a)
)
budgets = st.integers(-60, 3).map(lambda x: 2.0**x)


def _normalised(raw):
    assume(sum(raw) > 0)
    return np.array(raw) / sum(raw)


def _charge_exact(q, directions, noise_variances):
    """½ tr(N⁻¹ Σ) on the sum-zero subspace, in 60 digits, for the noise as it is drawn."""
    a = q.size
    with mpmath.workdps(60):
        weights = [mpmath.mpf(x) for x in q]
        total = sum(weights)
        weights = [w / total for w in weights]
        basis = mpmath.matrix(a, a - 1)
        for k in range(1, a):
            scale = 1 / mpmath.sqrt(k * (k + 1))
            for i in range(k):
                basis[i, k - 1] = scale
            basis[k, k - 1] = -k * scale
        sigma = mpmath.diag(weights) - mpmath.matrix(weights) * mpmath.matrix(weights).T
        drawn = basis.T * mpmath.matrix(directions.tolist())
        noise = drawn * mpmath.diag([mpmath.mpf(x) for x in noise_variances]) * drawn.T
        product = noise**-1 * (basis.T * sigma * basis)
        return sum(product[i, i] for i in range(a - 1)) / 2


@settings(max_examples=120, deadline=None)
@given(masses, budgets)
@example([1.0, 0.0], 2.0**-32)
@example([1.0, 0.0, 0.0], 2.0**-32)
@example([0.5, 0.5, 1e-10], 2.0**-32)
@example([0.5, 0.5, 1e-20, 0.0], 2.0**-32)
@example([0.25, 0.25, 0.25, 0.25], 1.0)
@example([1 - 1e-12, 1e-12], 8.0)
def test_the_charge_is_never_exceeded_and_every_direction_keeps_noise(raw, budget):
    q = _normalised(raw)
    calibration = calibrate(q, budget)
    assert calibration.directions.shape == (q.size, q.size - 1)
    gram = calibration.directions.T @ calibration.directions
    np.testing.assert_allclose(gram, np.eye(q.size - 1), atol=1e-14)
    np.testing.assert_allclose(calibration.directions.sum(axis=0), 0.0, atol=1e-14)
    assert np.isfinite(calibration.noise_variances).all()
    assert (calibration.noise_variances > 0).all()
    charge = _charge_exact(q, calibration.directions, calibration.noise_variances)
    assert charge <= budget
    if q.size == 2 and q.min() > 1e-25:
        assert charge >= budget * (1 - 2e-12)
    assert gaussian_bound_nats(calibration) <= budget


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9), budgets)
def test_noise_is_the_trace_formula_and_spends_the_whole_budget(raw, budget):
    """Noise covariance = tr(Σ^½) Σ^½ / (2b), with the root from an independent eigendecomposition of Σ itself."""
    q = _normalised(raw)
    eigenvalues, vectors = np.linalg.eigh(np.diag(q) - np.outer(q, q))
    roots = np.sqrt(np.clip(eigenvalues, 0.0, None))
    roots[0] = 0.0
    expected = roots.sum() * (vectors * roots) @ vectors.T / (2 * budget)
    covariance = noise_covariance(calibrate(q, budget))
    np.testing.assert_allclose(covariance, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    assert _charge_exact(q, *_noise(calibrate(q, budget))) >= budget * (1 - 1e-11)


def _noise(calibration):
    return calibration.directions, calibration.noise_variances


@pytest.mark.parametrize("light", [1e-17, 1e-20, 1e-300, 0.0])
def test_the_least_noise_is_floored_relative_to_the_largest(light):
    calibration = calibrate(np.array([0.5, 0.5, light]), 2.0**-32)
    assert calibration.variances.min() == pytest.approx(2.0**-52 * calibration.variances.max(), rel=1e-12)
    assert calibration.noise_variances.min() == pytest.approx(2.0**-26 * calibration.noise_variances.max(), rel=1e-12)


def test_a_dropped_direction_is_visible_to_the_exact_charge():
    """The check above can fail: without noise along the smallest direction the exact charge explodes."""
    calibration = calibrate(np.array([0.5, 0.5 - 1e-10, 1e-10]), 2.0**-32)
    noise = calibration.noise_variances.copy()
    noise[calibration.variances.argmin()] = 1e-20
    assert _charge_exact(calibration.vote_weights, calibration.directions, noise) > 1e6 * 2.0**-32


@settings(max_examples=60, deadline=None)
@given(masses, budgets, st.randoms(use_true_random=False))
def test_noise_does_not_depend_on_the_order_of_candidates(raw, budget, random):
    q = _normalised(raw)
    order = list(range(q.size))
    random.shuffle(order)
    covariance = noise_covariance(calibrate(q, budget))
    permuted = noise_covariance(calibrate(q[order], budget))
    # Below the floor on λ, equal in effect but not in digits: roots of 2^-52 are 2^-26.
    np.testing.assert_allclose(permuted, covariance[np.ix_(order, order)], rtol=0, atol=4e-8 * np.abs(covariance).max())


def test_noise_does_not_depend_on_the_order_of_worlds():
    generator = np.random.default_rng(4)
    votes, weights = generator.integers(0, 5, 64), generator.dirichlet(np.full(64, 0.1))
    order = generator.permutation(64)
    posterior, permuted = Posterior(np.log(weights)), Posterior(np.log(weights[order]))
    active, index = active_votes(votes)
    active_permuted, index_permuted = active_votes(votes[order])
    np.testing.assert_array_equal(active, active_permuted)
    np.testing.assert_array_equal(index[order], index_permuted)
    q, q_permuted = vote_weights(index, posterior), vote_weights(index_permuted, permuted)
    np.testing.assert_allclose(q, q_permuted, rtol=1e-12)
    noisy = generator.standard_normal(active.size)
    likelihood = log_likelihood(calibrate(q, 0.1), index, noisy)
    likelihood_permuted = log_likelihood(calibrate(q_permuted, 0.1), index_permuted, noisy)
    np.testing.assert_allclose(likelihood[order], likelihood_permuted, rtol=1e-9)


def test_the_papers_scale_of_noise():
    calibration = calibrate(np.array([0.5, 0.5]), 2.0**-32)
    assert math.sqrt(calibration.noise_variances[0]) == pytest.approx(32_768, rel=1e-11)
    assert math.sqrt(noise_covariance(calibration)[0, 0]) == pytest.approx(23_170.475, rel=1e-7)


@settings(max_examples=80)
@given(st.integers(2, 7), st.integers(-40, 0), st.data())
def test_log_likelihood_is_the_gaussian_log_density(num_active, exponent, data):
    """Against the textbook density with the pseudo-inverse of the covariance, where float64 still resolves it."""
    q = _normalised(data.draw(st.lists(st.floats(0.05, 1.0), min_size=num_active, max_size=num_active)))
    calibration = calibrate(q, 2.0**-8 if exponent < -8 else 2.0**exponent)
    noise = data.draw(arrays(np.float64, num_active - 1, elements=st.floats(-4, 4)))
    noisy = calibration.directions @ (np.sqrt(calibration.noise_variances) * noise)
    noisy[0] += 1.0
    inverse = np.linalg.pinv(noise_covariance(calibration), rcond=1e-12, hermitian=True)
    deviations = noisy - np.eye(num_active)
    density = -0.5 * np.einsum("ai,ij,aj->a", deviations, inverse, deviations)
    ours = log_likelihood(calibration, np.arange(num_active), noisy)
    np.testing.assert_allclose(ours - ours[0], density - density[0], rtol=1e-7, atol=1e-9)


@settings(max_examples=80)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=64))
def test_active_votes(votes):
    active, index = active_votes(np.array(votes))
    expected, inverse = np.unique(votes, return_inverse=True)
    np.testing.assert_array_equal(active, expected)
    np.testing.assert_array_equal(index, inverse)


@pytest.mark.parametrize(
    "q", [[1.0], [0.5, 0.6], [0.5, 0.4], [1.5, -0.5], [math.nan, 0.5], [math.inf, 0.5], [[0.5, 0.5]], []]
)
def test_malformed_vote_weights_are_refused(q):
    with pytest.raises(InvalidValueError, match=r"vote weights|active tokens"):
        calibrate(np.array(q), 0.1)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300, "1", None])
def test_budgets_out_of_range_are_refused(budget):
    with pytest.raises(InvalidValueError, match="step_budget"):
        calibrate(np.array([0.5, 0.5]), budget)
    with pytest.raises(InvalidValueError, match="step_budget"):
        GaussianMechanism(budget)


def test_a_release_refuses_another_mechanisms_calibration_and_a_secret_that_is_no_world():
    index = np.array([0, 1])
    calibration = calibrate(np.array([0.5, 0.5]), 0.1)
    with pytest.raises(InvalidValueError, match="calibrated for"):
        GaussianMechanism(0.2).release(index, calibration, 0, None)
    for secret in (-1, 2):
        with pytest.raises(InvalidValueError, match="one of the 2 worlds"):
            GaussianMechanism(0.1).release(index, calibration, secret, None)


def test_reprs_show_nothing_derived_from_the_posterior():
    calibration = calibrate(np.array([0.123456, 0.876544]), 0.25)
    assert repr(calibration) == "Calibration(num_active=2, step_budget=0.25)"
