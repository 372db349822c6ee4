"""Clustered errors against hand values and their own coverage."""

import numpy as np
import pytest
from scipy import stats

from reticent.errors import InvalidValueError
from reticent.stats.means import TextSpans, ratio, sample_mean


def test_texts_of_equal_length_are_a_sample_of_text_means():
    values = np.random.default_rng(0).normal(size=(12, 5))
    mean = TextSpans(np.arange(0, 61, 5)).mean(values.ravel())
    of_texts = values.mean(axis=1)
    assert mean.value == pytest.approx(of_texts.mean())
    assert mean.standard_error == pytest.approx(of_texts.std(ddof=1) / np.sqrt(12))
    assert mean == sample_mean(of_texts).model_copy(update={"value": mean.value, "standard_error": mean.standard_error})
    assert mean.interval() == pytest.approx(stats.ttest_1samp(of_texts, 0.0).confidence_interval(0.95))


def test_ratio_by_hand():
    # r = 6/8; residuals (2 - 1.5, 4 - 4.5)/8 = ±1/16; error = sqrt(2 · 2/256).
    mean = ratio(np.array([2.0, 4.0]), np.array([2.0, 6.0]))
    assert mean.value == 0.75
    assert mean.standard_error == pytest.approx(np.sqrt(2 * 2 / 256))


def test_the_interval_covers_where_positions_of_a_text_are_alike():
    generator = np.random.default_rng(3)
    lengths = np.array([3, 9, 20, 4] * 10)
    spans = TextSpans(np.concatenate([[0], lengths.cumsum()]))
    covered = naive = 0
    for _ in range(300):
        values = np.repeat(generator.normal(size=lengths.size), lengths)
        low, high = spans.mean(values).interval()
        covered += low <= 0.0 <= high
        naive += abs(values.mean()) <= 1.96 * values.std() / np.sqrt(values.size)
    assert 0.90 <= covered / 300 <= 0.98
    assert naive / 300 < 0.65


def test_what_has_no_mean_is_refused():
    with pytest.raises(InvalidValueError, match="denominator"):
        ratio(np.array([1.0, -1.0]), np.array([1.0, -1.0]))
    with pytest.raises(InvalidValueError, match="3 positions"):
        TextSpans(np.array([0, 3])).mean(np.zeros(4))
    with pytest.raises(InvalidValueError, match="offsets"):
        TextSpans(np.array([0, 3, 2]))
    assert sample_mean([2.0]).interval() is None
