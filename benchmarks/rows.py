"""A row of the table: what is compared with what, its target, and what measuring it gave."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.timing import Paired
from benchmarks.workspace import Workspace

Direction = Literal["<=", ">="]


@dataclass(frozen=True)
class Measured:
    """The outcome of a row's measurement.

    Attributes:
        times: of both sides, already scaled to the same amount of work.
        limit: the ratio that operations and bytes allow at best, against the peer as measured; None where they say
            nothing of use.
        unit: of the two sides; memory is in MiB.
        notes: what a reader must know to judge the ratio.
        extra: further numbers for the results file.
    """

    times: Paired
    limit: float | None
    unit: str = "ms"
    notes: str = ""
    extra: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """One row.

    Attributes:
        name: short and stable.
        what, against: the two sides, in words.
        target, direction: what the ratio is to be.
        run: checks parity, then measures; raises `ParityError` without measuring.
        weight: about how many seconds it takes on two cores, for the time left.
        stretch: a further aim.
        cuda_target: the target on a GPU; None for rows that run on processors only.
    """

    name: str
    what: str
    against: str
    target: float
    direction: Direction
    run: Callable[[Workspace], Measured]
    weight: float
    stretch: float | None = None
    cuda_target: float | None = None

    def target_on(self, device_type: str) -> float:
        """The target on a kind of device."""
        return self.target if device_type != "cuda" or self.cuda_target is None else self.cuda_target

    def holds(self, ratio: float, device_type: str) -> bool:
        """True if a ratio meets the target."""
        target = self.target_on(device_type)
        return ratio <= target if self.direction == "<=" else ratio >= target
