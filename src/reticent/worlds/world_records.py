"""Records of exported worlds: the run they are from, so that they come back as what they were.

`export_world` writes a record beside the adapter; `import_worlds` puts the records of all worlds of one run together
again. Without them nobody can tell overlapping worlds from disjoint shards: the tensors look alike.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from reticent._files import atomic_write_bytes
from reticent._records import check_schema
from reticent._settings import FrozenModel
from reticent.errors import RunDirectoryError
from reticent.worlds.assignment import Assignment
from reticent.worlds.places import Capacity

RECORD_NAME = "reticent_world.json"
SCHEMA_VERSION = 1


class WorldRecord(FrozenModel):
    """One world of a run whose membership is known.

    Attributes:
        run: SHA-256 of the run's manifest.
        world: which of its worlds.
        num_worlds: how many it has.
        assignment: how its units were given to worlds.
        places, unit_records: for a run with places, those of a world, and a unit's records in each.
        num_units: how many privacy units it has.
        units: those that this world holds, by number.
        weights: SHA-256 of the adapter's weight file that the record is about.
    """

    schema_version: int = Field(strict=True, ge=1)
    run: str
    world: int = Field(ge=0)
    num_worlds: int = Field(ge=1)
    assignment: Assignment
    places: int | None = Field(default=None, ge=1)
    unit_records: int | None = Field(default=None, ge=1)
    num_units: int = Field(ge=1)
    units: tuple[int, ...]
    weights: str

    @property
    def capacity(self) -> Capacity | None:
        """The declared worlds and places; None for a run without places."""
        if self.places is None or self.unit_records is None:
            return None
        return Capacity(self.num_worlds, self.places, self.unit_records)

    @property
    def members(self) -> NDArray[np.bool_]:
        """The units this world holds, bool[num_units]."""
        members = np.zeros(self.num_units, dtype=np.bool_)
        members[list(self.units)] = True
        return members


def write_world_record(folder: Path, record: WorldRecord) -> None:
    """Write a world's record into the folder that it is exported to, durably."""
    atomic_write_bytes(folder / RECORD_NAME, (record.model_dump_json() + "\n").encode())


def read_world_record(folder: Path, weights: str) -> WorldRecord | None:
    """The record in a folder; None where there is none.

    Args:
        folder: an adapter's folder.
        weights: SHA-256 of its weight file.

    Raises:
        RunDirectoryError: the record is damaged, of a newer schema, or about other weights.
    """
    path = folder / RECORD_NAME
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
        check_schema(path, content, SCHEMA_VERSION)
        record = WorldRecord.model_validate(content)
        if (record.assignment is Assignment.PLACES) != (record.capacity is not None):
            raise ValueError("it has places, and says how many, or it has neither")
        if record.world >= record.num_worlds or not all(0 <= unit < record.num_units for unit in record.units):
            raise ValueError("it names a world or a unit that the run does not have")
    except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RunDirectoryError(f"{path} is damaged ({reason}); export the world again") from None
    if record.weights != weights:
        raise RunDirectoryError(
            f"{folder} holds weights of SHA-256 {weights}, and {RECORD_NAME} is about {record.weights}; export the "
            f"world again, or delete {RECORD_NAME} in every folder if these are no worlds of that run any more"
        )
    return record


def join_memberships(
    folders: Sequence[Path], records: Sequence[WorldRecord | None]
) -> tuple[Assignment, NDArray[np.bool_], Capacity | None] | None:
    """Join what the worlds in these folders say: assignment, membership bool[units, m], and places; None if nothing.

    Raises:
        RunDirectoryError: the folders are not the worlds of one run, all of them and each once.
    """
    found = [(folder, record) for folder, record in zip(folders, records, strict=True) if record is not None]
    if not found:
        return None
    remedy = f"import all worlds of one run, or delete {RECORD_NAME} in every folder and give --membership"
    first_folder, first = found[0]
    if len(found) < len(folders):
        bare = next(folder for folder, record in zip(folders, records, strict=True) if record is None)
        raise RunDirectoryError(f"{first_folder} is a world of a run and {bare} does not say what it is; {remedy}")
    for folder, record in found[1:]:
        same = (record.run, record.num_worlds, record.assignment, record.num_units, record.capacity)
        if same != (first.run, first.num_worlds, first.assignment, first.num_units, first.capacity):
            raise RunDirectoryError(f"{first_folder} and {folder} are worlds of different runs; {remedy}")
    worlds = [record.world for _, record in found]
    if sorted(worlds) != list(range(first.num_worlds)):
        raise RunDirectoryError(
            f"the folders are worlds {', '.join(map(str, sorted(worlds)))} of a run of {first.num_worlds}; {remedy}"
        )
    members = np.stack([record.members for _, record in found], axis=1)
    in_each_row = first.num_worlds // 2 if first.assignment is Assignment.OVERLAPPING else 1
    most_a_world = len(members) if first.places is None else first.places
    if (members.sum(1) != in_each_row).any() or (members.sum(0) > most_a_world).any():
        raise RunDirectoryError(
            f"the records of {first_folder} and the others are damaged: not every unit is in {in_each_row} worlds of "
            f"{first.num_worlds}; export them again"
        )
    return first.assignment, members, first.capacity
