"""The mixture release: its information in 60 digits, its channel through the draws, and what it keeps of the votes."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pac_oracles import FixedUniforms, entropy, mixture_channel, mixture_information
from scipy import stats

from reticent.pac.calibration import active_votes, vote_weights
from reticent.pac.mixture import MixtureMechanism, mixture_information_nats, mixture_log_likelihood
from reticent.pac.posterior import Posterior
from reticent.randomness import SeededNoise

PAPER_BUDGET = 2.0**-32

masses = st.integers(2, 7).flatmap(
    lambda a: st.lists(st.one_of(st.just(0.0), st.floats(-40.0, 0.0).map(lambda x: 10.0**x)), min_size=a, max_size=a)
)
budgets = st.integers(-128, 3).map(lambda x: 2.0**x)


def _normalised(raw):
    assume(sum(raw) > 0)
    return np.array(raw) / sum(raw)


@settings(max_examples=150, deadline=None)
@given(masses, budgets)
@example([0.5, 0.5], PAPER_BUDGET)
@example([127.0, 1.0], PAPER_BUDGET)
@example([0.5, 0.5, 1e-10], PAPER_BUDGET)
@example([1.0, 1e-14], 2.0**-40)
@example([1.0, 0.0], PAPER_BUDGET)
@example([1e-300, 0.4, 0.6], 2.0**-128)
@example([1.0, 1e-17], 2.0**-128)
def test_exact_information_fills_the_budget_and_never_passes_it(raw, budget):
    q = _normalised(raw)
    calibration = MixtureMechanism(budget).calibrate(q)
    # The terms of order 1 cancel down to the budget: some 40 digits of it at 2^-128.
    information = mixture_information(calibration.vote_weights, calibration.keep_probability, digits=90)
    assert 0 < information <= budget
    if calibration.keep_probability < 1.0:
        assert information >= budget * (1 - 2.0**-31)
    else:
        assert entropy(q) <= budget
    ours = mixture_information_nats(calibration.vote_weights, calibration.keep_probability)
    assert ours == pytest.approx(float(information), rel=1e-12)


@pytest.mark.parametrize("excess", [1e-6, 1e-3])
def test_a_larger_probability_would_pass_the_budget(excess):
    """The check above can fail, at the paper's budget and light masses too."""
    for q in ([0.5, 0.5], [1 - 1e-11, 1e-11], [0.6, 0.4 - 1e-4, 1e-4]):
        keep = MixtureMechanism(PAPER_BUDGET).calibrate(np.array(q)).keep_probability
        assert mixture_information(q, keep) <= PAPER_BUDGET < mixture_information(q, keep * (1 + excess))


@pytest.mark.parametrize("num_active", [2, 3, 5, 20, 128])
def test_small_budgets_follow_the_square_root(num_active):
    """α → √(2b / (a − 1)) for every q, once α is far below each mass."""
    generator = np.random.default_rng(num_active)
    for q in (np.full(num_active, 1 / num_active), generator.dirichlet(np.full(num_active, 5.0))):
        calibration = MixtureMechanism(2.0**-60).calibrate(q)
        assert calibration.keep_probability == pytest.approx(math.sqrt(2.0**-59 / (num_active - 1)), rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(masses, budgets)
def test_the_probability_is_never_below_its_floor(raw, budget):
    q = _normalised(raw)
    keep = MixtureMechanism(budget).calibrate(q).keep_probability
    assert min(1.0, math.sqrt(budget / (q.size - 1))) * (1 - 1e-9) <= keep <= 1.0


def test_a_light_dissenter_costs_less_than_the_square_root_says():
    """At 1e-4 for the third token, α is 1.2 % above the asymptote already; at 1e-10 as if it were not there."""
    asymptote = math.sqrt(PAPER_BUDGET)
    keep = [
        MixtureMechanism(PAPER_BUDGET).calibrate(np.array([0.6, 0.4 - light, light])).keep_probability / asymptote
        for light in (1e-4, 1e-10)
    ]
    assert f"{keep[0]:.3f}" == "1.012"
    assert keep[1] == pytest.approx(math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize(("budget", "released_raw"), [(math.log(2) * 1.001, True), (math.log(2) * 0.999, False)])
def test_the_vote_itself_is_released_only_where_its_entropy_is_within_the_budget(budget, released_raw):
    calibration = MixtureMechanism(budget).calibrate(np.array([0.5, 0.5]))
    assert (calibration.keep_probability == 1.0) == released_raw


@pytest.mark.parametrize("q", [[0.5, 0.3, 0.2], [1e-3, 0.5, 0.499]])
@pytest.mark.parametrize("budget", [0.3, 2.0**-8])
def test_information_grows_with_the_probability_from_nothing_to_the_entropy(q, budget):
    values = [mixture_information_nats(np.array(q), keep) for keep in np.linspace(0, 1, 101)]
    assert values[0] == 0.0
    assert values[-1] == pytest.approx(entropy(q), rel=1e-13)
    assert (np.diff(values) > 0).all()
    keep = MixtureMechanism(budget).calibrate(np.array(q)).keep_probability
    assert mixture_information_nats(np.array(q), keep) == pytest.approx(budget, rel=1e-9)


def _released(mechanism, calibration, index, secret, keep, position):
    return mechanism.release(index, calibration, secret, FixedUniforms(keep, position)).index


def test_the_vote_is_kept_exactly_up_to_the_probability():
    mechanism, index = MixtureMechanism(0.1), np.array([0, 1, 1, 0])
    calibration = mechanism.calibrate(np.array([0.5, 0.5]))
    keep = calibration.keep_probability
    for secret in range(4):
        other_half = 1.0 if index[secret] == 0 else 0.25
        assert _released(mechanism, calibration, index, secret, keep, other_half) == index[secret]
        beyond = math.nextafter(keep, 1.0)
        assert _released(mechanism, calibration, index, secret, beyond, other_half) == 1 - index[secret]


def _shares(mechanism, calibration, index):
    """The measure of positions that lead to each token where the vote is not kept, by bisection for its edges."""
    shares = np.zeros(calibration.num_active)
    low = 0.0
    while low < 1.0:
        token = _released(mechanism, calibration, index, 0, 1.0, math.nextafter(low, 1.0))
        inside, outside = math.nextafter(low, 1.0), 1.0
        if _released(mechanism, calibration, index, 0, 1.0, 1.0) == token:
            inside = 1.0
        while math.nextafter(inside, 1.0) < outside and inside < 1.0:
            middle = 0.5 * (inside + outside)
            if _released(mechanism, calibration, index, 0, 1.0, middle) == token:
                inside = middle
            else:
                outside = middle
        shares[token] += inside - low
        low = inside
    return shares


@pytest.mark.parametrize("q", [[0.2, 0.5, 0.3], [0.5, 1e-30, 0.5], [1e-12, 1e-200, 1e-12, 1.0], [0.25] * 4])
def test_where_the_vote_is_not_kept_every_mass_has_its_share_however_light(q):
    q = np.array(q) / sum(q)
    mechanism, index = MixtureMechanism(2.0**-128), np.arange(q.size)
    np.testing.assert_allclose(_shares(mechanism, mechanism.calibrate(q), index), q, rtol=1e-14)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), budgets)
def test_the_marginal_is_exactly_the_votes_channel(raw, budget):
    q = _normalised(raw)
    calibration = MixtureMechanism(budget).calibrate(q)
    np.testing.assert_allclose(q @ mixture_channel(q, calibration.keep_probability), q, rtol=1e-14)


def test_draws_follow_the_channel():
    """Monte Carlo at a budget where votes matter; bounds that fail a correct mechanism once in 10^9."""
    q, index, noise = np.array([0.5, 0.3, 0.2]), np.array([0, 1, 2]), SeededNoise(3)
    mechanism = MixtureMechanism(0.1)
    calibration = mechanism.calibrate(q)
    channel = mixture_channel(q, calibration.keep_probability)
    for secret in range(3):
        released = [mechanism.release(index, calibration, secret, noise).index for _ in range(10_000)]
        for token in range(3):
            assert stats.binomtest(released.count(token), len(released), channel[secret, token]).pvalue > 1e-9
    assert channel[0, 0] - channel[1, 0] > 0.3


@settings(max_examples=80, deadline=None)
@given(masses, budgets, st.data())
def test_log_likelihoods_are_those_of_the_channel(raw, budget, data):
    q = _normalised(raw)
    calibration = MixtureMechanism(budget).calibrate(q)
    token = data.draw(st.integers(0, q.size - 1))
    ours = mixture_log_likelihood(calibration, np.arange(q.size), token)
    with mpmath.workdps(400):
        keep, mass = mpmath.mpf(calibration.keep_probability), mpmath.mpf(float(calibration.vote_weights[token]))
        total = sum(mpmath.mpf(float(weight)) for weight in calibration.vote_weights)
        own = mpmath.log(1 + keep * (total - mass) / mass)
        other = mpmath.log(1 - keep) if keep < 1 else -mpmath.inf
        expected = [float(own if vote == token else other) for vote in range(q.size)]
    np.testing.assert_allclose(ours, expected, rtol=1e-13)


def test_one_dissenter_of_128_keeps_one_vote():
    """Where the Gaussian gives a single dissenting world half of the say, the mixture gives it 1/128."""
    q = np.array([127, 1]) / 128
    channel = mixture_channel(q, MixtureMechanism(PAPER_BUDGET).calibrate(q).keep_probability)
    assert (q @ channel)[1] == pytest.approx(1 / 128, rel=1e-12)
    assert abs(channel[0, 1] - 1 / 128) < 1e-6


def test_a_world_that_a_raw_release_ruled_out_stays_out_and_its_dissent_still_counts():
    posterior = Posterior.uniform(4)
    votes, mechanism = np.array([1, 1, 2, 2]), MixtureMechanism(2.0)
    active, index = active_votes(votes)
    drawn = mechanism.release(index, mechanism.calibrate(vote_weights(index, posterior)), 2, FixedUniforms(1.0, 0.1))
    assert active[drawn.index] == 2
    posterior = posterior.updated(drawn.log_likelihood)
    np.testing.assert_allclose(posterior.weights, [0, 0, 0.5, 0.5])
    calibration = mechanism.calibrate(vote_weights(index, posterior))
    assert calibration.keep_probability == 1.0
    assert calibration.vote_weights[0] > 0.0
    drawn = mechanism.release(index, calibration, 3, FixedUniforms(0.5, 0.9))
    np.testing.assert_allclose(posterior.updated(drawn.log_likelihood).weights, [0, 0, 0.5, 0.5])
