"""Total variation where the distributions are known."""

import numpy as np
import pytest
from hand_made_votes import NUM_CANDIDATES, tensor_of

from reticent.errors import InvalidValueError
from reticent.evaluation.fidelity import Fidelity, fidelity, total_variation

SURE, TINY = 50.0, 2.0**-32


def with_logits(logits):
    """Eight worlds; the logits of every position, [M, K]."""
    positions = 6
    logits = np.asarray(logits, np.float16)
    votes = np.zeros((positions, len(logits)), dtype=int)
    return tensor_of(votes, [0] * 6, [0] * 6, lengths=[3, 3], logits=np.stack([logits] * positions))


def values(result):
    return {(row.method, row.step_budget): row.total_variation.value for row in result.rows}


def test_one_dissenter_among_eight_at_a_tiny_budget():
    # Seven worlds say 0, one says 1, all for certain: p̄ = (7/8, 1/8).
    logits = np.zeros((8, NUM_CANDIDATES))
    logits[:7, 0] = logits[7, 1] = SURE
    result = fidelity(with_logits(logits), 1.0, [TINY], num_draws=200)
    found = values(result)
    assert found[("fresh-world", None)] < 0.02
    assert found[("mixture", TINY)] < 0.02
    assert found[("plurality", None)] == pytest.approx(1 / 8, abs=1e-9)
    assert found[("gaussian", TINY)] == pytest.approx(0.5 - 1 / 8, abs=0.02)
    assert result.num_positions == 6
    assert Fidelity.model_validate_json(result.model_dump_json()) == result


def test_worlds_that_agree_in_law_are_sampled_exactly():
    logits = np.tile(np.log([0.5, 0.3, 0.2]), (8, 1))
    logits = np.pad(logits, ((0, 0), (0, 5)), constant_values=-np.inf)
    assert set(values(fidelity(with_logits(logits), 1.0, [TINY], 50)).values()) == {0.0}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_plurality_is_as_far_from_the_mixture_as_its_exact_distribution(temperature):
    # Two candidates: U_0 − U_1 is logistic, so a world votes 0 with chance σ(difference / T), and all worlds with a
    # larger difference then vote 0 too. Three of four do when the two middle ones, which are alike, do.
    differences = np.array([-4.0, 2.0, 2.5, 2.0])
    logits = np.full((4, NUM_CANDIDATES), -np.inf)
    logits[:, 0], logits[:, 1] = differences, 0.0
    chances = 1 / (1 + np.exp(-differences / temperature))
    exact = abs(chances[1] - chances.mean())
    found = values(fidelity(with_logits(logits), temperature, [], num_draws=4000))
    assert exact > 0.1
    assert found[("plurality", None)] == pytest.approx(exact, abs=0.03)


def test_total_variation_by_hand():
    assert total_variation(np.array([0, 0, 1, 2]), np.array([0.25, 0.25, 0.5])) == pytest.approx(0.25)


def test_without_logits_there_is_nothing_to_measure():
    with pytest.raises(InvalidValueError, match="logits_every"):
        fidelity(tensor_of([[1, 1]], [0], [0]), 1.0, [])
