"""The numbers that docs/guarantee.md states, computed here from the public matrix, the channel and exact sums."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from pac_oracles import two_way_token_channel

from experiments.studies.channel import token_channel
from reticent.cli.output import percent_at_most
from reticent.pac.bounds import attack_success
from reticent.pac.calibration import calibrate
from reticent.worlds.assignment import membership_matrix

GUARANTEE = Path(__file__).parents[2] / "docs" / "guarantee.md"
PAPER_BUDGET = 2.0**-32
MILLION_TOKENS = 1e6 * PAPER_BUDGET


def share_named(members_UM, num_answers):
    """How often truthful answers about so many units name S: the mean over S and over blocks of units."""
    worlds = members_UM.shape[1]
    named = [
        (np.unique(members_UM[first : first + num_answers], axis=1, return_counts=True)[1] == 1).sum() / worlds
        for first in range(0, len(members_UM) - num_answers + 1, num_answers)
    ]
    return float(np.mean(named))


@pytest.mark.parametrize(("worlds", "enough", "share", "share_before"), [(128, 8, 0.62, 0.38), (16, 5, 0.70, 0.45)])
def test_a_few_disclosed_memberships_name_the_world(worlds, enough, share, share_before):
    members_UM = membership_matrix(4096, worlds, 1)
    assert share_named(members_UM, enough) == pytest.approx(share, abs=0.01)
    assert share_named(members_UM, enough - 1) == pytest.approx(share_before, abs=0.01)
    # A balanced row holds both or neither of two worlds with chance (m/2 - 1)/(m - 1); all others must part from S.
    alike = (worlds / 2 - 1) / (worlds - 1)
    assert share_named(members_UM, enough) == pytest.approx((1 - alike**enough) ** (worlds - 1), abs=0.02)


@pytest.mark.parametrize(("worlds", "questions"), [(128, 7), (16, 4)])
def test_chosen_questions_need_no_more_than_the_logarithm(worlds, questions):
    members_UM = membership_matrix(4096, worlds, 1)
    for secret in range(worlds):
        left, asked = np.arange(worlds), 0
        while left.size > 1:
            unit = np.abs(members_UM[:, left].sum(axis=1) - left.size / 2).argmin()
            left = left[members_UM[unit, left] == members_UM[unit, secret]]
            asked += 1
        assert asked == questions == math.log2(worlds)


def stated_groups():
    """The rows of the page's table: g, then guess and bound that one was in, then that exactly these were."""
    pattern = r"^\| (\d+) \| ([\d.]+) / ([\d.]+) % \| ([\d.]+) / ([\d.]+) % \|$"
    return re.findall(pattern, GUARANTEE.read_text(), re.MULTILINE)


def test_groups_of_units_start_from_their_own_prior():
    assert [int(row[0]) for row in stated_groups()] == [1, 2, 3, 8]
    for units, any_guess, any_bound, which_guess, which_bound in stated_groups():
        patterns = list(itertools.product((False, True), repeat=int(units)))  # of independent fair rows
        some = sum(map(any, patterns)) / len(patterns)
        for guess, stated, bound in ((some, any_guess, any_bound), (1 / len(patterns), which_guess, which_bound)):
            assert round(100 * guess, 2) == float(stated)
            assert percent_at_most(attack_success(MILLION_TOKENS, guess)) == f"{bound} %"


def test_rows_of_two_units_are_all_but_independent():
    members_UM = membership_matrix(4096, 128, 1)
    either = (members_UM[0::2] | members_UM[1::2]).mean()
    assert either == pytest.approx(0.75, abs=0.005)


def joint_information(channel_of_first, channels_of_second):
    """I(S₁, S₂; Y₁, Y₂) in nats, summed over everything, with the second channel chosen by the first answer.

    `channel_of_first[s1, y1]`; `channels_of_second[y1][s2, y2]`. Both secrets are uniform and independent.
    """
    worlds = len(channel_of_first)
    joint = np.array(
        [
            [[first[y1] * channels_of_second[y1][s2] for y1 in range(len(first))] for s2 in range(worlds)]
            for first in channel_of_first
        ]
    ).reshape(worlds * worlds, -1)
    marginal = joint.mean(axis=0)
    return float((joint * np.log(joint / marginal)).sum() / worlds**2)


def information(channel, weights=None):
    """I(S; Y) in nats, `channel[s, y]`, under these weights of S; uniform unless given."""
    weights = np.full(len(channel), 1 / len(channel)) if weights is None else weights
    return float((weights[:, None] * channel * np.log(channel / (weights @ channel))).sum())


def test_what_two_secrets_tell_is_at_most_the_sum_of_both_charges():
    strong, weak = np.array([[0.99, 0.01]] * 2 + [[0.01, 0.99]] * 2), np.array([[0.7, 0.3], [0.3, 0.7]] * 2)
    for second in ([strong, weak], [weak, strong], [strong, strong]):
        told = joint_information(strong, second)
        assert told == pytest.approx(information(strong) + np.mean([*map(information, second)]), rel=1e-12)
        assert told <= information(strong) + max(map(information, second)) + 1e-12


def test_one_secret_charged_at_an_old_belief_tells_more_than_its_charges():
    one_of_four = np.array([[0.999, 0.001]] + [[0.001, 0.999]] * 3)
    charged = information(one_of_four)  # at the belief that all four worlds are alike
    told = information(one_of_four, np.array([0.5, 0.5, 0, 0]))  # to whoever has ruled two of them out
    assert told > 1.1 * charged


@pytest.mark.parametrize(("minority", "off"), [(0.5, 0.86e-5), (1 / 128, 4.9e-5)])
def test_two_way_releases_are_fair_coins_up_to_a_stated_distance(minority, off):
    calibration = calibrate(np.array([minority, 1 - minority]), PAPER_BUDGET)
    channel = token_channel(calibration)
    assert np.abs(channel - 0.5).max() == pytest.approx(off, rel=0.005)
    # The same from the noise's variance q(1 - q)/b along (1, -1)/√2, by the oracle's own formula.
    by_hand = two_way_token_channel(minority * (1 - minority) / PAPER_BUDGET)
    np.testing.assert_allclose(channel, by_hand, rtol=1e-9)


@pytest.mark.parametrize(("repeats", "one_in"), [(10, 512), (8, 128)])
@pytest.mark.parametrize("minority", [0.5, 1 / 128])
def test_repeating_a_prompt_shows_dissent(repeats, one_in, minority):
    channel = token_channel(calibrate(np.array([minority, 1 - minority]), PAPER_BUDGET))
    for of_vote in channel:  # whatever the realised world votes
        assert (of_vote**repeats).sum() == pytest.approx(1 / one_in, rel=1e-3)
