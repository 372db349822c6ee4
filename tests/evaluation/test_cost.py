"""Counts by hand; seconds are only asked to be there."""

import numpy as np
import pytest
from hand_made_votes import NUM_CANDIDATES, tensor_of

from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.evaluation.cost import Cost, cost, release_operations


def test_the_published_counts():
    assert release_operations(50_257, 128) == pytest.approx(3.35e9, rel=1e-3)
    # Its 2.59e4 after the restriction is what a mean of 1.58 distinct votes gives.
    after = 128**2 * 1.58 + 1.58**2
    assert after == pytest.approx(2.59e4, rel=1e-3)


def test_counts_of_what_was_voted():
    votes = [[1, 1, 1, 1], [1, 1, 1, 2], [1, 2, 3, 4], [5, 5, 5, 5]]
    result = cost(tensor_of(votes, [0] * 4, [0] * 4), Decoder.GUMBEL, 100, 0.01)
    assert result.active_counts == {1: 2, 2: 1, 4: 1}
    vocabulary, candidates, distinct, charged = result.operations
    assert (vocabulary.operations, candidates.operations) == (16 * 100 + 100**2, 16 * NUM_CANDIDATES + 64)
    assert distinct.coordinates == 2.0
    assert distinct.operations == (2 * 17 + (32 + 4) + (64 + 16)) / 4
    assert charged.operations == ((32 + 4) + (64 + 16)) / 4
    assert result.reading_seconds.value == 0.5
    assert result.release_seconds.num_samples == 4
    assert result.dissent_release_seconds.num_samples == 2
    assert result.decoding_seconds is None
    assert Cost.model_validate_json(result.model_dump_json()) == result


def test_unanimous_votes_have_no_dissenting_release():
    result = cost(tensor_of(np.ones((3, 4)), [0] * 3, [0] * 3), Decoder.GREEDY, 100, 0.01, num_releases=2)
    assert result.dissent_release_seconds is None
    assert result.release_seconds.num_samples == 2
    with pytest.raises(InvalidValueError, match="coordinates"):
        release_operations(0, 4)
