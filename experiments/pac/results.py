"""A result as files: every number as JSON, tables as Markdown, figures as SVG, each naming how to repeat it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import description
from reticent._files import atomic_write_bytes
from reticent.errors import StorageError
from reticent.evaluation.grid_records import source_revision
from reticent.evaluation.text_means import Record
from reticent.reports.audit_report import flattened
from reticent.reports.model import Block, Facts, Figure, Reference, Report, Section
from reticent.reports.plots import svg_of
from reticent.reports.render import render_markdown

_FIGURES = Figure.__args__


class Header(Record):
    """How a result came about, and what repeats it."""

    name: str
    created: str
    command: str
    revision: str | None
    seed: int
    size: str
    domain: str
    setting: dict[str, Any]
    machine: dict[str, Any]

    @classmethod
    def now(cls, *, name: str, command: str, seed: int, size: str, domain: str, **setting: Any) -> "Header":
        """The header of a result that is measured here and now."""
        return cls(
            name=name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            command=command,
            revision=source_revision(),
            seed=seed,
            size=size,
            domain=domain,
            setting=setting,
            machine=description(torch.device("cpu")),
        )


@dataclass(frozen=True)
class Findings:
    """What a script found.

    Attributes:
        title: of its page.
        results: every number, as JSON knows them; records are dumped.
        blocks: what a reader sees, in order.
        warnings: what limits the numbers, most important first.
    """

    title: str
    results: Mapping[str, Any]
    blocks: tuple[Block, ...]
    warnings: tuple[str, ...] = ()


def write_result(out: Path, header: Header, findings: Findings) -> list[Path]:
    """Write NAME-DOMAIN.json, .md, and an .svg for each figure (-2, -3 … after the first); returns their paths.

    Raises:
        StorageError: a file cannot be written.
    """
    stem = f"{header.name}-{header.domain}"
    content = {
        **header.model_dump(mode="json"),
        "warnings": list(findings.warnings),
        "results": {name: _plain(value) for name, value in findings.results.items()},
    }
    files = {f"{stem}.json": json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"}
    blocks: list[Block] = []
    for block in findings.blocks:
        if isinstance(block, _FIGURES):
            number = len(files)
            name = f"{stem}.svg" if number == 1 else f"{stem}-{number}.svg"
            files[name] = standalone_svg(block, name.removesuffix(".svg"))
            blocks.append(Reference(name=f"{block.title}. {block.description}", url=name))
        else:
            blocks.append(block)
    files[f"{stem}.md"] = _page(header, findings, tuple(blocks))
    for name, text in files.items():
        write_file(out / name, text.encode())
    return [out / name for name in files]


def make_folder(path: Path) -> Path:
    """Make a folder unless it is there, and return it.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {path}: {error.strerror or error}; choose another --work or --out") from None
    return path


def write_file(path: Path, data: bytes) -> None:
    """Write a file durably, and its folder if need be.

    Raises:
        StorageError: it cannot be written.
    """
    make_folder(path.parent)
    atomic_write_bytes(path, data)


def standalone_svg(figure: Figure, identifier: str) -> str:
    """A figure as a file of its own, with the colours of the reports, light and dark."""
    sheet = resources.files("reticent.reports").joinpath("templates/report.css").read_text("utf-8")
    palette = sheet.partition("* {")[0]
    style = f"<style>{palette}svg {{ color: var(--ink); font-family: system-ui, sans-serif; }}</style>"
    element = svg_of(figure, identifier)
    opening, rest = re.split(r"(?<=>)", element, maxsplit=1)
    return opening.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + style + rest + "\n"


def _page(header: Header, findings: Findings, blocks: tuple[Block, ...]) -> str:
    facts = [("command", header.command), ("revision", header.revision or "none"), ("seed", str(header.seed))]
    facts += [("size", header.size), ("domain", header.domain)]
    facts += [(f"setting: {name}", value) for name, value in flattened(header.setting)]
    facts += [(f"machine: {name}", value) for name, value in flattened(header.machine)]
    report = Report(
        title=findings.title,
        created=header.created,
        warnings=findings.warnings,
        sections=(
            Section(title="Result", blocks=blocks),
            Section(title="How to repeat it", blocks=(Facts(rows=tuple(facts)),)),
        ),
    )
    # Reports know links but no images.
    return re.sub(r"^(\[.*\]\([^)\s]+\.svg\))$", r"!\1", render_markdown(report), flags=re.MULTILINE)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Record):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
