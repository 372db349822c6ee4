"""The token-only attacker against enumeration of whole histories, and against the curator where the two are one."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from experiments.studies.channel import token_channel
from experiments.studies.releases import release_by_control, release_by_mechanism, release_noiseless
from experiments.studies.token_attack import AgreementLikelihood, ReleaseLikelihood, token_beliefs
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control
from reticent.pac.calibration import calibrate
from reticent.pac.mechanism import ReleaseMechanism
from reticent.randomness import SeededNoise

# The fourth world doubles the first, as their number is even: two- and three-way votes, and a unanimous one.
VOTES = np.array([[5, 9, 9, 5], [7, 7, 7, 7], [3, 4, 6, 3], [2, 2, 8, 2]])


def test_first_token_is_bayes_rule_with_the_normal_distribution():
    budget = 0.05
    # Masses one half each: the noise on the difference of two coordinates has variance q(1 − q)/b · 2.
    flip = norm.cdf(-1.0 / math.sqrt(2 * 0.25 / budget))
    beliefs = np.exp(token_beliefs(VOTES[:1], np.array([[9, 5]]), ReleaseLikelihood(ReleaseMechanism.GAUSSIAN, budget)))
    np.testing.assert_allclose(beliefs[0], np.array([flip, 1 - flip, 1 - flip, flip]) / 2, rtol=1e-9)
    np.testing.assert_allclose(beliefs[1], beliefs[0][[1, 0, 0, 1]], rtol=1e-12)


@pytest.mark.parametrize("budget", [2.0**-2, 2.0**-10])
def test_gaussian_beliefs_are_those_of_the_enumerated_channel(budget):
    """Every history's belief, multiplied out from `token_channel` at the belief before: no reuse of the attack."""
    likelihood = ReleaseLikelihood(ReleaseMechanism.GAUSSIAN, budget, rounded=False)
    for tokens in itertools.product([5, 9], [7], [3, 4, 6], [2, 8]):
        belief = np.full(4, 0.25)
        for votes, token in zip(VOTES, tokens, strict=True):
            active = sorted(set(votes))
            if len(active) == 1:
                continue
            q = np.array([belief[votes == a].sum() for a in active])
            channel = token_channel(calibrate(q, budget))
            belief = belief * [channel[active.index(v), active.index(token)] for v in votes]
            belief /= belief.sum()
        found = np.exp(token_beliefs(VOTES, np.array(tokens)[:, None], likelihood)[0])
        np.testing.assert_allclose(found, belief, rtol=1e-8)


def test_for_the_mixture_the_token_only_attacker_is_the_curator():
    generator = np.random.default_rng(3)
    votes = generator.integers(0, 5, size=(60, 8))
    secrets = generator.integers(8, size=12)
    for budget in (0.3, 2.0**-8):
        released = release_by_mechanism(votes, ReleaseMechanism.MIXTURE, budget, secrets, SeededNoise(1))
        beliefs = token_beliefs(votes, released.tokens_NR, ReleaseLikelihood(ReleaseMechanism.MIXTURE, budget))
        np.testing.assert_allclose(np.exp(beliefs), np.exp(released.log_weights_RM), rtol=1e-6, atol=1e-12)
        # At the larger budget a lopsided vote is released as it is, and S is found out.
        assert (np.exp(beliefs).max() > 0.9) == (budget == 0.3)


def test_gaussian_beliefs_are_right_as_often_as_they_say():
    """Calibration over many deployments: E[belief in S] = Σ E[belief²], and tokens tell less than the curator knows."""
    generator = np.random.default_rng(5)
    votes = generator.integers(0, 3, size=(24, 6))
    secrets = generator.integers(6, size=1000)
    budget = 2.0**-5
    released = release_by_mechanism(votes, ReleaseMechanism.GAUSSIAN, budget, secrets, SeededNoise(2))
    beliefs = np.exp(token_beliefs(votes, released.tokens_NR, ReleaseLikelihood(ReleaseMechanism.GAUSSIAN, budget)))
    in_secret = beliefs[np.arange(1000), secrets]
    gap = in_secret - (beliefs**2).sum(axis=1)
    assert abs(gap.mean()) < 4 * gap.std() / math.sqrt(1000)
    curator = np.exp(released.log_weights_RM)[np.arange(1000), secrets]
    assert 1 / 6 + 0.01 < in_secret.mean() < curator.mean()


def test_rounded_beliefs_change_little():
    generator = np.random.default_rng(6)
    votes = generator.integers(0, 4, size=(30, 8))
    released = release_by_mechanism(votes, ReleaseMechanism.GAUSSIAN, 2.0**-5, np.arange(8), SeededNoise(0))
    exact, rounded = (
        token_beliefs(votes, released.tokens_NR, ReleaseLikelihood(ReleaseMechanism.GAUSSIAN, 2.0**-5, rounded=flag))
        for flag in (False, True)
    )
    spread = exact.max() - exact.min()
    assert spread > 0.5
    assert np.abs(exact - rounded).max() < 0.03 * spread


def test_the_noiseless_world_is_found_and_a_control_gives_none_away():
    generator = np.random.default_rng(7)
    votes = generator.integers(0, 3, size=(50, 16))
    secrets = np.arange(16)
    noiseless = release_noiseless(votes, secrets)
    beliefs = token_beliefs(votes, noiseless.tokens_NR, AgreementLikelihood())
    assert (beliefs.argmax(axis=1) == secrets).all()
    assert np.exp(beliefs.max(axis=1)).min() > 0.999
    plurality = release_by_control(votes, Control.PLURALITY, secrets, generator)
    same = token_beliefs(votes, plurality.tokens_NR, AgreementLikelihood())
    np.testing.assert_array_equal(same, np.tile(same[0], (16, 1)))


def test_a_vanishing_chance_is_no_nan():
    # At a huge budget the other vote is all but impossible, and it comes anyway.
    likelihood = ReleaseLikelihood(ReleaseMechanism.GAUSSIAN, 2.0**10)
    votes = np.array([[1, 1, 2, 2], [1, 1, 2, 2], [1, 2, 3, 3]])
    beliefs = token_beliefs(votes, np.array([[1], [2], [3]]), likelihood)
    assert np.isfinite(beliefs).all()
    np.testing.assert_allclose(np.exp(beliefs).sum(), 1.0)


@pytest.mark.parametrize(
    ("votes", "tokens"),
    [(VOTES, np.array([[1]] * 4)), (VOTES, np.array([[5]] * 3)), (VOTES[0], np.array([[5]])), (VOTES, VOTES[:, 0])],
)
def test_streams_that_do_not_match_are_refused(votes, tokens):
    with pytest.raises(InvalidValueError):
        token_beliefs(votes, tokens, AgreementLikelihood())
