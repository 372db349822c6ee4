"""The way from records to worlds while a run is built: what each world takes in each step, and what is kept of it.

Overlapping worlds and disjoint shards follow from a public seed and train on texts as long as they are. Places are
drawn once from the operating system, are kept in the build's own folder from its first step on, and train in isolation.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reticent.layers.forward import BatchedDecoder
from reticent.text.corpus import Units
from reticent.text.tokenise import EncodedTexts
from reticent.training.isolated import IsolatedTrainer, SlotSchedule, SlottedTexts
from reticent.training.multiworld import MultiWorldTrainer
from reticent.training.schedule import Schedule, StepSchedule, make_schedule
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import Assignment, assign_units
from reticent.worlds.manifest import MEMBERSHIP_NAME
from reticent.worlds.places import (
    PLACES_NAME,
    Capacity,
    UnitPlaces,
    draw_places,
    read_places,
    require_room,
    write_places,
)
from reticent.worlds.run_directory import Membership, write_membership


@dataclass(frozen=True)
class TrainingInputs:
    """Everything that adapters are trained from.

    Attributes:
        decoder: the base.
        texts: the records' texts, encoded and cut.
        units: the partition of the records.
        record_hashes: SHA-256 of each record's text, uint8[records, 32].
        max_tokens: the longest that a text may be.
        lora, training: what each adapter is and how it is trained.
    """

    decoder: BatchedDecoder
    texts: EncodedTexts
    units: Units
    record_hashes: NDArray[np.uint8]
    max_tokens: int
    lora: LoraSettings
    training: TrainingSettings

    def trainer(self, scratch: Path) -> MultiWorldTrainer:
        """A trainer on the texts as long as they are."""
        return MultiWorldTrainer(self.decoder, self.texts, self.lora, self.training, scratch)

    def schedule(self, members: NDArray[np.bool_]) -> Schedule:
        """The steps of worlds with this membership."""
        return make_schedule(members, self.training.batch_size, self.training.epochs, self.training.seed)

    def num_targets(self, schedule: Schedule, worlds: slice = slice(None)) -> int:
        """Predicted tokens that training some worlds goes through."""
        held = schedule.members[:, worlds].sum(1)
        return int(held @ (self.texts.num_scored)) * schedule.epochs


class WorldLayout(Protocol):
    """A layout of records over worlds."""

    def identity(self) -> dict[str, Any]:
        """The settings that the adapters depend on, under the names that the manifest has for them."""
        ...

    def num_targets(self, worlds: slice = slice(None)) -> int:
        """Predicted tokens that training some worlds goes through."""
        ...

    def begin(self, work: Path, full: MultiWorldTrainer) -> tuple[MultiWorldTrainer, StepSchedule]:
        """The worlds' trainer and their steps; what is drawn is drawn now, or found in a build's folder that was begun.

        Args:
            work: the build's own folder.
            full: the trainer on all records; the worlds' may be the same.
        """
        ...

    def write(self, out: Path) -> None:
        """Write who is in which world into the finished run, durably."""
        ...


class SeededLayout:
    """Units assigned to worlds by a public seed."""

    def __init__(self, inputs: TrainingInputs, assignment: Assignment, num_worlds: int, seed: int) -> None:
        self._inputs, self._assignment, self._seed = inputs, assignment, seed
        self._membership = Membership(
            assign_units(assignment, inputs.units.num_units, num_worlds, seed),
            inputs.units.unit_of_record,
            inputs.record_hashes,
        )
        self._schedule = inputs.schedule(self._membership.record_members)

    def identity(self) -> dict[str, Any]:
        """See `WorldLayout`."""
        return {"membership_seed": self._seed, "assignment": self._assignment.value}

    def num_targets(self, worlds: slice = slice(None)) -> int:
        """See `WorldLayout`."""
        return self._inputs.num_targets(self._schedule, worlds)

    def begin(self, work: Path, full: MultiWorldTrainer) -> tuple[MultiWorldTrainer, StepSchedule]:
        """See `WorldLayout`."""
        return full, self._schedule

    def write(self, out: Path) -> None:
        """See `WorldLayout`."""
        write_membership(out / MEMBERSHIP_NAME, self._membership)


class PlacesLayout:
    """Units in places that the operating system draws.

    Raises:
        CorpusError: there are more units than places.
    """

    def __init__(self, inputs: TrainingInputs, capacity: Capacity) -> None:
        require_room(capacity, inputs.units.num_units)
        self._inputs, self._capacity = inputs, capacity
        self._unit_places: UnitPlaces | None = None

    def identity(self) -> dict[str, Any]:
        """See `WorldLayout`."""
        return {
            "assignment": Assignment.PLACES.value,
            "places": self._capacity.places,
            "unit_records": self._capacity.records,
        }

    def num_targets(self, worlds: slice = slice(None)) -> int:
        """See `WorldLayout`; every slot counts as full, since it is computed as if it were."""
        empty = np.zeros((self._capacity.num_worlds, self._capacity.slots), dtype=np.bool_)
        return self._schedule(empty).num_targets(self._inputs.max_tokens, worlds)

    def begin(self, work: Path, full: MultiWorldTrainer) -> tuple[MultiWorldTrainer, StepSchedule]:
        """See `WorldLayout`."""
        inputs, path = self._inputs, work / PLACES_NAME
        if path.is_file():
            self._unit_places, _ = read_places(path, self._capacity)
        else:
            self._unit_places = draw_places(self._capacity, inputs.units.num_units, inputs.units.unit_of_record)
            write_places(path, self._unit_places, inputs.record_hashes)
        record_of_slot = self._unit_places.record_of_slot
        texts = SlottedTexts.of(inputs.texts, record_of_slot, inputs.max_tokens)
        is_filled = (record_of_slot >= 0).reshape(self._capacity.num_worlds, self._capacity.slots)
        trainer = IsolatedTrainer(inputs.decoder, texts, inputs.lora, inputs.training, work / "slots.scratch")
        return trainer, self._schedule(is_filled)

    def write(self, out: Path) -> None:
        """See `WorldLayout`."""
        assert self._unit_places is not None, "begin() comes first"
        write_places(out / PLACES_NAME, self._unit_places, self._inputs.record_hashes)

    def _schedule(self, is_filled: NDArray[np.bool_]) -> SlotSchedule:
        training = self._inputs.training
        return SlotSchedule(is_filled, training.batch_size, training.epochs, training.seed)
