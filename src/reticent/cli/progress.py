"""Progress of long work, on standard error: a bar with the time left, or a line now and then where no one watches."""

import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from reticent.cli.output import notes

_SECONDS_BETWEEN_LINES = 30.0


class WorkProgress:
    """Shows phases of work measured in tokens, or in another unit; implements `protocols.Progress`."""

    def __init__(self, unit: str = "tokens") -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} / {task.total:,.0f} " + unit),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=notes,
            disable=not notes.is_terminal,
        )
        self._task: TaskID | None = None
        self._what, self._total, self._done = "", 0, 0
        self._began = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def note(self, line: str) -> None:
        """Say one thing worth knowing."""
        notes.print(line, highlight=False, markup=False)

    def begin(self, what: str, num_tokens: int) -> None:
        """Start a phase."""
        self._what, self._total, self._done = what, num_tokens, 0
        self._began = self._last_line = time.monotonic()
        self._task = self._bar.add_task(what, total=num_tokens)

    def advance(self, num_tokens: int) -> None:
        """So many more tokens are done."""
        self._done += num_tokens
        if self._task is not None:
            self._bar.advance(self._task, num_tokens)
        now = time.monotonic()
        if not notes.is_terminal and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (now - self._began) * (self._total - self._done) / self._done
            self.note(f"{self._what}: {self._done / self._total:.0%}, about {left:.0f} s left")
