"""What every release mechanism must do: one contract, run on each of them, and on wrong variants that it must flag.

A `Channel` is a mechanism seen from outside: a list of outcomes with their probabilities given the vote (exact for the
mixture, quadrature over the noise for the Gaussian, one noisy direction), what each tells about the votes by the
package's own update, and the token it shows.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pac_oracles import CountingNoise, MemoryStore, mixture_channel
from scipy import stats
from scipy.special import xlogy

from reticent.errors import BudgetExhaustedError, InvalidValueError
from reticent.pac.accounting import cap_units, charge_units
from reticent.pac.calibration import active_votes, vote_weights
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.gaussian import log_likelihood
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.pac.mixture import mixture_log_likelihood
from reticent.pac.posterior import Posterior

MECHANISMS = list(ReleaseMechanism)
BUDGET = 0.05

each_mechanism = pytest.mark.parametrize("kind", MECHANISMS, ids=lambda kind: kind.value)
masses = st.integers(2, 6).flatmap(
    lambda a: st.lists(st.one_of(st.just(0.0), st.floats(-30.0, 0.0).map(lambda x: 10.0**x)), min_size=a, max_size=a)
)


@dataclass
class Channel:
    """Outcomes of one release: their probabilities given each vote, each vote's update, the token shown."""

    probability_AO: np.ndarray
    update_AO: np.ndarray
    token_O: np.ndarray


def channel_of(kind, calibration, step=0.1):
    votes = np.arange(calibration.num_active)
    if kind is ReleaseMechanism.MIXTURE:
        updates = [mixture_log_likelihood(calibration, votes, token) for token in votes]
        return Channel(
            mixture_channel(calibration.vote_weights, calibration.keep_probability), np.array(updates).T, votes
        )
    assert votes.size == 2
    deviation = math.sqrt(calibration.noise_variances[0])
    along = calibration.directions[:, 0]
    cells = math.ceil((9.0 + np.abs(along).max() / deviation) / step)
    grid = (np.arange(-cells, cells) + 0.5) * step
    probability_AO = np.array([stats.norm.pdf(grid - along[vote] / deviation) * step for vote in votes])
    noisy_OA = 0.5 + deviation * grid[:, None] * along
    updates = [log_likelihood(calibration, votes, noisy) for noisy in noisy_OA]
    return Channel(probability_AO, np.array(updates).T, noisy_OA.argmax(axis=1))


def information(prior, probability_SH):
    """I(S; H) in nats of P(history | S) over all histories, straight from the definition."""
    marginal = prior @ probability_SH
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(probability_SH > 1e-290, probability_SH / marginal, 1.0)
    return float(prior @ xlogy(probability_SH, ratio).sum(axis=1))


def curator_of(kind, num_worlds=4, *, secret=0, weights=None, total_budget=None, seed=1):
    posterior = Posterior.uniform(num_worlds) if weights is None else Posterior(np.log(weights))
    cap = None if total_budget is None else cap_units(total_budget)
    store, noise = MemoryStore(), CountingNoise(seed)
    curator = Curator.for_experiments(CuratorState(secret, posterior.log_weights, cap_units=cap), store, noise)

    def release(votes, budget=BUDGET):
        return curator.release(np.array(votes), Charging(budget), request="r", step=0, release_mechanism=kind)

    return curator, store, noise, release


@each_mechanism
@pytest.mark.parametrize("votes", [[1, 2, 1, 3], [5, 5, 5, 5], [1, 1, 1, 2]])
def test_the_charge_is_the_budget_whatever_the_votes_the_secret_and_the_mechanism(kind, votes):
    for secret in range(4):
        curator, store, _, release = curator_of(kind, secret=secret)
        assert release(votes).charge_units == charge_units(BUDGET)
        assert curator.account.spent_units == charge_units(BUDGET)
        assert store.commits[0][1].charge_units == charge_units(BUDGET)


@each_mechanism
def test_the_cap_is_tested_before_anything_is_drawn(kind):
    curator, store, noise, release = curator_of(kind, total_budget=2.5 * BUDGET)
    for _ in range(2):
        release([1, 2, 1, 2])
    drawn, before = noise.drawn, curator.state
    assert drawn > 0
    with pytest.raises(BudgetExhaustedError):
        release([1, 2, 1, 2])
    assert (noise.drawn, curator.state, len(store.commits)) == (drawn, before, 2)


@each_mechanism
def test_unanimity_draws_nothing_and_updates_nothing(kind):
    curator, _, noise, release = curator_of(kind)
    assert release([8, 8, 8, 8]).token == 8
    assert noise.drawn == 0
    np.testing.assert_array_equal(curator.state.log_posterior, Posterior.uniform(4).log_weights)


@each_mechanism
@pytest.mark.parametrize("light", [1e-300, 0.0])
def test_a_world_of_negligible_or_no_mass_still_breaks_unanimity(kind, light):
    with np.errstate(divide="ignore"):
        curator, _, noise, release = curator_of(kind, weights=np.array([0.5, 0.5, 0.0, light]))
    assert release([1, 1, 1, 2]).num_active == 2
    assert noise.drawn > 0
    assert curator.state.log_posterior[2] == -math.inf, "a world ruled out never comes back"
    assert not np.isnan(curator.state.log_posterior).any()


@each_mechanism
@settings(max_examples=60, deadline=None)
@given(masses, st.integers(-128, 3).map(lambda x: 2.0**x), st.integers(0, 2**32))
def test_the_token_is_active_and_the_update_is_usable(kind, raw, budget, seed):
    if not sum(raw) > 0:
        return
    q = np.array(raw) / sum(raw)
    index = np.repeat(np.arange(q.size), 2)
    mechanism = mechanism_for(kind, budget)
    drawn = mechanism.release(index, mechanism.calibrate(q), int(q.argmax()) * 2, CountingNoise(seed))
    assert 0 <= drawn.index < q.size
    assert drawn.log_likelihood.shape == index.shape
    assert not np.isnan(drawn.log_likelihood).any()
    assert drawn.log_likelihood.max() < math.inf
    with np.errstate(divide="ignore"):
        after = Posterior(np.log(np.repeat(q, 2) / 2)).updated(drawn.log_likelihood)
    assert after.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (after.weights[np.repeat(q, 2) == 0.0] == 0.0).all()


@each_mechanism
def test_the_secret_only_selects_a_row(kind):
    """Worlds with one vote are one: same token, same update, same amount of noise, whichever of them is realised."""
    index = np.array([0, 1, 2, 1, 0, 1])
    mechanism = mechanism_for(kind, 0.3)
    calibration = mechanism.calibrate(np.array([0.3, 0.5, 0.2]))
    by_vote = {}
    for seed in range(30):
        for secret in range(6):
            noise = CountingNoise(seed)
            drawn = mechanism.release(index, calibration, secret, noise)
            same = by_vote.setdefault((seed, int(index[secret])), (drawn, noise.drawn))
            assert drawn.index == same[0].index
            np.testing.assert_array_equal(drawn.log_likelihood, same[0].log_likelihood)
            assert noise.drawn == by_vote[seed, 0][1], "the amount of noise drawn does not tell the vote"
    assert any(by_vote[seed, 0][0].index != by_vote[seed, 1][0].index for seed in range(30))


@each_mechanism
@settings(max_examples=60, deadline=None)
@given(st.floats(-6.0, math.log10(0.5)).map(lambda x: 10.0**x), st.integers(-14, 1).map(lambda x: 2.0**x))
def test_exact_information_is_within_the_budget(kind, share, budget):
    q = np.array([share, 1.0 - share])
    channel = channel_of(kind, mechanism_for(kind, budget).calibrate(q))
    assert 0.0 < information(q, channel.probability_AO) <= budget * (1 + 1e-9)


@each_mechanism
def test_updates_are_the_channels_own_likelihoods(kind):
    channel = channel_of(kind, mechanism_for(kind, 0.2).calibrate(np.array([0.2, 0.8])))
    likely = channel.probability_AO.min(axis=0) > 1e-12
    exact = np.log(channel.probability_AO[0, likely] / channel.probability_AO[1, likely])
    np.testing.assert_allclose(channel.update_AO[0, likely] - channel.update_AO[1, likely], exact, rtol=1e-9, atol=1e-9)


@each_mechanism
def test_the_posterior_is_a_martingale(kind):
    weights = np.array([0.05, 0.15, 0.3, 0.5])
    posterior = Posterior(np.log(weights))
    _, index = active_votes(np.array([9, 4, 9, 4]))
    masses = vote_weights(index, posterior)
    channel = channel_of(kind, mechanism_for(kind, 0.3).calibrate(masses))
    after_OM = np.array([posterior.updated(update[index]).weights for update in channel.update_AO.T])
    np.testing.assert_allclose(masses @ channel.probability_AO @ after_OM, weights, rtol=1e-10)
    fixed = channel.probability_AO[0] @ after_OM
    assert np.abs(fixed - weights).max() > 0.03, "with S fixed it is no martingale, and the check must see that"


@each_mechanism
def test_renaming_tokens_and_reordering_worlds_changes_nothing_else(kind):
    mechanism = mechanism_for(kind, 0.2)
    q = np.array([0.2, 0.8])
    plain, renamed = (channel_of(kind, mechanism.calibrate(masses)) for masses in (q, q[::-1].copy()))

    def token_channel_of(channel):
        return np.array([[row[channel.token_O == token].sum() for token in (0, 1)] for row in channel.probability_AO])

    np.testing.assert_allclose(token_channel_of(renamed), token_channel_of(plain)[::-1, ::-1], atol=1e-12)
    index, order = np.array([0, 1, 2, 1, 0, 1]), np.array([3, 0, 5, 1, 4, 2])
    calibration = mechanism.calibrate(np.array([0.3, 0.5, 0.2]))
    for seed in range(10):
        drawn = mechanism.release(index, calibration, 3, CountingNoise(seed))
        moved = mechanism.release(index[order], calibration, 0, CountingNoise(seed))
        assert moved.index == drawn.index
        np.testing.assert_array_equal(moved.log_likelihood, drawn.log_likelihood[order])


def adaptive_information(kind, num_worlds, budget, steps, remembers):
    """I(S; H_T), summed over all histories, for a user who narrows the worlds down by what the last token favoured.

    The history is what the mechanism keeps inside: the token for the mixture, the noisy vector for the Gaussian.
    """
    prior = np.full(num_worlds, 1 / num_worlds)
    histories = [(np.ones(num_worlds), Posterior.uniform(num_worlds), np.arange(num_worlds))]
    for _ in range(steps):
        longer = []
        for likelihood_M, posterior, suspects in histories:
            index = np.zeros(num_worlds, dtype=np.int64)
            index[suspects[: max(1, suspects.size // 2)]] = 1
            believed = posterior if remembers else Posterior.uniform(num_worlds)
            channel = channel_of(kind, mechanism_for(kind, budget).calibrate(vote_weights(index, believed)), step=0.25)
            for outcome, token in enumerate(channel.token_O):
                if not posterior.weights @ channel.probability_AO[index, outcome] > 0.0:
                    continue
                favoured = suspects[index[suspects] == token]
                longer.append(
                    (
                        likelihood_M * channel.probability_AO[index, outcome],
                        posterior.updated(channel.update_AO[index, outcome]),
                        favoured if favoured.size > 1 else suspects,
                    )
                )
        histories = longer
    probability_SH = np.array([likelihood for likelihood, *_ in histories]).T
    np.testing.assert_allclose(probability_SH.sum(axis=1), 1.0, rtol=1e-9)
    return information(prior, probability_SH)


@pytest.mark.parametrize("budget", [0.3, 0.02, 2.0**-12])
@pytest.mark.parametrize("num_worlds", [4, 6])
def test_adaptive_steps_of_the_mixture_compose_by_exact_sums(budget, num_worlds):
    total = adaptive_information(ReleaseMechanism.MIXTURE, num_worlds, budget, 5, remembers=True)
    if 5 * budget < math.log(2):
        assert total == pytest.approx(5 * budget, rel=1e-8), "each of the five charges is used in full"
    assert total <= 5 * budget * (1 + 1e-9)


def test_adaptive_steps_of_the_gaussian_compose_by_quadrature():
    total = adaptive_information(ReleaseMechanism.GAUSSIAN, 4, 0.02, 2, remembers=True)
    assert 0.95 * 0.04 < total <= 0.04


def test_a_reset_posterior_is_flagged_for_the_mixture():
    """Noise calibrated to a belief that has moved on: more than was charged."""
    assert adaptive_information(ReleaseMechanism.MIXTURE, 8, 0.02, 7, remembers=False) > 1.05 * 7 * 0.02
    assert adaptive_information(ReleaseMechanism.MIXTURE, 8, 0.02, 7, remembers=True) <= 7 * 0.02 * (1 + 1e-9)


@each_mechanism
def test_a_deployment_may_change_its_mechanism_and_continues_with_one_posterior(kind):
    curator, _, _, release = curator_of(kind, num_worlds=4)
    other = ReleaseMechanism.GAUSSIAN if kind is ReleaseMechanism.MIXTURE else ReleaseMechanism.MIXTURE
    release([1, 2, 1, 2])
    between = curator.state.log_posterior
    curator.release(np.array([1, 2, 2, 2]), Charging(BUDGET), request="r", step=1, release_mechanism=other)
    change = curator.state.log_posterior - between
    assert change[1] == pytest.approx(change[2], rel=1e-12)
    assert abs(change[0] - change[1]) > 1e-3
    assert curator.account.spent_units == 2 * charge_units(BUDGET)


@each_mechanism
@pytest.mark.parametrize("q", [[1.0], [0.5, 0.6], [1.5, -0.5], [math.nan, 0.5], [math.inf, 0.5], [[0.5, 0.5]], []])
def test_malformed_vote_weights_are_refused(kind, q):
    with pytest.raises(InvalidValueError, match=r"vote weights|active tokens"):
        mechanism_for(kind, BUDGET).calibrate(np.array(q))


@each_mechanism
@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300, "1", None])
def test_budgets_out_of_range_are_refused(kind, budget):
    with pytest.raises(InvalidValueError, match="step_budget"):
        mechanism_for(kind, budget)


@each_mechanism
def test_a_release_refuses_another_budgets_calibration_and_a_secret_that_is_no_world(kind):
    index = np.array([0, 1])
    calibration = mechanism_for(kind, 0.1).calibrate(np.array([0.5, 0.5]))
    with pytest.raises(InvalidValueError, match="calibrated for"):
        mechanism_for(kind, 0.2).release(index, calibration, 0, None)
    for secret in (-1, 2):
        with pytest.raises(InvalidValueError, match="one of the 2 worlds"):
            mechanism_for(kind, 0.1).release(index, calibration, secret, None)


@each_mechanism
def test_reprs_show_nothing_derived_from_the_posterior(kind):
    calibration = mechanism_for(kind, 0.25).calibrate(np.array([0.123456, 0.876544]))
    assert repr(calibration).endswith("Calibration(num_active=2, step_budget=0.25)")
    drawn = mechanism_for(kind, 0.25).release(np.array([0, 1]), calibration, 0, CountingNoise(0))
    assert repr(drawn) == f"Release(index={drawn.index})"
