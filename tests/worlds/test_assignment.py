"""The membership matrix: exact sums, purity, and randomness no weaker than that of independent balanced rows."""

import hashlib
from collections import Counter
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reticent.errors import InvalidValueError
from reticent.worlds.assignment import membership_matrix, shard_matrix

sizes = st.tuples(st.integers(2, 300), st.integers(1, 40).map(lambda half: 2 * half), st.integers(0, 2**70))


@settings(max_examples=150, deadline=None)
@given(sizes)
def test_rows_hold_half_of_the_worlds_and_columns_differ_by_at_most_one(arguments):
    num_units, num_worlds, _ = arguments
    members = membership_matrix(*arguments)
    assert members.shape == (num_units, num_worlds)
    assert members.dtype == np.bool_
    assert (members.sum(axis=1) == num_worlds // 2).all()
    columns = members.sum(axis=0)
    assert columns.max() - columns.min() <= 1


@settings(max_examples=30, deadline=None)
@given(sizes, st.integers(0, 2**32 - 1))
def test_matrix_is_a_pure_function_of_its_arguments(arguments, global_seed):
    first = membership_matrix(*arguments)
    np.random.seed(global_seed)  # noqa: NPY002 - the global generator must not matter
    np.testing.assert_array_equal(membership_matrix(*arguments), first)


def test_matrix_never_changes_between_versions():
    packed = np.packbits(membership_matrix(256, 128, seed=7))
    assert hashlib.sha256(packed).hexdigest() == "e474c5d967b639740877a03a30ec6d2d043437710cb09c3d33e050cdced8307b"


def test_every_argument_changes_the_whole_matrix():
    matrix = membership_matrix(200, 64, seed=1)
    for other in (
        membership_matrix(200, 64, seed=2),
        membership_matrix(200, 64, seed=1 + 2**64),
        membership_matrix(202, 64, seed=1)[:200],
        membership_matrix(200, 66, seed=1)[:, :64],
    ):
        assert abs((matrix == other).mean() - 0.5) < 5 * 0.5 / sqrt(matrix.size)


def shared_worlds_moments(num_worlds):
    """Mean and standard deviation of |A & B| for independent uniform halves A, B of the worlds (hypergeometric)."""
    distribution = stats.hypergeom(num_worlds, num_worlds // 2, num_worlds // 2)
    return distribution.mean(), distribution.std()


@pytest.mark.parametrize(("num_units", "num_worlds"), [(64, 32), (257, 128), (600, 16)])
def test_two_units_share_about_a_quarter_of_the_worlds_like_independent_rows(num_units, num_worlds):
    members = membership_matrix(num_units, num_worlds, seed=5).astype(np.int64)
    shared = members @ members.T
    pairs = shared[np.triu_indices(num_units, 1)]
    mean, deviation = shared_worlds_moments(num_worlds)
    assert pairs.mean() == pytest.approx(mean * (num_units - 2) / (num_units - 1), rel=1e-3)
    assert pairs.std() == pytest.approx(deviation, rel=0.1)
    worst = stats.norm.isf(1e-4 / len(pairs)) * deviation
    assert np.abs(pairs - mean).max() < worst
    for lag in (1, 2, num_units // 2):
        neighbours = np.diag(shared, lag)
        assert abs(neighbours.mean() - mean) < 5 * deviation / sqrt(len(neighbours))


def test_two_worlds_share_about_a_quarter_of_the_units():
    num_units, num_worlds = 400, 64
    members = membership_matrix(num_units, num_worlds, seed=11).astype(np.int64)
    shared = (members.T @ members)[np.triu_indices(num_worlds, 1)]
    deviation = stats.hypergeom(num_units, num_units // 2, num_units // 2).std()
    assert shared.mean() == pytest.approx(num_units / 4 * (num_worlds - 2) / (num_worlds - 1))
    assert shared.std() == pytest.approx(deviation, rel=0.1)
    assert np.abs(shared - num_units / 4).max() < 6 * deviation


@pytest.mark.parametrize(("num_units", "num_worlds", "num_matrices"), [(2, 4, 6), (3, 2, 6), (4, 2, 6)])
def test_small_matrices_are_uniform_over_all_that_satisfy_the_sums(num_units, num_worlds, num_matrices):
    seen = Counter(membership_matrix(num_units, num_worlds, seed).tobytes() for seed in range(3000))
    assert len(seen) == num_matrices
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_a_hundred_thousand_units_fit():
    members = membership_matrix(100_001, 8, seed=0)
    assert (members.sum(axis=1) == 4).all()
    assert Counter(members.sum(axis=0).tolist()) == {50_000: 4, 50_001: 4}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((1, 4, 0), "num_units"),
        ((2.0, 4, 0), "num_units"),
        ((4, 0, 0), "num_worlds"),
        ((4, 3, 0), "num_worlds"),
        ((4, -2, 0), "num_worlds"),
        ((4, float("nan"), 0), "num_worlds"),
        ((4, 4, -1), "seed"),
        ((4, 4, 0.5), "seed"),
    ],
)
def test_arguments_outside_their_range_are_refused(arguments, name):
    with pytest.raises(InvalidValueError, match=name):
        membership_matrix(*arguments)


def test_shards_hold_each_unit_once_and_are_balanced():
    for num_units, num_shards in ((8, 8), (50, 8), (1001, 32)):
        shards = shard_matrix(num_units, num_shards, seed=3)
        assert (shards.sum(1) == 1).all()
        assert np.ptp(shards.sum(0)) <= 1
        np.testing.assert_array_equal(shards, shard_matrix(num_units, num_shards, seed=3))
        if num_units > num_shards:
            assert not np.array_equal(shards, shard_matrix(num_units, num_shards, seed=4))
    with pytest.raises(InvalidValueError):
        shard_matrix(7, 8, 0)
