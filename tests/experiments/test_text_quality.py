"""Repetition and diversity against counts by hand and a jackknife that really leaves texts out."""

import math

import numpy as np
import pytest

from experiments.studies.text_quality import distinct, repetition
from reticent.errors import InvalidValueError


def test_repetition_by_hand():
    # a b c a b c a: abc bca cab abc bca - five trigrams, three distinct.
    assert repetition([[1, 2, 3, 1, 2, 3, 1]], 3).value == pytest.approx(2 / 5)
    assert repetition([[1, 2, 3, 4], [5, 5, 5, 5]], 3).value == pytest.approx((0 + 1 / 2) / 2)
    assert repetition([[7, 7, 7]], 1).value == pytest.approx(2 / 3)


def test_distinct_counts_a_gram_once_over_all_texts():
    # Bigrams: 12 21 12 | 12 23 -> five, of them 12, 21, 23.
    assert distinct([[1, 2, 1, 2], [1, 2, 3]], 2).value == pytest.approx(3 / 5)
    alone = distinct([[1, 2, 1, 2]], 2)
    assert alone.value == pytest.approx(2 / 3)
    assert alone.standard_error is None


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_jackknife_is_what_leaving_texts_out_gives(n):
    generator = np.random.default_rng(n)
    texts = [generator.integers(0, 9, size=int(size)).tolist() for size in generator.integers(5, 30, size=7)]

    def plainly(some):
        grams = [tuple(text[i : i + n]) for text in some for i in range(len(text) - n + 1)]
        return len(set(grams)) / len(grams)

    without = [plainly(texts[:i] + texts[i + 1 :]) for i in range(len(texts))]
    expected = math.sqrt((len(texts) - 1) * np.var(without))
    found = distinct(texts, n)
    assert found.value == pytest.approx(plainly(texts))
    assert found.standard_error == pytest.approx(expected)


@pytest.mark.parametrize(("texts", "n"), [([], 1), ([[1, 2]], 3), ([[1, 2, 3], [1]], 2), ([[1]], 0)])
def test_texts_without_a_gram_are_refused(texts, n):
    for measure in (repetition, distinct):
        with pytest.raises(InvalidValueError):
            measure(texts, n)
