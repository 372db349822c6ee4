"""The schedule of training: the records of each world in each step, from membership, seed and batch size alone.

Every world takes the same number of steps an epoch and sees each of its records once an epoch. All worlds follow one
public order of the corpus, each skipping what it does not hold; worlds that share records thus meet them at about the
same time, which keeps worlds alike where their data is alike.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_ORDER_STREAM = 1
_WARMUP_SHARE = 0.05


class StepSchedule(Protocol):
    """The records that worlds take, step by step."""

    @property
    def num_worlds(self) -> int:
        """The number of worlds."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps over all epochs."""
        ...

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch."""
        ...

    def batch(self, step: int, worlds: slice) -> NDArray[np.int64]:
        """Record numbers that each of some worlds takes in a step, int64[G, B]; −1 where it takes none."""
        ...


@dataclass(frozen=True)
class Schedule:
    """Steps of training for several worlds.

    Attributes:
        members: record-world membership, bool[num_records, M].
        batch_size: about how many records of each world a step takes.
        epochs: passes over each world's records.
        seed: orders the records.
        steps_per_epoch: the same for every world.
    """

    members: NDArray[np.bool_]
    batch_size: int
    epochs: int
    seed: int
    steps_per_epoch: int

    @property
    def num_worlds(self) -> int:
        """The number of worlds."""
        return int(self.members.shape[1])

    @property
    def num_steps(self) -> int:
        """Steps over all epochs."""
        return self.epochs * self.steps_per_epoch

    def batch(self, step: int, worlds: slice) -> NDArray[np.int64]:
        """Record numbers that each of some worlds takes in a step, int64[G, B]; −1 pads shorter batches."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order = record_order(len(self.members), epoch, self.seed)
        parts = []
        for held in self.members[order, worlds].T:
            records = order[held]
            first, last = (len(records) * p // self.steps_per_epoch for p in (position, position + 1))
            parts.append(records[first:last])
        batch = np.full((len(parts), max(map(len, parts))), -1, dtype=np.int64)
        for row, part in zip(batch, parts, strict=True):
            row[: len(part)] = part
        return batch


def make_schedule(members: NDArray[np.bool_], batch_size: int, epochs: int, seed: int) -> Schedule:
    """Fix the number of steps so that batches hold about `batch_size` records and none is empty."""
    sizes = members.sum(0)
    steps = max(1, min(round(float(sizes.mean()) / batch_size), int(sizes.min())))
    return Schedule(members, batch_size, epochs, seed, steps)


def record_order(num_records: int, epoch: int, seed: int) -> NDArray[np.int64]:
    """The public order in which an epoch visits the corpus."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _ORDER_STREAM, epoch])))
    return generator.permutation(num_records)


def learning_rate_at(step: int, num_steps: int, peak: float) -> float:
    """The learning rate of a step, from 0: rising over the first twentieth of the steps, then falling linearly to 0."""
    warmup = max(1, round(_WARMUP_SHARE * num_steps))
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (num_steps - step) / max(1, num_steps - warmup)
