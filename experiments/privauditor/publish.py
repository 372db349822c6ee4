"""Take the tables and heat maps of a finished grid over as files that are read without it.

    reticent benchmark cpu --data ../shared/data --out build/cpu
    python -m experiments.privauditor.publish build/cpu

Writes NAME.md, NAME.json and NAME.svg, NAME-2.svg, … beside this file. They hold figures and hashes, no text.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.figures import figures_as_files, markdown_with_images
from experiments.pac.results import write_file
from reticent.errors import InvalidValueError, ReticentError
from reticent.reports.model import Report, Section

HERE = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script."""
    parser = argparse.ArgumentParser("python -m experiments.privauditor.publish", description=__doc__)
    parser.add_argument("grid", type=Path, help="the folder that `reticent benchmark --out` made")
    parser.add_argument("--name", default="cpu", help="of the files (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the files (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        for path in publish(options.grid, options.name, options.out):
            sys.stderr.write(f"wrote {path}\n")
    except ReticentError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def publish(grid: Path, name: str, out: Path) -> list[Path]:
    """Write the report of a grid with its figures as files; returns their paths.

    Raises:
        InvalidValueError: the folder holds no report of a grid.
        StorageError: a file cannot be written.
    """
    source = grid / "report.json"
    try:
        stored = source.read_text("utf-8")
        report = Report.model_validate_json(stored)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"{source} is no report of a grid ({type(error).__name__}); name the folder that `reticent benchmark` made"
        ) from None
    files = {f"{name}.json": stored}
    sections = []
    first = 1
    for section in report.sections:
        blocks, figures = figures_as_files(section.blocks, name, first)
        sections.append(Section(title=section.title, blocks=blocks))
        files |= figures
        first += len(figures)
    files[f"{name}.md"] = markdown_with_images(report.model_copy(update={"sections": tuple(sections)}))
    for file, text in files.items():
        write_file(out / file, text.encode())
    return [out / file for file in files]


if __name__ == "__main__":
    sys.exit(main())
