"""Two things timed in turn, A B A B …, so that a drift of the machine meets both alike.

A step right after one of the other side finds the caches full of what that one read. Where steps are short or the sides
differ much in what they read, each side takes a block of steps in turn, and the first of a block does not count.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Action = Callable[[], object]


@dataclass(frozen=True)
class Paired:
    """Times of a numerator and a denominator, taken in pairs, in milliseconds.

    A single denominator serves all pairs where repeating it would take minutes. `centre` says whether the ratio is
    of medians, or of means where the times of one stream differ by what each token needed.
    """

    numerator_ms: tuple[float, ...]
    denominator_ms: tuple[float, ...]
    centre: Literal["median", "mean"] = "median"

    @property
    def centres_ms(self) -> tuple[float, float]:
        """The median (or mean) of each side."""
        middle = statistics.median if self.centre == "median" else statistics.fmean
        return middle(self.numerator_ms), middle(self.denominator_ms)

    @property
    def ratio(self) -> float:
        """Centre of the numerator over centre of the denominator."""
        numerator, denominator = self.centres_ms
        return numerator / denominator

    @property
    def spread(self) -> float:
        """Interquartile range of the pairs' ratios; 0 for a single pair."""
        pairs = len(self.numerator_ms)
        below = self.denominator_ms * pairs if len(self.denominator_ms) == 1 else self.denominator_ms
        ratios = [a / b for a, b in zip(self.numerator_ms, below, strict=True)]
        if pairs < 2:
            return 0.0
        first, _, third = statistics.quantiles(ratios, n=4, method="inclusive")
        return third - first

    def scale(self, numerator: float = 1.0, denominator: float = 1.0) -> "Paired":
        """The same with every time of a side multiplied, to compare times of different amounts of work."""
        return Paired(
            tuple(numerator * t for t in self.numerator_ms),
            tuple(denominator * t for t in self.denominator_ms),
            self.centre,
        )


def measure_ms(action: Action, device: torch.device | None = None) -> float:
    """Run once and return the time in milliseconds, waiting for an accelerator's queue before and after."""
    _finish(device)
    began = time.perf_counter()
    action()
    _finish(device)
    return 1e3 * (time.perf_counter() - began)


def time_in_turn(
    numerator: Action,
    denominator: Action,
    pairs: int,
    warmup: int = 1,
    device: torch.device | None = None,
    run: int = 1,
) -> Paired:
    """Time both in turn; the first `warmup` pairs of steps are not counted.

    A time is the mean of `run` steps of one side in a row; where `run` > 1, one more goes before them uncounted. Both
    sides take equally many steps.
    """
    for _ in range(warmup):
        numerator()
        denominator()
    times = [(_block_ms(numerator, run, device), _block_ms(denominator, run, device)) for _ in range(pairs)]
    above, below = zip(*times, strict=True)
    return Paired(above, below)


def steps_before(pairs: int, warmup: int, run: int) -> float:
    """Count the steps that `time_in_turn` has taken on each side before one that it counts, on average."""
    uncounted = _num_uncounted(run)
    return warmup + (pairs - 1) / 2 * (uncounted + run) + uncounted + (run - 1) / 2


def _block_ms(action: Action, run: int, device: torch.device | None) -> float:
    for _ in range(_num_uncounted(run)):
        action()
    return measure_ms(lambda: [action() for _ in range(run)], device) / run


def _num_uncounted(run: int) -> int:
    return 1 if run > 1 else 0


def best_seconds(action: Action, tries: int, device: torch.device | None = None) -> float:
    """The shortest of some runs, for a machine's peak; one run before them is not counted."""
    action()
    return min(measure_ms(action, device) for _ in range(tries)) / 1e3


def median_ms(action: Action, repeats: int, device: torch.device | None = None) -> float:
    """The median of some runs; one run before them is not counted."""
    action()
    times: Sequence[float] = [measure_ms(action, device) for _ in range(repeats)]
    return statistics.median(times)


def _finish(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
