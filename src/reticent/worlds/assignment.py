"""The assignment of privacy units to worlds: a pure function of the number of units, the number of worlds and a seed.

Formal guarantee: every row of the matrix sums to exactly m/2, so that each unit's prior of being in the realised world
is exactly one half, and the column sums differ by at most one. The adversary is assumed to know the matrix, so the seed
is no secret.

Within these constraints the matrix should look random: for every two units, about a quarter of the worlds should hold
both. Filling row by row with the least-used worlds balances the columns but makes each second row the complement of the
one before it. Instead rows are drawn independently and uniformly among all balanced rows, and the columns are then
levelled by a few random swaps inside rows: about 0.4 / sqrt(n) of all memberships move, 2.5 % at n = 256 and 0.13 % at
n = 100,000. Both steps treat all units and all worlds alike, so the distribution of the matrix is exchangeable in both,
and the expected share of worlds common to any two units is exactly (n - 2) / (4 (n - 1)) for even n.

Disjoint shards are the other way to cut a corpus, each unit in exactly one, on which ensembles such as PMixED are
trained. They carry no prior of one half, so nothing may be released from them under the guarantee.

Only the raw 64-bit stream of Philox is used, which NumPy keeps stable across versions, unlike its distributions.
"""

from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent.errors import InvalidValueError
from reticent.guarantees import Guarantee

_ROWS_AT_ONCE = 16_384


class Assignment(StrEnum):
    """A rule that gives units to worlds.

    `PLACES` is drawn once from the operating system, see `worlds.places`; it is what the corpus guarantee needs.
    `UNKNOWN` is for adapters made elsewhere that nobody said this of. Without it no prior is known, so nothing is
    promised and nothing released.
    """

    OVERLAPPING = "overlapping"
    DISJOINT = "disjoint"
    PLACES = "places"
    UNKNOWN = "unknown"


GUARANTEES: Final = {Assignment.OVERLAPPING: Guarantee.REALISED_WORLD, Assignment.PLACES: Guarantee.CORPUS}
"""The guarantee that worlds of each assignment carry; the others carry none."""


def assign_units(assignment: Assignment, num_units: int, num_worlds: int, seed: int) -> NDArray[np.bool_]:
    """`membership_matrix` or `shard_matrix`.

    Raises:
        InvalidValueError: an argument is outside its range, or the assignment is none that can be made.
    """
    if assignment is Assignment.OVERLAPPING:
        return membership_matrix(num_units, num_worlds, seed)
    if assignment is Assignment.DISJOINT:
        return shard_matrix(num_units, num_worlds, seed)
    raise InvalidValueError(f"no seed assigns units to {assignment} worlds; build overlapping or disjoint ones")


def membership_matrix(num_units: int, num_worlds: int, seed: int) -> NDArray[np.bool_]:
    """Return bool[num_units, num_worlds], true where the world holds the unit.

    Args:
        num_units: number of privacy units n, at least 2.
        num_worlds: number of worlds m, even and at least 2.
        seed: any non-negative integer.

    Raises:
        InvalidValueError: an argument is outside its range.
    """
    _validate.integer_in_range("num_units", num_units, 2)
    _validate.num_worlds(num_worlds)
    _validate.integer_in_range("seed", seed, 0)
    stream = np.random.Philox(np.random.SeedSequence(int(seed), spawn_key=(int(num_units), int(num_worlds))))
    members = _balanced_rows(stream, num_units, num_worlds)
    worlds_first = np.ascontiguousarray(members.T)
    _level_columns(stream, worlds_first)
    return np.ascontiguousarray(worlds_first.T)


def shard_matrix(num_units: int, num_shards: int, seed: int) -> NDArray[np.bool_]:
    """Return bool[num_units, num_shards], true in exactly one shard for each unit, shards equal to within one unit.

    Args:
        num_units: number of privacy units, at least one a shard.
        num_shards: number of shards, even and at least 2, as run directories hold worlds.
        seed: any non-negative integer.

    Raises:
        InvalidValueError: an argument is outside its range.
    """
    _validate.num_worlds(num_shards)
    _validate.integer_in_range("num_units", num_units, num_shards)
    _validate.integer_in_range("seed", seed, 0)
    stream = np.random.Philox(np.random.SeedSequence(int(seed), spawn_key=(int(num_units), int(num_shards))))
    shard_of_unit = _shuffle(stream, np.arange(num_units) % num_shards)
    members: NDArray[np.bool_] = shard_of_unit[:, None] == np.arange(num_shards)
    return members


def _balanced_rows(stream: np.random.Philox, num_units: int, num_worlds: int) -> NDArray[np.bool_]:
    """Draw rows independently, each uniform over the subsets of m/2 worlds: those with the m/2 smallest keys."""
    members = np.zeros((num_units, num_worlds), dtype=np.bool_)
    half = num_worlds // 2
    for start in range(0, num_units, _ROWS_AT_ONCE):
        rows = members[start : start + _ROWS_AT_ONCE]
        keys = stream.random_raw(rows.size).reshape(rows.shape)
        np.put_along_axis(rows, np.argpartition(keys, half - 1, axis=1)[:, :half], True, axis=1)
    return members


def _level_columns(stream: np.random.Philox, worlds_first: NDArray[np.bool_]) -> None:
    """Move memberships from worlds with too many units to worlds with too few, in rows drawn at random.

    There are always enough rows to draw from: those in the fuller world only outnumber those in the emptier world only
    by the difference of the two worlds' sums, which is at least the number of moves between them.
    """
    surplus = worlds_first.sum(axis=1, dtype=np.int64) - _column_sums(stream, *worlds_first.shape)
    givers = _shuffle(stream, np.repeat(np.arange(len(surplus)), np.maximum(surplus, 0)))
    takers = np.repeat(np.arange(len(surplus)), np.maximum(-surplus, 0))
    pairs, moves = np.unique(np.stack([givers, takers], axis=1), axis=0, return_counts=True)
    for (giver, taker), count in zip(pairs, moves, strict=True):
        movable = np.flatnonzero(worlds_first[giver] & ~worlds_first[taker])
        rows = movable[np.argpartition(stream.random_raw(len(movable)), count - 1)[:count]]
        worlds_first[giver, rows] = False
        worlds_first[taker, rows] = True


def _column_sums(stream: np.random.Philox, num_worlds: int, num_units: int) -> NDArray[np.int64]:
    """The target of each world: n/2, and for odd n one unit more in a random half of the worlds than in the others."""
    sums = np.full(num_worlds, num_units // 2, dtype=np.int64)
    if num_units % 2:
        sums[_shuffle(stream, np.arange(num_worlds))[: num_worlds // 2]] += 1
    return sums


def _shuffle(stream: np.random.Philox, values: NDArray[np.int64]) -> NDArray[np.int64]:
    return values[np.argsort(stream.random_raw(len(values)), kind="stable")]
