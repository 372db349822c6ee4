"""Batches of like length, in a random order that the seed fixes."""

import numpy as np
import pytest

from reticent.training.batches import make_batches, num_batches


@pytest.mark.parametrize(("count", "size"), [(1, 8), (8, 8), (9, 8), (403, 4), (1000, 7)])
def test_every_record_comes_once_an_epoch(count, size):
    lengths = np.random.default_rng(0).integers(1, 500, count)
    batches = make_batches(lengths, size, 3, 1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert len(batches) == num_batches(count, size)
    assert sorted(len(batch) for batch in batches)[1:] == [size] * (len(batches) - 1)


def test_little_is_padded_and_short_texts_do_not_come_first():
    lengths = np.random.default_rng(0).integers(1, 500, 640)
    batches = make_batches(lengths, 8, 0, 0)
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    unsorted = sum(8 * lengths[start : start + 8].max() for start in range(0, 640, 8))
    assert padded < 1.08 * lengths.sum() < unsorted
    means = [float(lengths[batch].mean()) for batch in batches]
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.3


def test_epochs_and_seeds_differ_and_repeat():
    lengths = np.random.default_rng(0).integers(1, 50, 100)
    orders = [np.concatenate(make_batches(lengths, 4, *key)).tolist() for key in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != orders[3]
