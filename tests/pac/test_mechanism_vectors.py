"""Every number of tests/vectors/mechanism.json, computed outside the project in 40-digit arithmetic."""

import json
from pathlib import Path

import numpy as np
import pytest
from pac_oracles import FixedNormals, token_information, two_way_token_channel, vector_information
from scipy import stats

from reticent.pac.calibration import active_votes, vote_weights
from reticent.pac.gaussian import GaussianMechanism, gaussian_bound_nats, log_likelihood, noise_covariance
from reticent.pac.posterior import Posterior

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "mechanism.json").read_text())["mechanism"]


class Case:
    """One vector, with the package's view of it."""

    def __init__(self, vector):
        self.vector = vector
        self.posterior = Posterior(np.log(np.array(vector["posterior"], dtype=np.float64)))
        self.mechanism = GaussianMechanism(vector["step_budget"])
        self.active, self.index = active_votes(np.array(vector["votes"]))
        self.calibration = self.mechanism.calibrate(vote_weights(self.index, self.posterior))
        self.noisy = np.array(vector["release"], dtype=np.float64)

    def __getitem__(self, key):
        return np.array(self.vector[key], dtype=np.float64)


@pytest.fixture(params=VECTORS, ids=lambda v: f"b={v['step_budget']:.2e}-a={len(v['vote_weights'])}")
def case(request):
    return Case(request.param)


def test_calibration(case):
    np.testing.assert_allclose(case.calibration.vote_weights, case["vote_weights"], rtol=1e-12)
    np.testing.assert_allclose(noise_covariance(case.calibration), case["noise_covariance"], rtol=1e-10)
    assert gaussian_bound_nats(case.calibration) == pytest.approx(float(case["gaussian_bound_nats"]), rel=1e-10)
    assert gaussian_bound_nats(case.calibration) < case.vector["step_budget"]


def test_posterior_after_the_release(case):
    after = case.posterior.updated(log_likelihood(case.calibration, case.index, case.noisy))
    np.testing.assert_allclose(after.weights, case["posterior_after"], rtol=1e-10)
    # An even test of a change of 1e-5: the subtraction of stored log-weights itself costs up to 4e-15.
    change = after.log_weights - case.posterior.log_weights
    np.testing.assert_allclose(change, case["log_ratio_after"], rtol=1e-8)


def test_the_release_itself(case):
    """Feed the normals that give the vector's R: the token and the update must be the vector's."""
    secret = case.vector["secret"]
    onehot = np.eye(case.active.size)[case.index[secret]]
    normals = (case.noisy - onehot) @ case.calibration.directions / np.sqrt(case.calibration.noise_variances)
    drawn = case.mechanism.release(case.index, case.calibration, secret, FixedNormals(*normals))
    assert case.active[drawn.index] == case.vector["token"]
    change = case.posterior.updated(drawn.log_likelihood).log_weights - case.posterior.log_weights
    np.testing.assert_allclose(change, case["log_ratio_after"], rtol=1e-8)


def _flip_threshold(case, secret):
    """The normal value at which the released token stops being world `secret`'s vote, by bisection."""
    vote = case.index[secret]
    away = -1.0 if case.calibration.centred_votes[vote, 0] > 0 else 1.0
    low, high = 0.0, 60.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        kept = case.mechanism.release(case.index, case.calibration, secret, FixedNormals(away * middle)).index == vote
        low, high = (middle, high) if kept else (low, middle)
    return high


def test_two_way_flip_probability_through_the_mechanism(case):
    if "flip_probability" not in case.vector:
        assert case.active.size > 2
        return
    for secret in (int(case.index.argmin()), int(case.index.argmax())):
        flip = stats.norm.sf(_flip_threshold(case, secret))
        assert flip == pytest.approx(float(case["flip_probability"]), rel=1e-9)


def test_two_way_exact_information(case):
    if "exact_token_nats" not in case.vector:
        assert case.active.size > 2
        return
    q, e = case.calibration.vote_weights, case.calibration.noise_variances
    token = token_information(q, two_way_token_channel(e[0]))
    assert token == pytest.approx(float(case["exact_token_nats"]), rel=1e-7)
    vector = vector_information(q, case.calibration.directions, e)
    if case.vector["exact_vector_nats"] is not None:
        assert vector == pytest.approx(float(case["exact_vector_nats"]), rel=1e-9)
    assert token < vector <= case.vector["step_budget"]
