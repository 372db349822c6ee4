"""The command line: which rows, on what, and where the results go.

Exit status: 0 if every answer was right, whether or not each target was met; 1 if an answer was wrong; 2 for a wrong
option; 130 if interrupted. The results file is written after every row, so what was measured stays.
"""

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import (
    auditing,
    concurrency,
    decoding,
    machine,
    pmixed,
    prompts,
    release,
    report,
    serving,
    storage,
    training,
)
from benchmarks.parity import ParityError
from benchmarks.rows import Benchmark
from benchmarks.workspace import SMOKE, Sizes, Workspace
from reticent.errors import ReticentError

BENCHMARKS: tuple[Benchmark, ...] = (
    *decoding.BENCHMARKS,
    *release.BENCHMARKS,
    *prompts.BENCHMARKS,
    *training.BENCHMARKS,
    *storage.BENCHMARKS,
    *concurrency.BENCHMARKS,
    *serving.BENCHMARKS,
    *pmixed.BENCHMARKS,
    *auditing.BENCHMARKS,
)
CURVE = "curve"
_CURVE_WEIGHT = 700.0
_FILE_WIDTH = 130

_ROOT = Path(__file__).resolve().parents[1]
RESULTS = _ROOT / "benchmarks" / "out" / "results.json"
PARTIAL = RESULTS.with_name("partial.json")
DOCS = _ROOT / "docs" / "performance.md"

notes = Console(stderr=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list:
        _list_rows()
        return 0
    if options.write_docs:
        report.write_docs(json.loads((options.out or RESULTS).read_text("utf-8")), DOCS)
        return 0
    names = [benchmark.name for benchmark in BENCHMARKS] + [CURVE]
    unknown = sorted(set(options.only) - set(names))
    if unknown:
        parser.error(f"no row is called {', '.join(unknown)}; --list shows all")
    if options.threads:
        torch.set_num_threads(options.threads)
    wanted = set(options.only or names)
    # The peers warn of one another's deprecations, which nobody here can act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    out: Path = options.out or (PARTIAL if options.only or options.smoke else RESULTS)
    with tempfile.TemporaryDirectory(prefix="reticent-benchmarks-") as scratch:
        try:
            workspace = _workspace(options, Path(scratch))
            results = _Run(workspace, wanted, out).run()
        except ReticentError as error:
            notes.print(f"[red]error:[/] {error}")
            return error.exit_code
        except KeyboardInterrupt:
            notes.print(f"interrupted; the rows measured so far are in {out}")
            return 130
    report.print_table(results, _output())
    return _verdict(results, out)


class _Run:
    """One run: rows in order, each written as soon as it is known."""

    def __init__(self, workspace: Workspace, wanted: set[str], out: Path) -> None:
        on_gpu = workspace.device.type == "cuda"
        self._workspace, self._out = workspace, out
        self._chosen = [b for b in BENCHMARKS if b.name in wanted and (b.cuda_target is not None or not on_gpu)]
        self._with_curve = CURVE in wanted
        self._done_weight, self._began = 0.0, time.monotonic()
        self._total_weight = sum(b.weight for b in self._chosen) + _CURVE_WEIGHT * self._with_curve
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
        for number, benchmark in enumerate(self._chosen, start=1):
            self._say(f"{number}/{len(self._chosen)} {benchmark.name}")
            self._results["rows"].append(self._row(benchmark))
            self._done(benchmark.weight)
        if self._with_curve:
            self._say("curve of worlds, requests and contexts")
            self._workspace.forget_peers()
            concurrency.curve(self._workspace, self._keep_curve)
            self._done(_CURVE_WEIGHT)
        self._results["finished"] = report.timestamp()
        report.write_results(self._out, self._results)
        return self._results

    def _keep_curve(self, points: list[dict[str, object]]) -> None:
        self._results["curve"] = points
        report.write_results(self._out, self._results)

    def _row(self, benchmark: Benchmark) -> report.Row:
        device_type = self._workspace.device.type
        try:
            return report.measured_row(benchmark, benchmark.run(self._workspace), device_type)
        except ParityError as error:
            notes.print(f"[red]wrong answer[/] in {benchmark.name}: {error}")
            return report.failed_row(benchmark, str(error), device_type)

    def _done(self, weight: float) -> None:
        self._done_weight += weight
        report.write_results(self._out, self._results)

    def _say(self, what: str) -> None:
        left = ""
        if self._done_weight:
            seconds = (time.monotonic() - self._began) * (self._total_weight / self._done_weight - 1)
            left = f", about {seconds / 60:.0f} min left" if seconds >= 90 else f", about {seconds:.0f} s left"
        notes.print(f"{what}{left}")


def _workspace(options: argparse.Namespace, scratch: Path) -> Workspace:
    sizes = SMOKE if options.smoke else Sizes()
    if options.repeats:
        sizes = replace(sizes, pairs=options.repeats, heavy_pairs=max(2, options.repeats // 3))
    folder = Path(options.model)
    name = str(folder.resolve()) if folder.exists() else options.model
    dtype = getattr(torch, options.dtype)
    device = torch.device(options.device)
    return Workspace(name, dtype, device, sizes, scratch, smoke=options.smoke, texts=options.texts)


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
        console.print(f"{benchmark.name:28} {benchmark.what}, against {benchmark.against}", soft_wrap=True)
    console.print(f"{CURVE:28} a step's time for worlds, requests and contexts", soft_wrap=True)


def _output() -> Console:
    console = Console(highlight=False)
    # Rich takes 80 columns where no one watches, too few for the table.
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description="Reticent against its peers, parity first.")
    add: Callable[..., Any] = parser.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="these rows only; results go to partial.json")
    add("--list", action="store_true", help="list the rows")
    add("--repeats", type=_positive, metavar="N", help="pairs of repetitions a row; a third of it for slow rows")
    add("--model", default="smollm2-135m", help="base model, as `reticent` takes it (default: %(default)s)")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="type of the base (default: %(default)s)")
    add("--device", default="cpu", help="cpu, or cuda for the decode rows (default: %(default)s)")
    add("--threads", type=_positive, metavar="N", help="threads of torch (default: the machine's)")
    add("--texts", type=Path, metavar="FILE", help="a corpus for the rows on auditing (default: sampled from the base)")
    add("--smoke", action="store_true", help="small sizes: shows that all rows run, says nothing about speed")
    add("--out", type=Path, metavar="FILE", help="where the results go (default: benchmarks/out/results.json)")
    add("--write-docs", action="store_true", help="measure nothing; rewrite docs/performance.md from the results file")
    return parser
