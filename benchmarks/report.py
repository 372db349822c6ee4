"""Results as JSON, as a table on the terminal and as the table of `docs/performance.md`."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rows import Benchmark, Measured
from reticent.errors import InvalidValueError

BEGIN, END = "<!-- begin: python -m benchmarks --write-docs -->", "<!-- end -->"
_NOTHING = "-"
_KEYS = {"started", "finished", "machine", "setting", "peaks", "rows", "curve"}

Row = dict[str, Any]


def measured_row(benchmark: Benchmark, measured: Measured, device_type: str) -> Row:
    """Make the results file's entry of a measured row."""
    ratio = measured.times.ratio
    numerator, denominator = measured.times.centres_ms
    row = _common(benchmark, device_type) | {
        "ratio": ratio,
        "holds": benchmark.holds(ratio, device_type),
        "spread": measured.times.spread,
        "limit": measured.limit,
        "unit": measured.unit,
        "centre": measured.times.centre,
        "numerator": numerator,
        "denominator": denominator,
        "numerator_samples": list(measured.times.numerator_ms),
        "denominator_samples": list(measured.times.denominator_ms),
        "notes": measured.notes,
    }
    return row | measured.extra


def failed_row(benchmark: Benchmark, reason: str, device_type: str) -> Row:
    """Make the results file's entry of a row whose parity check failed: no ratio and no time."""
    return _common(benchmark, device_type) | {"error": reason, "holds": False}


def _common(benchmark: Benchmark, device_type: str) -> Row:
    return {
        "name": benchmark.name,
        "what": benchmark.what,
        "against": benchmark.against,
        "target": benchmark.target_on(device_type),
        "direction": benchmark.direction,
        "stretch": benchmark.stretch if device_type != "cuda" else None,
    }


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Replace the results file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, json.dumps(results, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_results(path: Path) -> dict[str, Any]:
    """Read what `write_results` wrote.

    Raises:
        InvalidValueError: there is no such file, or it is something else.
    """
    remedy = "measure with `make bench` first, or name a results file with --out"
    try:
        results = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidValueError(f"no results in {path} ({error.strerror}); {remedy}") from None
    except ValueError:
        raise InvalidValueError(f"{path} is not JSON; {remedy}") from None
    if not isinstance(results, dict) or not results.keys() >= _KEYS:
        raise InvalidValueError(f"{path} holds no results of this benchmark; {remedy}")
    return results


def print_table(results: dict[str, Any], console: Console) -> None:
    """One table with everything."""
    table = Table()
    for column in ("row", "ratio", "spread", "target", "limit", "both sides", ""):
        table.add_column(column, justify="left" if column in ("row", "") else "right", no_wrap=column == "row")
    for row in results["rows"]:
        if "error" in row:
            table.add_row(row["name"], *[_NOTHING] * 5, "[bold red]wrong answer[/]")
            continue
        sides = f"{format_number(row['numerator'])} : {format_number(row['denominator'])} {row['unit']}"
        verdict = "[green]holds[/]" if row["holds"] else "[yellow]missed[/]"
        table.add_row(row["name"], *_ratio_cells(row), sides, verdict)
    console.print(_heading(results))
    console.print(table)
    if results.get("curve"):
        console.print(_curve_caption(results))
        console.print(_curve_table(results["curve"]))


def write_docs(results: dict[str, Any], path: Path) -> None:
    """Replace the text between the two marks of `docs/performance.md`.

    Raises:
        InvalidValueError: the marks are not there.
    """
    text = path.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InvalidValueError(
            f"{path} lacks the marks {BEGIN!r} and {END!r} between which the table is; restore them"
        )
    _replace(path, f"{before}{BEGIN}\n{markdown(results)}{END}{after}")


def markdown(results: dict[str, Any]) -> str:
    """The machine, the rows and the curve as Markdown."""
    lines = [f"{_heading(results)}.", ""]
    lines += ["| what | against | ratio | spread | target | limit | |", "|---|---|--:|--:|--:|--:|---|"]
    for row in results["rows"]:
        if "error" in row:
            cells = " | ".join((_NOTHING, _NOTHING, _target(row), _NOTHING))
            lines.append(f"| {row['what']} | {row['against']} | {cells} | wrong answer |")
            continue
        cells = " | ".join(_ratio_cells(row))
        verdict = "holds" if row["holds"] else "**missed**"
        lines.append(f"| {row['what']} | {row['against']} | {cells} | {verdict} |")
    notes = [f"- {row['what']}: {row['notes']}." for row in results["rows"] if row.get("notes")]
    if notes:
        lines += ["", *notes]
    if results.get("curve"):
        lines += ["", *_curve_markdown(results)]
    return "\n".join(lines) + "\n"


def format_number(value: float) -> str:
    """Three significant digits, without an exponent where that is short."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}" if decimals < 6 else f"{value:.2e}"


def timestamp() -> str:
    """The time now, as all results give it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _replace(path: Path, text: str) -> None:
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text, "utf-8")
    scratch.replace(path)


def _ratio_cells(row: Row) -> Sequence[str]:
    limit = _NOTHING if row["limit"] is None else format_number(row["limit"])
    return format_number(row["ratio"]), format_number(row["spread"]), _target(row), limit


def _target(row: Row) -> str:
    sign = "≤" if row["direction"] == "<=" else "≥"
    target = row["target"]
    words = f"1/{1 / target:.0f}" if target < 0.1 and abs(1 / target - round(1 / target)) < 1e-9 else f"{target:g}"
    return f"{sign} {words}" + (f" ({row['stretch']:g})" if row.get("stretch") else "")


def _heading(results: dict[str, Any]) -> str:
    machine, setting = results["machine"], results["setting"]
    place = machine["accelerator"] or f"{machine['processor']}, {machine['threads']} threads"
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("torch", "transformers", "peft"))
    base = f"{Path(setting['model']).name}, {setting['num_worlds']} worlds, {setting['dtype']}"
    peaks = results["peaks"]
    measured = (
        f"{peaks['step_flops'] / 1e9:.0f} GFLOP/s at {setting['num_worlds'] + 1} rows, "
        f"{peaks['many_flops'] / 1e9:.0f} at many, {peaks['bytes_read'] / 1e9:.0f} GB/s from memory"
    )
    smoke = "A trial run, whose sizes say nothing about speed: " if setting["smoke"] else ""
    return f"{smoke}{base}; {place}; {measured}; {versions}; {results['finished'] or 'unfinished'}"


_POINT_NUMBERS = ("step_ms", "alone_ms", "times_one_request", "spread", "tokens_per_second")
_CURVE_COLUMNS = ("worlds", "context", "requests", "ms a step", "ms of one alone", "ratio", "spread", "tokens/s", "")


def _curve_rows(points: Sequence[Row]) -> list[list[str]]:
    rows = []
    for point in points:
        place = [str(point[key]) for key in ("worlds", "context", "requests")]
        numbers = [format_number(point[key]) if key in point else _NOTHING for key in _POINT_NUMBERS]
        rows.append([*place, *numbers, point.get("skipped", "")])
    return rows


def _curve_caption(results: dict[str, Any]) -> str:
    """Say when the curve was measured, and if in the run of the rows: two runs are never joined in silence."""
    what = "One step of several requests, and of one alone in turn with it"
    times = sorted(point["measured"] for point in results["curve"] if "measured" in point)
    if not times:
        return f"{what}; when it was measured is not recorded"
    first, last = (datetime.fromisoformat(time) for time in (times[0], times[-1]))
    began, ended = results["started"], results["finished"]
    same_run = datetime.fromisoformat(began) <= first and (ended is None or last <= datetime.fromisoformat(ended))
    apart = "" if same_run else f", not in the run of the rows above, {began} to {ended or 'its end'}"
    return f"{what}; measured from {times[0]} to {times[-1]}{apart}"


def _curve_table(points: Sequence[Row]) -> Table:
    table = Table()
    for column in _CURVE_COLUMNS:
        table.add_column(column, justify="right" if column else "left")
    for row in _curve_rows(points):
        table.add_row(*row)
    return table


def _curve_markdown(results: dict[str, Any]) -> list[str]:
    columns = _CURVE_COLUMNS
    lines = [f"{_curve_caption(results)}.", "", f"| {' | '.join(columns)} |", f"|{'--:|' * (len(columns) - 1)}---|"]
    return lines + [f"| {' | '.join(row)} |" for row in _curve_rows(results["curve"])]
