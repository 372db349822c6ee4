"""A result as files: every number as JSON, tables as Markdown, figures as SVG, each naming how to repeat it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import description
from experiments.figures import figures_as_files, markdown_with_images
from reticent._files import atomic_write_bytes
from reticent._settings import FiniteModel
from reticent.benchmark.records import source_revision
from reticent.errors import StorageError
from reticent.reports.audit import flatten_details
from reticent.reports.model import Block, Facts, Report, Section


class ResultHeader(FiniteModel):
    """The origin of a result, and what repeats it."""

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
    def now(cls, *, name: str, command: str, seed: int, size: str, domain: str, **setting: Any) -> "ResultHeader":
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
    """A script's findings.

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


def write_findings(out: Path, header: ResultHeader, findings: Findings) -> list[Path]:
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
    blocks, figures = figures_as_files(findings.blocks, stem)
    files |= figures
    files[f"{stem}.md"] = _page(header, findings, blocks)
    for name, text in files.items():
        write_file(out / name, text.encode())
    return [out / name for name in files]


def make_result_folder(path: Path) -> Path:
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
    make_result_folder(path.parent)
    atomic_write_bytes(path, data)


def _page(header: ResultHeader, findings: Findings, blocks: tuple[Block, ...]) -> str:
    facts = [("command", header.command), ("revision", header.revision or "none"), ("seed", str(header.seed))]
    facts += [("size", header.size), ("domain", header.domain)]
    facts += [(f"setting: {name}", value) for name, value in flatten_details(header.setting)]
    facts += [(f"machine: {name}", value) for name, value in flatten_details(header.machine)]
    report = Report(
        title=findings.title,
        created=header.created,
        warnings=findings.warnings,
        sections=(
            Section(title="Result", blocks=blocks),
            Section(title="How to repeat it", blocks=(Facts(rows=tuple(facts)),)),
        ),
    )
    return markdown_with_images(report)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, FiniteModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
