"""Utility on votes whose answer is known."""

import numpy as np
import pytest
from hand_made_votes import random_tensor, tensor_of

from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control
from reticent.evaluation.discarding_store import DiscardingStore
from reticent.evaluation.utility import Utility, UtilitySettings, utility
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.mechanism import ReleaseMechanism
from reticent.pac.posterior import Posterior
from reticent.randomness import SeededNoise

TINY = 2.0**-32


def test_where_worlds_agree_every_method_is_the_noiseless_one():
    votes = np.repeat([[1], [2], [3], [4]], 6, axis=1)
    tensor = tensor_of(votes, [1, 2, 0, 4], [1, 0, 0, 0], full=[1, 2, 3, 0], lengths=[2, 2])
    result = utility(tensor, Decoder.GUMBEL, UtilitySettings(budgets=(TINY, 0.25), num_sessions=3))
    for row in result.rows:
        if row.method not in ("public", "full-data"):
            assert row.accuracy.value == 0.75
            assert row.kept is None or row.kept.value == 1.0
            assert row.flips is None
    assert result.row("public").accuracy.value == 0.5
    assert result.row("full-data").accuracy.value == 0.5
    assert result.gain.value == 0.25
    assert Utility.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize("one_against", [1, 2, 3])
def test_two_way_votes_at_a_tiny_budget_are_fair_coins(one_against):
    votes = np.ones((300, 6), dtype=int)
    votes[:, :one_against] = 2
    tensor = tensor_of(votes, [1] * 300, [0] * 300, lengths=[100] * 3)
    result = utility(tensor, Decoder.GUMBEL, UtilitySettings(budgets=(TINY,), num_sessions=24))
    gaussian, mixture = (result.row(mechanism.value, TINY) for mechanism in ReleaseMechanism)
    tolerance = 5 * 0.5 / np.sqrt(300 * 24)
    assert gaussian.flips.value == pytest.approx(0.5, abs=tolerance)
    assert gaussian.accuracy.value == pytest.approx(0.5, abs=tolerance)
    # The mixture draws from the shares of the votes, so it is right as often as a world is.
    share = 1 - one_against / 6
    assert mixture.accuracy.value == pytest.approx(share, abs=tolerance)
    assert mixture.kept.value == pytest.approx(1.0, abs=2 * tolerance / share)
    assert mixture.flips.value == pytest.approx(2 * share * (1 - share), abs=tolerance)
    assert result.row("noiseless").accuracy.value == pytest.approx(share)
    assert result.row(Control.FRESH_WORLD.value).accuracy.value == pytest.approx(share, abs=tolerance)
    # A world drawn once a text: few draws, so the exact values it can take are checked instead.
    assert result.row(Control.REQUEST_WORLD.value).accuracy.value * 72 == pytest.approx(
        round(result.row(Control.REQUEST_WORLD.value).accuracy.value * 72)
    )
    assert result.row(Control.PLURALITY.value).accuracy.value == 1.0 or one_against == 3


def test_a_large_budget_releases_the_realised_worlds_vote():
    tensor = random_tensor()
    result = utility(tensor, Decoder.GUMBEL, UtilitySettings(budgets=(200.0,), num_sessions=16))
    row = result.row("gaussian", 200.0)
    assert row.flips.value < 0.01
    assert row.accuracy.value == pytest.approx(result.row("noiseless").accuracy.value, abs=0.01)
    assert row.kept.value == pytest.approx(1.0, abs=0.05)
    assert result.unanimity.value == pytest.approx(1 - tensor.gumbel.dissent.mean())


def test_the_curator_itself_gives_the_same_accuracy_and_flips():
    tensor = random_tensor(num_texts=4, length=60, dissent=0.4)
    budget, votes = 0.05, tensor.gumbel.worlds_NM.astype(np.int64)
    hits, flips = [], []
    for seed in range(64):
        curator = Curator.for_experiments(
            CuratorState(seed % 16, Posterior.uniform(16).log_weights), DiscardingStore(), SeededNoise(seed)
        )
        tokens = np.array([curator.release(v, Charging(budget), request="", step=i).token for i, v in enumerate(votes)])
        hits.append((tokens == tensor.targets_N).mean())
        flips.append((tokens != votes[:, seed % 16])[tensor.gumbel.dissent].mean())
    result = utility(tensor, Decoder.GUMBEL, UtilitySettings(budgets=(budget,), num_sessions=64, seed=3))
    row = result.row("gaussian", budget)
    for value, sample in ((row.accuracy.value, hits), (row.flips.value, flips)):
        error = np.std(sample) / 8
        assert 0 < error < 0.02
        assert value == pytest.approx(np.mean(sample), abs=5 * np.sqrt(2) * error)


def test_both_denominators_and_the_cost_of_noise_are_worked_by_hand():
    """Of 8 positions the public model has 2, each world 5, the full adapter 6, so shares are of 3 and of 4."""
    targets = [1, 1, 1, 1, 1, 1, 1, 1]
    worlds = np.array([[1] * 6] * 5 + [[2] * 6] * 3)
    full = [1, 1, 1, 1, 1, 1, 2, 2]
    tensor = tensor_of(worlds, targets, [1, 1, 0, 0, 0, 0, 0, 0], full=full, lengths=[4, 4])
    result = utility(tensor, Decoder.GUMBEL, UtilitySettings(budgets=(TINY,), num_sessions=3))
    assert result.row("noiseless").of_full_gain.value == pytest.approx(3 / 4)
    assert result.row("full-data").kept.value == pytest.approx(4 / 3)
    assert result.row("full-data").of_full_gain.value == pytest.approx(1)
    for mechanism in ReleaseMechanism:
        row = result.row(mechanism.value, TINY)
        assert (row.kept.value, row.of_full_gain.value) == (pytest.approx(1), pytest.approx(3 / 4))
        assert row.noise_cost.value == 0


def test_the_cost_of_noise_is_what_the_share_misses():
    tensor = random_tensor(num_texts=6, length=50, dissent=0.4)
    result = utility(tensor, Decoder.GUMBEL, UtilitySettings(budgets=(TINY,), num_sessions=16))
    for mechanism in ReleaseMechanism:
        row = result.row(mechanism.value, TINY)
        assert row.noise_cost.value == pytest.approx((1 - row.kept.value) * result.gain.value, abs=2e-3)
        assert (row.of_full_gain is None) == (not tensor.has_full)


def test_without_a_gain_no_share_of_it_is_given():
    tensor = tensor_of([[1, 2]] * 4, [0] * 4, [0] * 4, lengths=[2, 2])
    result = utility(tensor, Decoder.GREEDY, UtilitySettings(budgets=(0.1,), num_sessions=2))
    assert result.gain.value == -1.0
    assert all(row.kept is None for row in result.rows)


def test_budgets_out_of_range_are_refused():
    with pytest.raises(InvalidValueError, match="budget"):
        UtilitySettings(budgets=(float("nan"),))
