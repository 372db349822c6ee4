"""Batches for training one model: texts of like length, in a public random order."""

import numpy as np
from numpy.typing import NDArray

from reticent.training.schedule import record_order

_BATCHES_A_BUCKET = 16
_BATCH_STREAM = 4


def num_batches(num_records: int, batch_size: int) -> int:
    """Steps an epoch takes."""
    return -(-num_records // batch_size)


def make_batches(lengths: NDArray[np.int64], batch_size: int, epoch: int, seed: int) -> list[NDArray[np.int64]]:
    """Each record once, in `num_batches` batches of `batch_size` records (one batch may be smaller).

    The epoch's random order is cut into buckets of 16 batches. Only within a bucket are records sorted by length, and
    batches then come in random order: little is padded, and neither short nor long texts come first.

    Args:
        lengths: tokens of each record, int64[n].
        batch_size: records a batch holds.
        epoch: from 0.
        seed: public.
    """
    order = record_order(len(lengths), epoch, seed)
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), batch_size * _BATCHES_A_BUCKET):
        bucket = order[start : start + batch_size * _BATCHES_A_BUCKET]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[first : first + batch_size] for first in range(0, len(bucket), batch_size)]
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _BATCH_STREAM, epoch])))
    return [batches[position] for position in generator.permutation(len(batches))]
