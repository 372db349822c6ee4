"""Stability by hand, with texts as the units of sampling."""

import numpy as np
import pytest
from hand_made_votes import NUM_CANDIDATES, random_tensor, tensor_of

from reticent.evaluation.stability import Stability, stability


def test_rates_by_hand():
    votes = [[1, 1], [1, 2], [3, 3], [4, 4], [5, 6]]
    greedy = [[1, 1], [1, 1], [3, 3], [4, 4], [5, 5]]
    result = stability(tensor_of(votes, [0] * 5, [0] * 5, lengths=[2, 3], greedy=greedy))
    row = result.at(NUM_CANDIDATES)
    assert row.greedy.value == 1.0
    assert row.gumbel.value == pytest.approx(3 / 5)
    # Residuals of the two texts: (1 - 2·0.6)/5 and (2 - 3·0.6)/5.
    assert row.gumbel.standard_error == pytest.approx(np.sqrt(2 * 2 * 0.04**2))
    assert row.mass.value == 0.75
    assert result.num_mass_positions == 3
    assert Stability.model_validate_json(result.model_dump_json()) == result


def test_the_chosen_rate_is_found():
    row = stability(random_tensor(dissent=0.3, num_texts=30)).at(NUM_CANDIDATES)
    low, high = row.gumbel.interval(0.999)
    assert low < 0.7 < high
    assert row.gumbel.num_samples == 30
