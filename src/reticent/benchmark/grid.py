"""A benchmark's grid, run cell by cell: each cell alone, resumable, and without power to stop the others.

    OUT/data/NAME/        each data set's texts
    OUT/models/NAME/      tiny models, where the grid has them
    OUT/signals/          what models said of texts, shared by all cells: a reference scores a text once
    OUT/cells/NAME/       one adapted model and its audit
    OUT/report.*          the whole grid

A run that was stopped resumes with the first cell that is not finished; a cell that failed is tried again. The folder
holds the texts, and models adapted on them: treat it as private as they are.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from reticent._files import atomic_write_bytes, sha256_of_file
from reticent._records import package_versions
from reticent.auditing.results import AuditResult
from reticent.benchmark.data import PreparedData, TextMaker, prepare_data
from reticent.benchmark.records import (
    RESULT_NAME,
    CellFacts,
    CellRecord,
    CellState,
    begin_cell,
    find_finished_cell,
    source_revision,
    write_cell_record,
)
from reticent.benchmark.settings import Grid, GridCell
from reticent.errors import ReticentError, StorageError
from reticent.protocols import Progress


class GridProgress(Progress, Protocol):
    """Progress reports of a grid: its cells, and within each the tokens of its phases."""

    def begin_cell(self, name: str, number: int, total: int) -> None:
        """A cell begins, the `number`-th of `total`, counted from 1."""
        ...

    def end_cell(self, record: CellRecord, reused: bool) -> None:
        """A cell ended; `reused` if it was finished before."""
        ...


@dataclass(frozen=True)
class CellWork:
    """The inputs of a cell.

    Attributes:
        cell: which one.
        grid: its grid.
        corpus: the data set's texts, members and non-members together.
        folder: the cell's own folder.
        shared: OUT, with the signals and tiny models that cells share.
    """

    cell: GridCell
    grid: Grid
    corpus: Path
    folder: Path
    shared: Path


CellRunner = Callable[[CellWork, Progress], tuple[AuditResult, CellFacts]]


@dataclass(frozen=True)
class GridRequest:
    """A grid to run, and where.

    Attributes:
        grid: the grid.
        out: the folder it is run in.
        data_folder: where the grid's relative paths are looked for.
        makers: what makes texts for data sets that are `made`.
    """

    grid: Grid
    out: Path
    data_folder: Path | None
    makers: Mapping[str, TextMaker]


def run_grid(request: GridRequest, run_cell: CellRunner, progress: GridProgress) -> tuple[CellRecord, ...]:
    """Run every cell that is not finished, and return the records of all, in the grid's order.

    Args:
        request: what to run, and where.
        run_cell: makes one cell.
        progress: notified of cells as they begin and end.

    Raises:
        StorageError: the folder, or a cell's record, cannot be written.
    """
    cells = tuple(request.grid.cells())
    records: list[CellRecord] = []
    prepared: dict[str, PreparedData | ReticentError] = {}
    for number, cell in enumerate(cells, start=1):
        if cell.dataset.name not in prepared:
            prepared[cell.dataset.name] = _prepare_data(request, cell)
        data = prepared[cell.dataset.name]
        settings = request.grid.cell_settings(cell)
        folder = request.out / "cells" / cell.name
        earlier = None if isinstance(data, ReticentError) else find_finished_cell(folder, settings, data.sha256)
        progress.begin_cell(cell.name, number, len(cells))
        record = earlier or _run(request, cell, folder, data, run_cell, progress)
        progress.end_cell(record, reused=earlier is not None)
        records.append(record)
    return tuple(records)


def _prepare_data(request: GridRequest, cell: GridCell) -> PreparedData | ReticentError:
    """The texts of a cell's data set, or the error that makes its cells, and no others, fail."""
    count = request.grid.members + request.grid.nonmembers
    folder = request.out / "data" / cell.dataset.name
    try:
        return prepare_data(cell.dataset, count, folder, request.data_folder, request.makers)
    except StorageError:
        raise
    except ReticentError as error:
        return error


def _run(
    request: GridRequest,
    cell: GridCell,
    folder: Path,
    data: PreparedData | ReticentError,
    run_cell: CellRunner,
    progress: Progress,
) -> CellRecord:
    began, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    facts, error, digest = None, None, None
    settings = request.grid.cell_settings(cell)
    begin_cell(folder, settings, None if isinstance(data, ReticentError) else data.sha256)
    try:
        if isinstance(data, ReticentError):
            raise data
        result, facts = run_cell(CellWork(cell, request.grid, data.corpus, folder, request.out), progress)
        atomic_write_bytes(folder / RESULT_NAME, (result.model_dump_json(indent=2) + "\n").encode())
        digest = sha256_of_file(folder / RESULT_NAME)
    except Exception as problem:  # noqa: BLE001 - one cell's defect must not lose the others
        error = _describe_error(problem)
    record = CellRecord(
        name=cell.name,
        state=CellState.DONE if error is None else CellState.FAILED,
        settings=settings,
        data_sha256=None if isinstance(data, ReticentError) else data.sha256,
        facts=facts,
        error=error,
        began=began,
        seconds=time.monotonic() - clock,
        revision=source_revision(),
        versions=package_versions(),
        result_sha256=digest,
    )
    write_cell_record(folder, record)
    return record


def _describe_error(problem: Exception) -> str:
    """An error a user can repair in its own words; a defect by type and place, as its message might quote a text."""
    if isinstance(problem, ReticentError):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-6:]))
    return f"{type(problem).__name__} at {places}"
