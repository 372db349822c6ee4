"""Reports as files: one self-contained HTML page, Markdown, CSV for each table, and JSON.

The HTML asks for nothing else: style and figures are inline, there is no script, and every value is escaped. It is set
for light and dark screens and for print.
"""

import csv
import io
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reticent._files import atomic_write_bytes
from reticent.auditing.results import AuditResult
from reticent.errors import StorageError
from reticent.reports.audit import audit_report
from reticent.reports.model import Block, Cell, Facts, Figure, Paragraph, Reference, Report, Table
from reticent.reports.plots import svg_of
from reticent.stats.estimate import Estimate

_FIGURES = Figure.__args__


def render_html(report: Report) -> str:
    """A report as one HTML page."""
    return _environment().get_template("report.html.jinja").render(report=report, confidence=_confidences(report))


def render_markdown(report: Report) -> str:
    """A report as Markdown, its figures by their descriptions."""
    parts = [f"# {_inline(report.title)}", f"Made {report.created}."]
    if report.warnings:
        parts.append("\n".join(["**Warnings**", "", *(f"- {_inline(warning)}" for warning in report.warnings)]))
    for section in report.sections:
        parts.append(f"## {_inline(section.title)}")
        parts.extend(_markdown_block(block) for block in section.blocks)
    return "\n\n".join(parts) + "\n"


def render_csv(table: Table) -> str:
    """A table as CSV (RFC 4180), in full precision; a column of estimates becomes three: value, low end, high end."""
    is_estimate = [any(isinstance(row[index], Estimate) for row in table.rows) for index in range(len(table.columns))]
    header: list[str] = []
    for column, spread in zip(table.columns, is_estimate, strict=True):
        header += [column, f"{column} low", f"{column} high"] if spread else [column]
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(header)
    for row in table.rows:
        fields: list[object] = []
        for cell, spread in zip(row, is_estimate, strict=True):
            fields += _csv_fields(cell, spread)
        writer.writerow(fields)
    return stream.getvalue()


def write_report(report: Report, folder: Path) -> None:
    """Write `report.html`, `report.md`, `report.json` and `tables/NAME.csv` into a folder, each durably.

    Raises:
        StorageError: a file cannot be written.
    """
    _write_renderings(report, folder)
    atomic_write_bytes(folder / "report.json", (report.model_dump_json(indent=2) + "\n").encode())


def write_audit_report(result: AuditResult, folder: Path) -> None:
    """Write `report.html`, `report.md` and `tables/NAME.csv` of an audit; its JSON is the `AuditResult` itself.

    Raises:
        StorageError: a file cannot be written.
    """
    _write_renderings(audit_report(result), folder)


def cell_text(cell: Cell) -> str:
    """A cell as people read it: estimates with their interval, numbers to four significant digits."""
    if isinstance(cell, Estimate):
        return f"{_number(cell.value)} [{_number(cell.low)}, {_number(cell.high)}]"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell


def _number(value: float) -> str:
    return f"{value:.3f}"


def _write_renderings(report: Report, folder: Path) -> None:
    try:
        (folder / "tables").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write into {folder}: {error.strerror or error}; check its permissions") from None
    atomic_write_bytes(folder / "report.html", render_html(report).encode())
    atomic_write_bytes(folder / "report.md", render_markdown(report).encode())
    for table in report.tables:
        atomic_write_bytes(folder / "tables" / f"{table.name}.csv", render_csv(table).encode())


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reticent.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell_text
    environment.filters["number"] = _number
    environment.tests["estimate"] = lambda cell: isinstance(cell, Estimate)
    environment.tests["number_cell"] = lambda cell: isinstance(cell, Estimate | int | float)
    # The only markup that is not escaped: drawings, whose texts matplotlib has escaped.
    environment.filters["svg"] = lambda figure, identifier: Markup(svg_of(figure, identifier))  # noqa: S704
    return environment


def _confidences(report: Report) -> tuple[str, ...]:
    """The confidence levels that intervals in tables have, as percentages."""
    cells = (cell for table in report.tables for row in table.rows for cell in row)
    levels = {cell.confidence for cell in cells if isinstance(cell, Estimate)}
    return tuple(f"{100 * level:g} %" for level in sorted(levels))


def _csv_fields(cell: Cell, spread: bool) -> list[object]:
    if isinstance(cell, Estimate):
        return [repr(cell.value), repr(cell.low), repr(cell.high)]
    value = "" if cell is None else repr(cell) if isinstance(cell, float) else cell
    return [value, "", ""] if spread else [value]


def _markdown_block(block: Block) -> str:
    match block:
        case Paragraph():
            return _inline(block.text)
        case Reference():
            return f"[{_inline(block.name)}]({block.url})"
        case Facts():
            return "\n".join(f"- {_inline(name)}: {_inline(value)}" for name, value in block.rows)
        case Table():
            return _markdown_table(block)
        case _:
            return f"*Figure: {_inline(block.title)}. {_inline(block.description)}*"


def _markdown_table(table: Table) -> str:
    def line(cells: Any) -> str:
        return "| " + " | ".join(_inline(cell).replace("|", "\\|") for cell in cells) + " |"

    rows = [line(table.columns), line("---" for _ in table.columns)]
    rows += [line(cell_text(cell) for cell in row) for row in table.rows]
    note = f"\n\n{_inline(table.note)}" if table.note else ""
    return f"**{_inline(table.title)}**\n\n" + "\n".join(rows) + note


def _inline(text: str) -> str:
    """Text on one line, with what Markdown would read as markup escaped."""
    escaped = "".join(f"\\{character}" if character in "\\`*_[]<>#" else character for character in text)
    return " ".join(escaped.split())
