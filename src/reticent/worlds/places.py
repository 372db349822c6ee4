"""Places: who is where in the worlds of a run that carries the corpus guarantee.

m worlds of s places each are declared beforehand and public: a capacity of m·s units. Each unit gets a place by a
uniformly random injection that is drawn once from the operating system and kept with the run, never drawn again. Who is
where, how many units there are, and which places are empty stay with the operator.

A place holds up to a public number of a unit's records, its slots; the slots of all places, in order, are what training
sees. A slot that holds no record is empty, and is computed like any other.

    places.npz    place_of_unit int64[units], unit_of_record int64[records], record_hashes uint8[records, 32]
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent._files import atomic_write
from reticent._validate import integer_in_range
from reticent.errors import CorpusError, RunDirectoryError

PLACES_NAME = "places.npz"
NO_RECORD = -1


@dataclass(frozen=True)
class Capacity:
    """The declared size of a run: public, and never derived from the corpus.

    Attributes:
        num_worlds: m.
        places: places of a world, s.
        records: records of one unit that a place holds; further ones are left out.
    """

    num_worlds: int
    places: int
    records: int = 1

    def __post_init__(self) -> None:
        integer_in_range("worlds", self.num_worlds, 1)
        integer_in_range("places", self.places, 1)
        integer_in_range("unit_records", self.records, 1)

    @property
    def num_places(self) -> int:
        """N = m·s, the most units."""
        return self.num_worlds * self.places

    @property
    def slots(self) -> int:
        """Slots of a world."""
        return self.places * self.records


@dataclass(frozen=True)
class UnitPlaces:
    """The place of each unit, and the unit of each record. Private to the operator.

    Attributes:
        capacity: the declared size.
        place_of_unit: each unit's own place, int64[units].
        unit_of_record: each record's unit, int64[records].
    """

    capacity: Capacity
    place_of_unit: NDArray[np.int64]
    unit_of_record: NDArray[np.int64]

    @property
    def world_of_unit(self) -> NDArray[np.int64]:
        """Each unit's world, int64[units]."""
        return self.place_of_unit // self.capacity.places

    @property
    def occupied(self) -> NDArray[np.bool_]:
        """True for each world that holds a unit, bool[m]."""
        occupied = np.zeros(self.capacity.num_worlds, dtype=np.bool_)
        occupied[self.world_of_unit] = True
        return occupied

    @property
    def members(self) -> NDArray[np.bool_]:
        """Unit-world membership, bool[units, m]."""
        members: NDArray[np.bool_] = self.world_of_unit[:, None] == np.arange(self.capacity.num_worlds)
        return members

    @property
    def record_of_slot(self) -> NDArray[np.int64]:
        """The record in each slot, world by world and place by place; `NO_RECORD` where it is empty, int64[m · slots].

        A unit's records keep their order, which no other unit can change.
        """
        slots = np.full((self.capacity.num_places, self.capacity.records), NO_RECORD, dtype=np.int64)
        filled = np.zeros(self.capacity.num_places, dtype=np.int64)
        for record, unit in enumerate(self.unit_of_record):
            place = self.place_of_unit[unit]
            if filled[place] < self.capacity.records:
                slots[place, filled[place]] = record
                filled[place] += 1
        return slots.reshape(-1)

    @property
    def num_left_out(self) -> int:
        """Records beyond what their unit's place holds."""
        return len(self.unit_of_record) - int((self.record_of_slot != NO_RECORD).sum())


def draw_places(capacity: Capacity, num_units: int, unit_of_record: NDArray[np.int64]) -> UnitPlaces:
    """Give each unit a place of its own, uniformly among all ways to do so, from the operating system's generator.

    Raises:
        CorpusError: there are more units than places.
    """
    require_room(capacity, num_units)
    drawn = secrets.SystemRandom().sample(range(capacity.num_places), num_units)
    return UnitPlaces(capacity, np.array(drawn, dtype=np.int64), unit_of_record)


def places_of_worlds(capacity: Capacity, members: NDArray[np.bool_]) -> UnitPlaces:
    """Give units places of the worlds that hold them, bool[units, m], in order; each unit is in one, none overfull."""
    world_of_unit = members.argmax(1)
    place_of_unit = np.empty(len(members), dtype=np.int64)
    for world in range(capacity.num_worlds):
        own = np.flatnonzero(world_of_unit == world)
        place_of_unit[own] = world * capacity.places + np.arange(len(own))
    return UnitPlaces(capacity, place_of_unit, np.arange(len(members), dtype=np.int64))


def require_room(capacity: Capacity, num_units: int) -> None:
    """Check that every unit can have a place.

    Raises:
        CorpusError: there are more units than places.
    """
    if num_units > capacity.num_places:
        raise CorpusError(
            f"{num_units} privacy units need as many places, and {capacity.num_worlds} worlds of {capacity.places} "
            f"places have {capacity.num_places}; declare more with --worlds or --places, or read fewer with --limit"
        )


def write_places(path: Path, unit_places: UnitPlaces, record_hashes: NDArray[np.uint8]) -> None:
    """Write who is where, durably.

    Raises:
        StorageError: it cannot be written.
    """

    def write(scratch: Path) -> None:
        with scratch.open("wb") as file:
            np.savez_compressed(
                file,
                place_of_unit=unit_places.place_of_unit,
                unit_of_record=unit_places.unit_of_record,
                record_hashes=record_hashes,
            )

    atomic_write(path, write)


def read_places(path: Path, capacity: Capacity) -> tuple[UnitPlaces, NDArray[np.uint8]]:
    """Read who is where, and the SHA-256 of each record's text, uint8[records, 32].

    Raises:
        RunDirectoryError: the file is missing, damaged or of another capacity.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = UnitPlaces(capacity, arrays["place_of_unit"], arrays["unit_of_record"])
            hashes = arrays["record_hashes"]
        places, units = found.place_of_unit, found.unit_of_record
        is_sound = len(set(places.tolist())) == len(places) and (units.min(initial=0) >= 0)
        is_sound = is_sound and places.min(initial=0) >= 0 and places.max(initial=0) < capacity.num_places
        if not is_sound or units.max(initial=-1) >= len(places) or len(hashes) != len(units):
            raise ValueError("it does not give each unit a place of its own")
    except (OSError, ValueError, KeyError) as error:
        raise RunDirectoryError(f"{path} is missing or damaged ({error}); restore it from a backup") from None
    return found, hashes
