"""The curator: order of charge, draw, commit and release; what leaks; what survives a restart."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pac_oracles import FixedNormals, MemoryStore, entropy
from scipy import stats

from reticent.errors import BudgetExhaustedError, InvalidValueError
from reticent.pac.accounting import cap_units, charge_units
from reticent.pac.bounds import attack_success
from reticent.pac.charging import Charging
from reticent.pac.curator import Ballot, Curator, CuratorState, ReleasedToken, ReleaseRecord
from reticent.pac.posterior import Posterior
from reticent.randomness import PublicCoins, SeededNoise, SystemNoise

BUDGET = 2.0**-10
KEY = bytes(range(16))


def _curator(num_worlds=8, *, secret=0, noise=None, total_budget=None, weights=None):
    posterior = Posterior.uniform(num_worlds) if weights is None else Posterior(np.log(weights))
    cap = None if total_budget is None else cap_units(total_budget)
    store = MemoryStore()
    state = CuratorState(secret, posterior.log_weights, cap_units=cap)
    return Curator.for_experiments(state, store, noise or SeededNoise(1)), store


def _release(curator, votes, budget=BUDGET, step=0):
    return curator.release(np.array(votes), Charging(budget), request="r1", step=step, coin_key=KEY)


def test_one_dissenting_release_is_charged_committed_and_returned():
    curator, store = _curator()
    released = _release(curator, [5, 9, 5, 5, 9, 7, 5, 5], step=3)
    charge = charge_units(BUDGET)
    assert released.token in {5, 7, 9}
    assert released == ReleasedToken(released.token, 3, charge, charge)
    [(state, record)] = store.commits
    assert record == ReleaseRecord(3, "r1", KEY, 3, charge, charge)
    assert (state.spent_units, state.tokens_released, state.dissenting_steps) == (charge, 1, 1)
    assert curator.state is state
    assert not np.array_equal(state.log_posterior, Posterior.uniform(8).log_weights)


def test_unanimity_draws_nothing_updates_nothing_and_costs_the_same():
    noise = FixedNormals()
    curator, store = _curator(noise=noise)
    released = _release(curator, [42] * 8)
    assert released == ReleasedToken(42, 1, charge_units(BUDGET), charge_units(BUDGET))
    assert noise.drawn == 0
    [(state, record)] = store.commits
    np.testing.assert_array_equal(state.log_posterior, Posterior.uniform(8).log_weights)
    assert (state.spent_units, state.tokens_released, state.dissenting_steps) == (charge_units(BUDGET), 1, 0)
    assert record.num_active == 1


@pytest.mark.parametrize("secret", [0, 3])
def test_a_world_of_negligible_or_no_mass_still_breaks_unanimity(secret):
    for light in (1e-300, 0.0):
        weights = np.array([0.5, 0.5, 0.0, light])
        noise = FixedNormals(0.7)
        with np.errstate(divide="ignore"):
            curator, _ = _curator(4, secret=secret, weights=weights, noise=noise)
        assert _release(curator, [1, 1, 1, 2]).num_active == 2
        assert noise.drawn == 1
        assert curator.state.dissenting_steps == 1
        assert not np.isnan(curator.state.log_posterior).any()
        if light == 0.0:
            assert curator.state.log_posterior[3] == -math.inf


def _charge_information(charge_of_secret, num_worlds):
    """I(S; charge) in nats, S uniform, by running every secret."""
    charges = [charge_of_secret(secret) for secret in range(num_worlds)]
    return entropy(np.unique(charges, return_counts=True)[1] / num_worlds)


@pytest.mark.parametrize("votes", [[1, 1, 1, 1, 1, 1, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8], [1] * 8])
def test_the_charge_says_nothing_about_the_secret_and_the_checker_flags_one_that_does(votes):
    def by_the_curator(secret):
        curator, store = _curator(secret=secret)
        _release(curator, votes)
        return store.commits[0][1].charge_units

    def only_when_the_secret_dissents(secret):
        return charge_units(BUDGET) * (votes[secret] != max(set(votes), key=votes.count))

    assert _charge_information(by_the_curator, 8) == 0.0
    leak = _charge_information(only_when_the_secret_dissents, 8)
    assert (leak > BUDGET) == (len(set(votes)) > 1)


@pytest.mark.parametrize("votes", [[1, 2, 1, 2], [1, 1, 1, 1]])
def test_the_cap_is_tested_before_anything_is_drawn(votes):
    noise = FixedNormals(0.0)
    curator, store = _curator(4, noise=noise, total_budget=2.5 * BUDGET)
    for _ in range(2):
        _release(curator, votes)
    drawn, before = noise.drawn, curator.state
    with pytest.raises(BudgetExhaustedError, match="nats spent"):
        _release(curator, votes)
    assert noise.drawn == drawn
    assert curator.state is before
    assert len(store.commits) == 2
    assert _release(curator, votes, BUDGET / 2).charge_units == charge_units(BUDGET / 2)
    assert curator.account.spent_units == cap_units(2.5 * BUDGET)


@pytest.mark.parametrize("votes", [[1, 2, 1, 2], [1, 1, 1, 1]])
def test_a_failed_commit_releases_nothing_and_changes_nothing(votes):
    curator, store = _curator(4)
    _release(curator, [3, 4, 3, 4])
    before, account = curator.state, curator.account
    store.broken = True
    with pytest.raises(OSError, match="disk full"):
        _release(curator, votes)
    assert curator.state is before
    assert curator.account == account
    store.broken = False
    _release(curator, votes)
    assert curator.state.tokens_released == 2
    assert curator.account.spent_units == 2 * charge_units(BUDGET)


def test_the_token_is_returned_only_after_its_commit():
    order = []

    class Watched(MemoryStore):
        def commit(self, state, records):
            order.append(("commit", curator.state.tokens_released, state.tokens_released))

    curator = Curator.for_experiments(CuratorState.initial(4, SeededNoise(0)), Watched(), SeededNoise(1))
    _release(curator, [1, 2, 1, 2])
    order.append(("returned", curator.state.tokens_released))
    assert order == [("commit", 0, 1), ("returned", 1)]


def _ballots(steps, budget=BUDGET):
    return [
        Ballot(np.array(votes), Charging(budget), f"r{step}", step, KEY, f"k{step}") for step, votes in enumerate(steps)
    ]


def test_a_batch_is_its_ballots_one_after_another_in_one_commit():
    steps = np.random.default_rng(4).integers(0, 3, size=(12, 8))
    batched, store = _curator(noise=SeededNoise(6), secret=2)
    single, alone = _curator(noise=SeededNoise(6), secret=2)
    together = batched.release_many(_ballots(steps))
    apart = [_release(single, votes, step=step) for step, votes in enumerate(steps)]
    assert together == apart
    np.testing.assert_array_equal(batched.state.log_posterior, single.state.log_posterior)
    [(state, *records)] = store.commits
    assert state is batched.state
    assert (state.tokens_released, state.spent_units) == (12, 12 * charge_units(BUDGET))
    assert state.dissenting_steps == single.state.dissenting_steps
    assert [(record.step, record.request, record.key_id) for record in records] == [
        (step, f"r{step}", f"k{step}") for step in range(12)
    ]
    assert [record.num_active for record in records] == [record.num_active for _, record in alone.commits]


def test_at_the_cap_a_batch_keeps_its_first_releases_and_refuses_the_rest():
    noise = FixedNormals(0.0)
    curator, store = _curator(4, noise=noise, total_budget=2.5 * BUDGET)
    votes = [1, 2, 1, 2]
    ballots = _ballots([votes, votes, votes]) + _ballots([votes], BUDGET / 4)
    released = curator.release_many(ballots)
    # The last ballot would fit, but comes after a refused one: no request overtakes another at the cap.
    assert [token is None for token in released] == [False, False, True, True]
    assert noise.drawn == 2
    [(state, *records)] = store.commits
    assert state.spent_units == 2 * charge_units(BUDGET)
    assert len(records) == 2
    assert curator.release_many(ballots[2:3]) == [None]
    assert len(store.commits) == 1
    assert curator.release_many([]) == []


def test_one_malformed_ballot_stops_a_batch_before_anything_is_drawn():
    noise = FixedNormals(0.0)
    curator, store = _curator(4, noise=noise)
    for bad in (_ballots([[1, 2]]), _ballots([[-1, 2, 1, 2]])):
        with pytest.raises(InvalidValueError):
            curator.release_many(_ballots([[1, 2, 1, 2]]) + bad)
    assert (noise.drawn, store.commits, curator.account.spent_units) == (0, [], 0)


def test_a_commit_that_was_kept_although_it_raised_is_charged_and_continued_from():
    curator, store = _curator(4)
    _release(curator, [3, 4, 3, 4])
    before = curator.state
    store.loses_answers = True
    with pytest.raises(OSError, match="connection lost"):
        curator.release_many(_ballots([[1, 2, 1, 2]] * 3))
    assert curator.state is before
    store.broken = True
    with pytest.raises(OSError, match="disk full"):
        _release(curator, [1, 1, 1, 1])
    assert curator.state is before
    store.broken = store.loses_answers = False
    kept = store.commits[-1][0]
    _release(curator, [1, 1, 1, 1])
    assert (curator.state.tokens_released, curator.account.spent_units) == (5, 5 * charge_units(BUDGET))
    np.testing.assert_array_equal(curator.state.log_posterior, kept.log_posterior)


def test_a_restart_from_the_store_continues_the_same_history():
    steps = np.random.default_rng(3).integers(0, 3, size=(30, 8))
    whole, _ = _curator(noise=SeededNoise(6), secret=2)
    expected = [_release(whole, votes).token for votes in steps]
    noise = SeededNoise(6)
    curator, store = _curator(noise=noise, secret=2)
    tokens = []
    for votes in steps:
        tokens.append(_release(curator, votes).token)
        curator = Curator.for_experiments(store.commits[-1][0], store, noise)
    assert tokens == expected
    np.testing.assert_array_equal(curator.state.log_posterior, whole.state.log_posterior)
    # The replayed ledger equals the live account.
    assert sum(record.charge_units for _, record in store.commits) == curator.account.spent_units


@settings(max_examples=60)
@given(st.lists(st.integers(0, 500), min_size=8, max_size=8), st.integers(0, 7), st.integers(0, 10**6))
def test_a_token_nobody_voted_for_is_never_released(votes, secret, seed):
    curator, _ = _curator(secret=secret, noise=SeededNoise(seed))
    for budget in (2.0**-40, 2.0**-10, 4.0):
        assert _release(curator, votes, budget).token in votes


def test_order_of_worlds_does_not_matter():
    """Two-way votes: with more, the signs of computed eigenvectors may differ, which leaves the channel as it is."""
    votes, order = np.array([4, 4, 9, 9, 9, 4, 9, 4]), np.array([3, 7, 0, 5, 1, 2, 6, 4])
    weights = np.arange(1.0, 9.0) / 36
    curator, _ = _curator(secret=5, weights=weights, noise=SeededNoise(8))
    permuted, _ = _curator(secret=int(np.flatnonzero(order == 5)[0]), weights=weights[order], noise=SeededNoise(8))
    for _ in range(50):
        assert _release(curator, votes, 0.01).token == _release(permuted, votes[order], 0.01).token
    np.testing.assert_allclose(permuted.state.log_posterior, curator.state.log_posterior[order], rtol=1e-9)


def _mean_posterior(secret_of_run, runs=3_000):
    """Mean posterior after three releases, and the largest deviation its empirical Bernstein bound allows (1e-9)."""
    generator = np.random.default_rng(12)
    weights, failure = np.array([0.4, 0.3, 0.2, 0.1]), 1e-9
    after = np.empty((runs, 4))
    for run in range(runs):
        curator, _ = _curator(4, secret=secret_of_run(run, generator, weights), weights=weights, noise=SeededNoise(run))
        for votes in ([1, 2, 1, 2], [5, 5, 6, 7], [3, 3, 3, 8]):
            _release(curator, votes, 0.1)
        after[run] = np.exp(curator.state.log_posterior)
    logarithm = math.log(2 * 4 * 2 / failure)
    radius = np.sqrt(2 * after.var(axis=0, ddof=1) * logarithm / runs) + 7 * logarithm / (3 * (runs - 1))
    return np.abs(after.mean(axis=0) - weights), radius


def test_the_posterior_is_a_martingale_over_runs_and_the_check_sees_a_fixed_secret():
    deviation, radius = _mean_posterior(lambda run, generator, weights: int(generator.choice(4, p=weights)))
    assert (deviation < radius).all()
    deviation, radius = _mean_posterior(lambda run, generator, weights: 3)
    assert (deviation > radius).any()


def test_the_secret_world_gains_on_average_what_the_bound_allows():
    """E[log p_T(S)/p_0(S)] = I(S; R_1:T) ≤ bT, over S drawn from the prior; one run may exceed it."""
    budget, steps, gains = 0.02, 10, []
    generator = np.random.default_rng(5)
    for run in range(1_500):
        curator, _ = _curator(4, secret=run % 4, noise=SeededNoise(run))
        for votes in generator.integers(0, 3, size=(steps, 4)):
            _release(curator, votes, budget)
        gains.append(curator.state.log_posterior[run % 4] + math.log(4))
    mean, error = np.mean(gains), stats.sem(gains)
    assert 0.5 * budget * steps < mean < budget * steps + 5 * error
    assert max(gains) > budget * steps


def test_a_thousand_releases_at_the_papers_budget_stay_normalised_and_exactly_counted():
    curator, _ = _curator(128, noise=SeededNoise(4), secret=77)
    votes = np.random.default_rng(0).integers(0, 3, size=(1_000, 128))
    for step in range(1_000):
        _release(curator, votes[step], 2.0**-32, step)
    assert curator.account.spent_nats == 1_000 * 2.0**-32
    assert np.exp(curator.state.log_posterior).sum() == pytest.approx(1.0, abs=1e-13)
    assert 0 < np.ptp(curator.state.log_posterior) < 0.05
    assert curator.half_success == attack_success(1_000 * 2.0**-32, 0.5)
    assert curator.world_success == attack_success(1_000 * 2.0**-32, 1 / 128)


def test_a_deployment_refuses_a_source_that_can_be_replayed():
    state = CuratorState.initial(4, SystemNoise())
    with pytest.raises(InvalidValueError, match="SeededNoise can be replayed"):
        Curator(state, MemoryStore(), SeededNoise(1))
    released = _release(Curator(state, MemoryStore(), SystemNoise()), [1, 2, 2, 1])
    assert released.token in {1, 2}


def test_a_new_deployment_draws_its_secret_and_keeps_its_cap():
    state = CuratorState.initial(6, FixedNormals(secret=4), total_budget=0.25)
    assert (state.secret, state.cap_units, state.spent_units) == (4, 2**62, 0)
    np.testing.assert_array_equal(state.log_posterior, Posterior.uniform(6).log_weights)
    assert CuratorState.initial(6, SystemNoise()).cap_units is None
    for worlds, budget in ((5, None), (0, None), (4, 0.0), (4, math.nan), (4, math.inf)):
        with pytest.raises(InvalidValueError):
            CuratorState.initial(worlds, SystemNoise(), budget)


@pytest.mark.parametrize(
    "votes",
    [[1, 2], [1, 2, 3, 4, 5], [[1, 2, 3, 4]], [1.0, 2.0, 3.0, 4.0], [-1, 0, 1, 2], [True, True, False, True]],
)
def test_malformed_votes_are_refused_before_any_charge(votes):
    curator, store = _curator(4)
    with pytest.raises(InvalidValueError, match="votes must be"):
        _release(curator, votes)
    assert curator.account.spent_units == 0
    assert not store.commits


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_out_of_range_is_refused_even_for_unanimous_votes(budget):
    curator, store = _curator(4)
    with pytest.raises(InvalidValueError, match="step_budget"):
        _release(curator, [1, 1, 1, 1], budget)
    assert not store.commits


@pytest.mark.parametrize(
    "damage",
    [
        {"secret": 4},
        {"secret": -1},
        {"log_posterior": np.zeros(4)},
        {"spent_units": -1},
        {"spent_units": 5, "cap_units": 4},
        {"tokens_released": 1, "dissenting_steps": 2},
    ],
)
def test_an_inconsistent_state_is_refused_without_showing_it(damage):
    fields = {"secret": 1, "log_posterior": Posterior.uniform(4).log_weights} | damage
    with pytest.raises(InvalidValueError) as refusal:
        Curator.for_experiments(CuratorState(**fields), MemoryStore(), SeededNoise(0))
    assert "-1.38" not in str(refusal.value)


def test_reprs_and_public_results_show_neither_secret_nor_posterior():
    texts = set()
    for secret in (0, 7):
        curator, store = _curator(secret=secret, noise=FixedNormals(3.0))
        released = _release(curator, [1, 1, 1, 1, 1, 1, 1, 1])
        texts.add((repr(curator), repr(curator.state), repr(released), repr(store.commits[0][1])))
    assert len(texts) == 1, "the public face of a deployment is the same whatever its secret"
    [(face, *_)] = texts
    assert "secret" not in face
    assert "posterior" not in face
    assert "array" not in face


def test_coins_and_noise_share_nothing():
    """The public key in a record does not help to replay the noise: it only enters the record."""
    tokens = []
    for key in (PublicCoins.from_seed(0, 0).key, PublicCoins.from_seed(0, 1).key, None):
        curator, _ = _curator(noise=SeededNoise(21))
        votes = np.arange(8)
        tokens.append(
            [curator.release(votes, Charging(0.1), request="r", step=t, coin_key=key).token for t in range(20)]
        )
    assert tokens[0] == tokens[1] == tokens[2]
