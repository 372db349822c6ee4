"""Progress of a benchmark's grid on standard error: one bar over the cells with the time left, one within the cell."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from reticent.cli.output import notes

if TYPE_CHECKING:
    from reticent.benchmark.records import CellRecord


class GridBars:
    """Implements `benchmark.grid.GridProgress`; where no one watches, a line for each cell that ends."""

    def __init__(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} / {task.total:,.0f} {task.fields[unit]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=notes,
            disable=not notes.is_terminal,
        )
        self._grid: TaskID | None = None
        self._phase: TaskID | None = None
        self._number = self._total = 0
        self._began = time.monotonic()
        self._num_run = 0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def note(self, line: str) -> None:
        """Say one thing worth knowing; only to whoever watches, as thirty cells repeat it."""
        if notes.is_terminal:
            notes.print(line, highlight=False, markup=False, style="dim")

    def begin(self, what: str, num_tokens: int) -> None:
        """Start a phase of the cell."""
        if self._phase is not None:
            self._bars.remove_task(self._phase)
        self._phase = self._bars.add_task(f"  {what}", total=max(num_tokens, 1), unit="tokens", left="")

    def advance(self, num_tokens: int) -> None:
        """So many more tokens of the phase are done."""
        if self._phase is not None:
            self._bars.advance(self._phase, num_tokens)

    def begin_cell(self, name: str, number: int, total: int) -> None:
        """A cell begins."""
        self._number, self._total = number, total
        if self._grid is None:
            self._grid = self._bars.add_task(name, total=total, unit="cells", left="")
        self._bars.update(self._grid, description=name)

    def end_cell(self, record: "CellRecord", reused: bool) -> None:
        """A cell ended: say how, and how long the rest will take at the pace of the cells run so far."""
        self._num_run += not reused
        left = self._time_left()
        if self._grid is not None:
            self._bars.update(self._grid, completed=self._number, left=left)
        how = "finished before" if reused else f"{record.state} in {record.seconds:.0f} s"
        line = f"[{self._number}/{self._total}] {record.name}: {how}{f', {left}' if left else ''}"
        notes.print(line, highlight=False, markup=False, soft_wrap=True)
        if record.error is not None:
            notes.print(f"    {record.error}", highlight=False, markup=False, soft_wrap=True)

    def _time_left(self) -> str:
        cells_left = self._total - self._number
        if not self._num_run or not cells_left:
            return ""
        minutes = (time.monotonic() - self._began) / self._num_run * cells_left / 60
        return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"
