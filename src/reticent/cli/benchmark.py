"""`reticent benchmark`: adapt and audit a whole grid of models, techniques and data sets, and report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.cli.output import console, facts, print_json
from reticent.errors import InterruptedRunError, ReticentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reticent.benchmark.records import CellRecord

_LETTERS_SEED = 1


class FailedCellsError(ReticentError):
    """Some cells of a grid failed; the others and the report are there."""

    exit_code = 3


def benchmark(
    grid: Annotated[
        str,
        typer.Argument(metavar="GRID", help="A grid file (TOML), or one of smoke, cpu, gain, privauditor."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for cells, texts and report; the same command resumes, and tries failed cells again."
        ),
    ],
    data: Annotated[Path | None, typer.Option(help="Folder where the grid's data files are.")] = None,
    dry_run: Annotated[bool, typer.Option("--list", help="List the cells and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Adapt and audit every cell of a grid: model x data set x technique x seed. Exit code 3: some cells failed."""
    from transformers.utils import logging as transformers_logging

    from reticent.benchmark.cell import run_cell
    from reticent.benchmark.grid import GridRequest, run_grid
    from reticent.benchmark.settings import read_grid
    from reticent.cli.grid_progress import GridBars
    from reticent.reports.grid import report_grid

    chosen = read_grid(grid)
    if dry_run:
        names = [cell.name for cell in chosen.cells()]
        print_json({"cells": names}) if as_json else console.print("\n".join(names), highlight=False, markup=False)
        return
    # Bars of other programs would break those of the grid.
    transformers_logging.disable_progress_bar()
    request = GridRequest(chosen, out, data, {"clinic-letters": _letters})
    try:
        with GridBars() as progress:
            records = run_grid(request, run_cell, progress)
    except KeyboardInterrupt:
        raise InterruptedRunError(f"the same command resumes from here ({out})") from None
    report_grid(chosen, records, out)
    _print_outcome(out, records, as_json)
    failed = [record for record in records if record.error is not None]
    if failed:
        raise FailedCellsError(
            f"{len(failed)} of {len(records)} cells failed, {failed[0].name} among them; the reasons are in "
            f"{out / 'report.html'}, and the same command tries them again"
        )


def _print_outcome(out: Path, records: "Sequence[CellRecord]", as_json: bool) -> None:
    if as_json:
        cells = {record.name: str(record.state) for record in records}
        print_json({"report": str(out / "report.html"), "cells": cells})
        return
    done = sum(record.error is None for record in records)
    console.print(facts({"cells done": f"{done} of {len(records)}", "report": str(out / "report.html")}))


def _letters(count: int) -> list[str]:
    from reticent.demo.letters import generate_letters

    return [letter.text for letter in generate_letters(count, _LETTERS_SEED)]
