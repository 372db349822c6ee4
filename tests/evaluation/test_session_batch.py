"""The batch against the curator and the scalar mechanism."""

import numpy as np
import pytest

from reticent.errors import InvalidValueError
from reticent.evaluation.session_batch import SessionBatch, secret_indices
from reticent.pac.calibration import calibrate, calibrate_batch, vote_weights_batch
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.gaussian import GaussianMechanism, log_likelihood, noise_covariance
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.pac.mixture import MixtureMechanism, keep_probabilities, mixture_information_nats, mixture_log_likelihood
from reticent.randomness import SeededNoise

WORLDS = 8
VOTES = np.array([[5, 5, 5, 9, 5, 5, 5, 9], [4] * 8, [1, 2, 3, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6, 7, 8], [3, 0] * 4])


class NoStore:
    def commit(self, state, records):
        pass

    def reconcile(self, state):
        raise AssertionError


class Given:
    """Normals chosen by the test."""

    is_secure = False

    def __init__(self, normals):
        self._normals = list(normals)

    def standard_normal(self, count):
        taken, self._normals = self._normals[:count], self._normals[count:]
        return np.array(taken)


class Uniforms:
    """Uniforms chosen by the test."""

    is_secure = False

    def __init__(self, uniforms):
        self._uniforms = uniforms

    def uniform(self, count):
        return self._uniforms[:count]


class OneByOne:
    """A mechanism's batch form by its form for one deployment, one session after another."""

    def __init__(self, mechanism):
        self._mechanism = mechanism

    def release_batch(self, index_M, weights_RM, secrets_R, noise):
        draws = []
        for weights_A, secret in zip(vote_weights_batch(index_M, weights_RM), secrets_R, strict=True):
            calibration = self._mechanism.calibrate(weights_A)
            draws.append(self._mechanism.release(index_M, calibration, int(secret), noise))
        return np.array([draw.index for draw in draws]), np.stack([draw.log_likelihood for draw in draws])


@pytest.mark.parametrize("num_active", [2, 3, 7])
@pytest.mark.parametrize("budget", [2.0**-32, 2.0**-6, 1.0])
def test_noise_and_likelihood_are_those_of_the_scalar_mechanism(num_active, budget):
    generator = np.random.default_rng(num_active)
    index_M = np.concatenate([np.arange(num_active), generator.integers(0, num_active, 9)])
    weights_RM = generator.dirichlet(np.full(index_M.size, 0.3), 5)
    weights_RM[0, :] = 0.0
    weights_RM[0, :2] = (1.0, 1e-30)
    batch = calibrate_batch(vote_weights_batch(index_M, weights_RM), budget)
    noisy_RA = generator.normal(size=(5, num_active)) / np.sqrt(budget)
    likelihood_RA = batch.log_likelihood(noisy_RA)
    for r, weights_M in enumerate(weights_RM):
        one = calibrate(np.bincount(index_M, weights=weights_M), budget)
        covariance = (batch.directions_RAD[r] * batch.noise_variances_RD[r]) @ batch.directions_RAD[r].T
        scale = np.abs(covariance).max()
        np.testing.assert_allclose(covariance, noise_covariance(one), rtol=1e-9, atol=1e-9 * scale)
        expected_A = log_likelihood(one, np.arange(num_active), noisy_RA[r])
        if r > 0:  # with all mass on one token the directions of the others are arbitrary, up to the floor
            np.testing.assert_allclose(
                likelihood_RA[r] - likelihood_RA[r, 0], expected_A - expected_A[0], rtol=1e-7, atol=1e-12
            )


def test_two_way_sessions_are_the_curators_own():
    votes = VOTES[[0, 1, 4, 0, 4, 4]]
    dissenting = 5
    secrets = np.array([0, 3, 5])
    normals = np.random.default_rng(1).normal(size=(dissenting, secrets.size))
    batch = SessionBatch(GaussianMechanism(0.02), secrets, WORLDS, Given(normals.ravel()))
    released = np.stack([batch.release(votes_M) for votes_M in votes])
    for r, secret in enumerate(secrets):
        uniform = np.full(WORLDS, -np.log(WORLDS))
        curator = Curator.for_experiments(CuratorState(int(secret), uniform), NoStore(), Given(normals[:, r]))
        tokens = [curator.release(v, Charging(0.02), request="x", step=i).token for i, v in enumerate(votes)]
        np.testing.assert_array_equal(released[:, r], tokens)
        np.testing.assert_allclose(batch.log_weights[r], curator.state.log_posterior, rtol=1e-9)


@pytest.mark.parametrize("release", list(ReleaseMechanism))
def test_one_by_one_and_the_batch_have_the_same_distribution(release):
    secrets = np.tile(np.arange(WORLDS), 500)
    ours, theirs = (
        SessionBatch(mechanism, secrets, WORLDS, SeededNoise(seed))
        for mechanism, seed in ((mechanism_for(release, 0.5), 1), (OneByOne(mechanism_for(release, 0.5)), 2))
    )
    for votes_M in (VOTES[2], VOTES[0]):
        counts = [np.bincount(batch.release(votes_M), minlength=10) / secrets.size for batch in (ours, theirs)]
        np.testing.assert_allclose(*counts, atol=0.05)
    own = np.arange(secrets.size), secrets
    masses = [batch.weights[own].mean() for batch in (ours, theirs)]
    assert masses[0] > 1.3 / WORLDS
    assert masses[0] == pytest.approx(masses[1], rel=0.08)


@pytest.mark.parametrize("budget", [2.0**-32, 2.0**-6, 0.4, 3.0])
def test_keep_probabilities_and_likelihoods_are_those_of_the_scalar_mixture(budget):
    generator = np.random.default_rng(0)
    weights_RM = generator.dirichlet(np.full(9, 0.5), 6)
    weights_RM[0] = 1.0 / 9.0
    index_M = np.array([0, 1, 2, 0, 1, 1, 0, 0, 0])
    mechanism = MixtureMechanism(budget)
    weights_RA = vote_weights_batch(index_M, weights_RM)
    keep_R = keep_probabilities(weights_RA, budget)
    expected = [mechanism.calibrate(weights_A).keep_probability for weights_A in weights_RA]
    np.testing.assert_allclose(keep_R, expected, rtol=1e-8)
    for weights_A, keep in zip(weights_RA, keep_R, strict=True):
        assert keep == 1.0 or mixture_information_nats(weights_A, keep) == pytest.approx(budget, rel=1e-8)
    secrets = np.arange(6)
    uniforms = generator.random((2, 6))
    ours = mechanism.release_batch(index_M, weights_RM, secrets, Uniforms(uniforms.ravel()))
    for r in range(6):
        expected_M = mixture_log_likelihood(mechanism.calibrate(weights_RA[r]), index_M, int(ours[0][r]))
        np.testing.assert_allclose(ours[1][r], expected_M, rtol=1e-7)


def test_posteriors_stay_normalised_over_many_steps():
    batch = SessionBatch(GaussianMechanism(0.3), secret_indices(6, WORLDS, SeededNoise(0)), WORLDS, SeededNoise(1))
    for step in range(400):
        batch.release(VOTES[step % 5])
    np.testing.assert_allclose(batch.weights.sum(1), 1.0, rtol=1e-12)
    # VOTES[3] tells every world apart, so after 24 nats in all the realised world is known.
    assert (batch.weights.argmax(1) == batch.secrets_R).all()


@pytest.mark.parametrize("secrets", [[], [8], [-1]])
def test_a_secret_that_is_no_world_is_refused(secrets):
    with pytest.raises(InvalidValueError, match="8 worlds"):
        SessionBatch(GaussianMechanism(0.1), np.array(secrets, dtype=np.int64), WORLDS, SeededNoise(0))
