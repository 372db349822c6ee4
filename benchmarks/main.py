"""The command line: which rows, on what, and where the results go.

Exit status: 0 if every answer was right, whether or not each target was met; 1 if an answer was wrong; 2 for a wrong
option; 130 if interrupted. The results file is written after every row, so what was measured stays; the published one
is replaced only when everything is measured.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from benchmarks import (
    auditing,
    concurrency,
    decoding,
    drafting,
    machine,
    options,
    pmixed,
    prompts,
    release,
    report,
    serving,
    storage,
    training,
)
from benchmarks.options import CURVE
from benchmarks.parity import ParityError
from benchmarks.rows import Benchmark
from benchmarks.workspace import Workspace
from reticent.errors import ReticentError

_AS_A_SERVER: tuple[Benchmark, ...] = (
    *decoding.BENCHMARKS,
    *drafting.BENCHMARKS,
    *release.BENCHMARKS,
    *prompts.BENCHMARKS,
    *storage.BENCHMARKS,
    *concurrency.BENCHMARKS,
    *serving.BENCHMARKS,
    *pmixed.BENCHMARKS,
)
_KEEPING_FREED_MEMORY: tuple[Benchmark, ...] = (*training.BENCHMARKS, *auditing.BENCHMARKS)
"""Rows whose code has the process keep what it frees, for good. A server never does, so they come last."""
BENCHMARKS = (*_AS_A_SERVER, *_KEEPING_FREED_MEMORY)
_CURVE_WEIGHT = 700.0
_FILE_WIDTH = 130

DOCS = options.ROOT / "docs" / "performance.md"

notes = Console(stderr=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for and return the exit status."""
    asked = options.parser().parse_args(arguments)
    if asked.list:
        _list_rows()
        return 0
    try:
        if asked.write_docs:
            report.write_docs(report.read_results(asked.out or options.RESULTS), DOCS)
            return 0
        out = options.results_path(asked)
        results = _measure(asked, out)
    except ReticentError as error:
        notes.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return error.exit_code
    if results is None:
        notes.print(f"interrupted; the rows measured so far are in {options.path_so_far(out)}")
        return 130
    report.print_table(results, _output())
    return _verdict(results, out)


def _measure(asked: argparse.Namespace, out: Path) -> dict[str, Any] | None:
    """Measure what was asked for; None if interrupted."""
    chosen, with_curve = options.chosen_rows(asked, BENCHMARKS)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    # The peers warn of one another's deprecations, which nobody here can act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    with tempfile.TemporaryDirectory(prefix="reticent-benchmarks-") as scratch:
        try:
            workspace = options.make_workspace(asked, Path(scratch))
            if workspace.texts is not None and any(benchmark in auditing.BENCHMARKS for benchmark in chosen):
                workspace.corpus_texts()  # or an error, before anything is measured
            return _Run(workspace, chosen, with_curve, out).run()
        except KeyboardInterrupt:
            return None


class _Run:
    """One run: rows in order, each written as soon as it is known."""

    def __init__(self, workspace: Workspace, chosen: Sequence[Benchmark], with_curve: bool, out: Path) -> None:
        self._workspace, self._out = workspace, out
        self._so_far = options.path_so_far(out)
        self._chosen, self._with_curve = chosen, with_curve
        self._done_weight, self._began = 0.0, time.monotonic()
        self._total_weight = sum(b.weight for b in chosen) + _CURVE_WEIGHT * with_curve
        self._results: dict[str, Any] = {
            "started": report.timestamp(),
            "finished": None,
            "machine": machine.description(workspace.device),
            "setting": {
                "model": workspace.model_name,
                "dtype": str(workspace.dtype).removeprefix("torch."),
                "device": str(workspace.device),
                "smoke": workspace.smoke,
                **asdict(workspace.sizes),
            },
            "peaks": asdict(workspace.peaks),
            "rows": [],
            "curve": None,
        }

    def run(self) -> dict[str, Any]:
        """Measure everything chosen and return the results."""
        for benchmark in self._chosen:
            if benchmark in _KEEPING_FREED_MEMORY:
                self._curve()
            self._say(f"{len(self._results['rows']) + 1}/{len(self._chosen)} {benchmark.name}")
            self._results["rows"].append(self._row(benchmark))
            self._advance(benchmark.weight)
        self._curve()
        self._results["finished"] = report.timestamp()
        report.write_results(self._out, self._results)
        return self._results

    def _curve(self) -> None:
        """The curve, if it is wanted and not measured yet."""
        if not self._with_curve or self._results["curve"] is not None:
            return
        self._say("curve of worlds, requests and contexts")
        self._workspace.forget_peers()
        concurrency.curve(self._workspace, self._keep_curve)
        self._advance(_CURVE_WEIGHT)

    def _keep_curve(self, points: list[dict[str, object]]) -> None:
        self._results["curve"] = points
        report.write_results(self._so_far, self._results)

    def _row(self, benchmark: Benchmark) -> report.Row:
        device_type = self._workspace.device.type
        try:
            return report.measured_row(benchmark, benchmark.run(self._workspace), device_type)
        except ParityError as error:
            notes.print(f"[red]wrong answer[/] in {benchmark.name}: {escape(str(error))}")
            return report.failed_row(benchmark, str(error), device_type)

    def _advance(self, weight: float) -> None:
        self._done_weight += weight
        report.write_results(self._so_far, self._results)

    def _say(self, what: str) -> None:
        left = ""
        if self._done_weight:
            seconds = (time.monotonic() - self._began) * (self._total_weight / self._done_weight - 1)
            left = f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"
        notes.print(f"{what}{left}")


def _verdict(results: dict[str, Any], out: Path) -> int:
    wrong = [row["name"] for row in results["rows"] if "error" in row]
    missed = [row["name"] for row in results["rows"] if "error" not in row and not row["holds"]]
    if missed:
        notes.print(f"target missed: {', '.join(missed)}")
    if wrong:
        notes.print(f"[red]wrong answer, so not timed:[/] {', '.join(wrong)}")
    notes.print(f"results in {out}")
    return 1 if wrong else 0


def _list_rows() -> None:
    console = _output()
    for benchmark in BENCHMARKS:
        also = "" if benchmark.cuda_target is None else "; also on cuda"
        console.print(f"{benchmark.name:28} {benchmark.what}, against {benchmark.against}{also}", soft_wrap=True)
    console.print(f"{CURVE:28} a step's time for worlds, requests and contexts; also on cuda", soft_wrap=True)


def _output() -> Console:
    console = Console(highlight=False)
    # Rich takes 80 columns where no one watches, too few for the table.
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)
