"""When noise eats the gain, the user is told; otherwise not."""

import numpy as np
from hand_made_votes import tensor_of

from reticent.decoding.votes import Decoder
from reticent.evaluation.utility import UtilitySettings, utility
from reticent.evaluation.verdict import verdict_warnings

SETTINGS = UtilitySettings(budgets=(2.0**-32, 2.0**-8), num_sessions=8)


def warned(dissent, *, dissenters=4, gain=True):
    """Ten texts of 100 positions; worlds are right, but for `dissenters` of eight at a share of positions."""
    generator = np.random.default_rng(0)
    votes = np.ones((1000, 8), dtype=int)
    votes[generator.random(1000) < dissent, :dissenters] = 2
    public = np.where(generator.random(1000) < 0.9, 1 if not gain else 3, 1)
    tensor = tensor_of(votes, [1] * 1000, public, lengths=[100] * 10)
    return " / ".join(verdict_warnings([utility(tensor, Decoder.GUMBEL, SETTINGS)]))


def test_much_agreement_warns_of_nothing():
    assert warned(0.1) == ""


def test_much_dissent_warns_of_unanimity():
    message = warned(0.4)
    assert "agree at only 6" in message
    assert "keeps" not in message
    assert "docs/evaluate.md" in message


def test_noise_that_eats_the_gain_is_named_with_its_release():
    # One dissenter of eight, everywhere: a noiseless world is right 7 times in 8, the Gaussian release once in 2, and
    # the public model 0.1.
    message = warned(1.0, dissenters=1)
    assert "agree at only 0%" in message
    assert "keeps" not in message  # (0.5 − 0.1)/(0.875 − 0.1) is just above one half
    votes = np.ones((300, 8), dtype=int)
    votes[:, 0] = 2
    better_public = tensor_of(votes, [1] * 300, [1, 1, 3] * 100, lengths=[30] * 10)
    message = " / ".join(verdict_warnings([utility(better_public, Decoder.GUMBEL, SETTINGS)]))
    assert "the gaussian release keeps -" in message
    assert "the mixture release" not in message


def test_without_a_gain_there_is_one_warning():
    assert warned(0.5, gain=False).count("gumbel:") == 1
    assert "no gain to keep" in warned(0.5, gain=False)
