"""Every world sees each of its records once an epoch, in the same number of steps as every other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from reticent.training.schedule import make_schedule, record_order
from reticent.worlds.assignment import membership_matrix


def seen_in_epoch(schedule, epoch: int, world: int) -> list[NDArray[np.int64]]:
    first = epoch * schedule.steps_per_epoch
    steps = range(first, first + schedule.steps_per_epoch)
    return [row[row >= 0] for step in steps for row in schedule.batch(step, slice(world, world + 1))]


@given(
    num_units=st.integers(2, 40),
    half=st.integers(1, 4),
    batch_size=st.integers(1, 9),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**32),
    records_of_unit=st.lists(st.integers(1, 7), min_size=40, max_size=40),
)
def test_every_world_sees_each_of_its_records_once_an_epoch_in_full_batches(
    num_units: int, half: int, batch_size: int, epochs: int, seed: int, records_of_unit: list[int]
) -> None:
    unit_of_record = np.repeat(np.arange(num_units), records_of_unit[:num_units])
    members = membership_matrix(num_units, 2 * half, seed)[unit_of_record]
    schedule = make_schedule(members, batch_size, epochs, seed)
    assert schedule.num_steps == epochs * schedule.steps_per_epoch
    for world in range(2 * half):
        for epoch in range(epochs):
            batches = seen_in_epoch(schedule, epoch, world)
            assert len(batches) == schedule.steps_per_epoch
            assert min(map(len, batches)) >= 1
            assert max(map(len, batches)) - min(map(len, batches)) <= 1
            assert sorted(np.concatenate(batches)) == list(np.flatnonzero(members[:, world]))


def test_batches_are_about_as_large_as_asked() -> None:
    schedule = make_schedule(membership_matrix(100, 4, 0), 8, 1, 0)
    # 50 records a world make 6 batches of 8 or 9.
    assert schedule.steps_per_epoch == 6
    assert {len(batch) for batch in seen_in_epoch(schedule, 0, 2)} == {8, 9}


def test_a_world_far_smaller_than_the_others_bounds_the_steps() -> None:
    members = np.ones((20, 2), dtype=np.bool_)
    members[3:, 1] = False
    schedule = make_schedule(members, 2, 1, 0)
    assert schedule.steps_per_epoch == 3
    batch = schedule.batch(0, slice(0, 2))
    assert (batch[0] >= 0).all()
    assert list(batch[1, 1:]) == [-1] * (batch.shape[1] - 1)


def test_a_batch_depends_on_nothing_but_its_arguments() -> None:
    members = membership_matrix(30, 6, 1)
    schedule, again = (make_schedule(members, 3, 2, 5) for _ in range(2))
    later = schedule.batch(7, slice(0, 6))
    schedule.batch(0, slice(0, 6))
    np.testing.assert_array_equal(again.batch(7, slice(0, 6)), later)
    # A world's records do not depend on which others are asked for with it.
    for world in range(6):
        alone, row = schedule.batch(7, slice(world, world + 1))[0], later[world]
        np.testing.assert_array_equal(alone[alone >= 0], row[row >= 0])


def test_epochs_and_seeds_have_different_orders_of_the_whole_corpus() -> None:
    orders = [record_order(50, epoch, seed) for epoch in range(2) for seed in range(2)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("world", range(4))
def test_worlds_meet_records_in_one_public_order(world: int) -> None:
    members = membership_matrix(24, 4, 3)
    schedule = make_schedule(members, 4, 1, 9)
    order = record_order(24, 0, 9)
    np.testing.assert_array_equal(
        np.concatenate(seen_in_epoch(schedule, 0, world)), [record for record in order if members[record, world]]
    )
