"""Options of the command line and their checks.

Whatever cannot be measured as asked is refused before anything is: a `ReticentError` with the remedy, exit status 2.
`results.json` holds the published figures, so only a run of everything with all settings as published goes there.
"""

import argparse
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.rows import Benchmark
from benchmarks.workspace import SMOKE, Sizes, Workspace
from reticent.errors import InvalidValueError
from reticent.models.base import usable_device

CURVE = "curve"
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "out" / "results.json"
PARTIAL = RESULTS.with_name("partial.json")

_KINDS_OF_DEVICE = ("cpu", "cuda")
_NOT_SETTINGS = ("out", "list", "write_docs")


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    made = argparse.ArgumentParser("python -m benchmarks", description="Reticent against its peers, parity first.")
    add: Callable[..., Any] = made.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="these rows only")
    add("--list", action="store_true", help="list the rows")
    add("--repeats", type=_positive, metavar="N", help="pairs of repetitions a row; a third of it for slow rows")
    add("--model", default="smollm2-135m", help="base model, as `reticent` takes it (default: %(default)s)")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="type of the base (default: %(default)s)")
    add("--device", default="cpu", help="cpu, or cuda for the rows that --list marks and the curve (default: cpu)")
    add("--threads", type=_positive, metavar="N", help="threads of torch (default: the machine's)")
    add("--texts", type=Path, metavar="FILE", help="a corpus for the rows on auditing (default: sampled from the base)")
    add("--smoke", action="store_true", help="small sizes: shows that all rows run, says nothing about speed")
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="where the results go (default: benchmarks/out/results.json once everything is measured with the settings "
        "above as they are, else partial.json beside it)",
    )
    add("--write-docs", action="store_true", help="measure nothing; rewrite docs/performance.md from the results file")
    return made


def is_published_run(options: argparse.Namespace) -> bool:
    """True if everything is to be measured, as the published figures were."""
    published = vars(parser().parse_args([]))
    return all(value == published[name] for name, value in vars(options).items() if name not in _NOT_SETTINGS)


def results_path(options: argparse.Namespace) -> Path:
    """The final path of the results.

    Raises:
        InvalidValueError: the published results would be replaced by others, or a folder is in the way.
    """
    published = is_published_run(options)
    out: Path = options.out or (RESULTS if published else PARTIAL)
    if out.is_dir():
        raise InvalidValueError(f"--out {out}: that is a folder; name a file")
    if out.resolve() != RESULTS.resolve():
        return out
    if not published:
        raise InvalidValueError(
            f"--out {out}: that file holds the published figures, which only a run of everything with the published "
            f"settings replaces; name another file, or leave --out away for {PARTIAL.name}"
        )
    return RESULTS


def path_so_far(out: Path) -> Path:
    """The path of results while more are measured: published ones stay until there is as much to replace them."""
    return PARTIAL if out == RESULTS else out


def chosen_rows(options: argparse.Namespace, benchmarks: Sequence[Benchmark]) -> tuple[list[Benchmark], bool]:
    """The rows to measure, in order, and whether the curve is among what was asked for.

    Raises:
        InvalidValueError: a name is no row's, or its row does not run on the device.
    """
    asked: Collection[str] = options.only
    names = [*(benchmark.name for benchmark in benchmarks), CURVE]
    unknown = sorted(set(asked) - set(names))
    if unknown:
        raise InvalidValueError(f"no row is called {', '.join(unknown)}; --list shows all")
    runnable = [b for b in benchmarks if b.cuda_target is not None or _kind(options.device) != "cuda"]
    runnable_names = [*(benchmark.name for benchmark in runnable), CURVE]
    left_out = [name for name in names if name in asked and name not in runnable_names]
    if left_out:
        raise InvalidValueError(
            f"{', '.join(left_out)}: on a processor only; a GPU can run {', '.join(runnable_names)}. Leave away "
            "--device, or name others"
        )
    return [b for b in runnable if not asked or b.name in asked], not asked or CURVE in asked


def make_workspace(options: argparse.Namespace, scratch: Path) -> Workspace:
    """The setting of the run.

    Raises:
        InvalidValueError: there is no such device here, or rows cannot run on it.
    """
    sizes = SMOKE if options.smoke else Sizes()
    if options.repeats:
        sizes = replace(sizes, pairs=options.repeats, heavy_pairs=max(2, options.repeats // 3))
    folder = Path(options.model)
    name = str(folder.resolve()) if folder.exists() else options.model
    device = usable_device(options.device)
    if device.type not in _KINDS_OF_DEVICE:
        raise InvalidValueError(f"device {options.device!r}: rows run on {' or '.join(_KINDS_OF_DEVICE)}")
    dtype = getattr(torch, options.dtype)
    return Workspace(name, dtype, device, sizes, scratch, smoke=options.smoke, texts=options.texts)


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return int(text)
