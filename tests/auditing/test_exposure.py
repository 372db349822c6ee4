"""Exposure against values worked by hand and its distribution for canaries that were never planted."""

import math

import numpy as np
import pytest

from reticent.auditing.canaries.exposure import exposure
from reticent.errors import InvalidValueError


def test_the_most_likely_of_1024_has_ten_bits():
    found = exposure(0.0, -np.arange(1.0, 1024.0))
    assert (found.rank, found.num_candidates, found.bits) == (1, 1024, 10.0)


@pytest.mark.parametrize(("score", "rank", "bits"), [(9.5, 1, 3.0), (7.5, 2, 2.0), (5.5, 4, 1.0), (-1.0, 8, 0.0)])
def test_each_doubling_of_the_rank_costs_a_bit(score, rank, bits):
    found = exposure(score, [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0])
    assert (found.rank, found.bits) == (rank, bits)


def test_equal_scores_count_against_the_canary():
    assert exposure(1.0, [1.0] * 7).bits == 0.0
    assert exposure(1.0, [1.0, 0.0, 0.0]).bits == 1.0
    assert exposure(-math.inf, [-math.inf, 0.0]).bits == 0.0


def test_a_canary_that_was_never_planted_has_at_most_log2_e_bits_on_average():
    """Its rank is uniform: the mean is log2(n) − log2(n!)/n, computed here for n = 1,000, just below 1.4427."""
    n = 1000
    scores = np.arange(float(n))
    mean = np.mean([exposure(scores[i], np.delete(scores, i)).bits for i in range(n)])
    assert mean == pytest.approx(math.log2(n) - math.lgamma(n + 1) / math.log(2) / n, rel=1e-12)
    assert 1.43 < mean < math.log2(math.e)


def test_nan_or_no_candidates_are_refused():
    for arguments in ((math.nan, [1.0]), (1.0, [math.nan]), (1.0, [])):
        with pytest.raises(InvalidValueError):
            exposure(*arguments)
