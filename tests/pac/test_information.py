"""The guarantee itself: exact information on small instances, by quadrature, for right and for wrong variants.

Every checker here is run on variants known to be wrong, and must flag them.
"""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pac_oracles import (
    REVEALED,
    FixedNormals,
    entropy,
    three_way_token_channel,
    token_information,
    two_way_token_channel,
    vector_information,
)
from scipy import stats

from reticent.pac.calibration import active_votes, calibrate, vote_weights
from reticent.pac.gaussian import GaussianMechanism, gaussian_bound_nats, log_likelihood, noise_covariance
from reticent.pac.posterior import Posterior

PAPER_BUDGET = 2.0**-32


def _calibrated(q, budget):
    calibration = calibrate(q, budget)
    return calibration.directions, calibration.noise_variances


def _drops_small_directions(q, budget):
    """Wrong: directions of small variance get no noise."""
    calibration = calibrate(q, budget)
    return calibration.directions, np.where(calibration.variances < 1e-6, REVEALED, calibration.noise_variances)


def _ignores_light_worlds(q, budget):
    """Wrong: tokens of negligible mass are left out of the unanimity test, and the vote then leaves without noise."""
    if (q > 1e-6).sum() > 1:
        return _calibrated(q, budget)
    directions, noise = _calibrated(q, budget)
    return directions, np.full_like(noise, REVEALED)


def _exceeds(variant, q, budget):
    q = np.array(q)
    return vector_information(q, *variant(q, budget)) > budget * (1 + 1e-9)


small_instances = st.integers(2, 3).flatmap(
    lambda a: st.lists(st.one_of(st.floats(0.01, 1.0), st.floats(-12.0, 0.0).map(lambda x: 10.0**x)),
                       min_size=a, max_size=a)
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(small_instances, st.floats(-20.0, 1.0).map(lambda x: 2.0**x))
@example([0.5, 0.5, 1e-10], 2.0**-20)
@example([127.0, 1.0], 2.0)
def test_exact_information_is_within_the_budget(raw, budget):
    q = np.array(raw) / sum(raw)
    calibration = calibrate(q, budget)
    information = vector_information(q, calibration.directions, calibration.noise_variances)
    bound = gaussian_bound_nats(calibration)
    assert 0.0 < information <= bound * (1 + 1e-9)
    assert bound <= budget


def test_the_checker_flags_dropped_directions_and_light_worlds_left_out():
    three, two = [0.5, 0.5 - 1e-10, 1e-10], [1 - 1e-10, 1e-10]
    assert not _exceeds(_calibrated, three, PAPER_BUDGET)
    assert _exceeds(_drops_small_directions, three, PAPER_BUDGET)
    assert not _exceeds(_calibrated, two, PAPER_BUDGET)
    assert _exceeds(_ignores_light_worlds, two, PAPER_BUDGET)


def test_what_a_dropped_direction_leaks():
    """About ten times the budget of 2^-32 at a mass of 1e-10: the entropy of that mass."""
    q = np.array([0.5, 0.5 - 1e-10, 1e-10])
    leak = vector_information(q, *_drops_small_directions(q, PAPER_BUDGET))
    assert leak == pytest.approx(PAPER_BUDGET + entropy([1 - 1e-10, 1e-10]), rel=0.01)
    assert 10 < leak / PAPER_BUDGET < 12


@pytest.mark.parametrize("share", [1 / 2, 1 / 3, 1 / 16, 1 / 128])
def test_two_way_information_uses_the_budget_almost_fully(share):
    q = np.array([share, 1 - share])
    budgets = [2.0**exponent for exponent in (-4, -8, -12, -16, -32)]
    ratios = [vector_information(q, *_calibrated(q, budget)) / budget for budget in budgets]
    assert all(np.diff(ratios) > 0)
    assert f"{ratios[2]:.4f}" == "0.9998"
    assert ratios[-1] == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("q", [[1 / 3, 1 / 3, 1 / 3], [0.6, 0.3, 0.1], [0.6, 0.4 - 1e-4, 1e-4]])
def test_three_way_information_uses_the_budget_almost_fully(q):
    q = np.array(q)
    assert vector_information(q, *_calibrated(q, 2.0**-30)) / 2.0**-30 == pytest.approx(1.0, abs=1e-6)


def _two_step_information(budget, num_worlds, remembers):
    """I(S; R1, R2) in nats when the second query follows from the first token, by quadrature over R1.

    The user's first query splits the worlds in halves; the second singles out one world of the half the token favoured.
    """
    prior = Posterior.uniform(num_worlds)
    halves = np.repeat([0, 1], num_worlds // 2)
    first = calibrate(vote_weights(halves, prior), budget)
    deviation = math.sqrt(first.noise_variances[0])
    nodes, node_weights = np.polynomial.legendre.leggauss(60)
    information = vector_information(first.vote_weights, first.directions, first.noise_variances)
    for side in (1.0, -1.0):
        for node, weight in zip(nodes, node_weights, strict=True):
            coordinate = side * (node + 1) * 4.5 * deviation
            noisy = 0.5 + coordinate * first.directions[:, 0]
            density = np.mean(stats.norm.pdf(coordinate, first.directions[:, 0], deviation))
            posterior = prior.updated(log_likelihood(first, halves, noisy))
            single = np.zeros(num_worlds, dtype=np.int64)
            single[0 if noisy.argmax() == 0 else -1] = 1
            believed = posterior if remembers else prior
            directions, noise = _calibrated(vote_weights(single, believed), budget)
            leak = vector_information(vote_weights(single, posterior), directions, noise)
            information += 4.5 * deviation * weight * density * leak
    return information


@pytest.mark.parametrize("budget", [0.005, 0.02])
def test_two_adaptive_steps_stay_within_two_budgets_and_a_reset_posterior_is_flagged(budget):
    assert 1.9 * budget < _two_step_information(budget, 8, remembers=True) <= 2 * budget
    assert _two_step_information(budget, 8, remembers=False) > 2.03 * budget


def test_the_token_carries_less_than_the_vector():
    """2/π of it for two-way votes, 27/(16π) for an even three-way vote, 0.659 for (0.6, 0.4, 1e-4)."""
    budget = 2.0**-20
    for q in ([0.5, 0.5], [0.2, 0.8]):
        q = np.array(q)
        channel = two_way_token_channel(calibrate(q, budget).noise_variances[0])
        assert token_information(q, channel) / budget == pytest.approx(2 / math.pi, rel=1e-4)
    even = np.full(3, 1 / 3)
    channel = three_way_token_channel(noise_covariance(calibrate(even, budget)))
    assert token_information(even, channel) / budget == pytest.approx(27 / (16 * math.pi), rel=1e-3)
    uneven = np.array([0.6, 0.4, 1e-4]) / 1.0001
    channel = three_way_token_channel(noise_covariance(calibrate(uneven, budget)))
    assert f"{token_information(uneven, channel) / budget:.3f}" == "0.659"


def test_the_token_law_through_the_mechanism_matches_the_wedges():
    """Monte Carlo, at a budget where votes matter; bounds that fail a correct mechanism once in 10^9."""
    q, index, draws = np.array([0.5, 0.3, 0.2]), np.array([0, 1, 2]), 10_000
    mechanism = GaussianMechanism(0.5)
    calibration = mechanism.calibrate(q)
    channel = three_way_token_channel(noise_covariance(calibration))
    np.testing.assert_allclose(channel.sum(axis=1), 1.0, rtol=1e-12)
    normals = np.random.default_rng(11).standard_normal((draws, 2))
    for secret in range(3):
        released = [mechanism.release(index, calibration, secret, FixedNormals(*pair)).index for pair in normals]
        for token in range(3):
            hits = released.count(token)
            assert stats.binomtest(hits, len(released), channel[secret, token]).pvalue > 1e-9
    assert channel[0, 0] - channel[1, 0] > 0.1


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(3)), st.lists(st.floats(0.02, 1.0), min_size=3, max_size=3))
def test_the_token_law_does_not_depend_on_the_order_of_candidates(order, raw):
    q = np.array(raw) / sum(raw)
    channel = three_way_token_channel(noise_covariance(calibrate(q, 0.25)))
    permuted = three_way_token_channel(noise_covariance(calibrate(q[order], 0.25)))
    np.testing.assert_allclose(permuted, channel[np.ix_(order, order)], atol=1e-9)


@pytest.mark.parametrize("dissenters", [1, 16, 64])
def test_at_the_papers_budget_the_token_is_nearly_a_fair_coin(dissenters):
    """A single dissenter of 128 has nearly half the say."""
    q = np.array([128 - dissenters, dissenters]) / 128
    channel = two_way_token_channel(calibrate(q, PAPER_BUDGET).noise_variances[0])
    assert np.abs(channel - 0.5).max() < 2e-4
    assert channel[0, 0] > 0.5 > channel[0, 1]


def test_the_posterior_is_a_martingale_by_quadrature():
    weights = np.array([0.05, 0.15, 0.3, 0.5])
    posterior = Posterior(np.log(weights))
    _, index = active_votes(np.array([9, 4, 9, 4]))
    calibration = calibrate(vote_weights(index, posterior), 0.3)
    deviation = math.sqrt(calibration.noise_variances[0])
    grid = np.arange(-12.0, 12.0, 0.05) * deviation
    mean_after, wrong_mean = np.zeros(4), np.zeros(4)
    for coordinate in grid:
        noisy = 0.5 + coordinate * calibration.directions[:, 0]
        after = posterior.updated(log_likelihood(calibration, index, noisy)).weights
        by_vote = stats.norm.pdf(coordinate, calibration.directions[:, 0], deviation) * 0.05 * deviation
        mean_after += after * (by_vote @ calibration.vote_weights)
        wrong_mean += after * by_vote[0]
    np.testing.assert_allclose(mean_after, weights, rtol=1e-12)
    assert np.abs(wrong_mean - weights).max() > 0.03, "with S fixed it is no martingale, and the check must see that"


def test_refinement_is_the_dissent_rate_times_the_charge():
    """E[log p_T(S) − log p_0(S)] = I(S; R_1:T) = E Σ_t I_t, each I_t by quadrature under the posterior of its step."""
    generator = np.random.default_rng(2)
    rate, budget, num_worlds, steps = 0.173, 2.0**-14, 16, 1_000
    dissenting = np.zeros(steps, dtype=bool)
    dissenting[generator.choice(steps, round(rate * steps), replace=False)] = True
    posterior, secret, refinement = Posterior.uniform(num_worlds), 5, 0.0
    mechanism = GaussianMechanism(budget)
    for dissent in dissenting:
        if not dissent:
            continue
        votes = generator.permutation(num_worlds) < generator.integers(1, num_worlds)
        _, index = active_votes(votes)
        calibration = mechanism.calibrate(vote_weights(index, posterior))
        refinement += vector_information(calibration.vote_weights, calibration.directions, calibration.noise_variances)
        noise = FixedNormals(*generator.standard_normal(1))
        posterior = posterior.updated(mechanism.release(index, calibration, secret, noise).log_likelihood)
    assert refinement / (steps * budget) == pytest.approx(rate, rel=1e-3)
    assert posterior.entropy() < math.log(num_worlds)
