"""Figures of a report as separate files, for Markdown that is read beside them."""

import re
from collections.abc import Sequence
from importlib import resources

from reticent.reports.model import Block, Figure, Reference, Report
from reticent.reports.plots import svg_of
from reticent.reports.render import render_markdown

_FIGURES = Figure.__args__


def figures_as_files(blocks: Sequence[Block], stem: str, first: int = 1) -> tuple[tuple[Block, ...], dict[str, str]]:
    """Blocks with a reference in place of each figure, and the figures by file name: STEM.svg, STEM-2.svg, ….

    Args:
        blocks: what a reader sees, in order.
        stem: of the files' names.
        first: number of the first figure.
    """
    referring: list[Block] = []
    files: dict[str, str] = {}
    for block in blocks:
        if isinstance(block, _FIGURES):
            number = first + len(files)
            name = f"{stem}.svg" if number == 1 else f"{stem}-{number}.svg"
            files[name] = standalone_svg(block, name.removesuffix(".svg"))
            referring.append(Reference(name=f"{block.title}. {block.description}", url=name))
        else:
            referring.append(block)
    return tuple(referring), files


def standalone_svg(figure: Figure, identifier: str) -> str:
    """A figure as a separate file, with the colours of the reports, light and dark."""
    sheet = resources.files("reticent.reports").joinpath("templates/report.css").read_text("utf-8")
    palette = sheet.partition("* {")[0]
    style = f"<style>{palette}svg {{ color: var(--ink); font-family: system-ui, sans-serif; }}</style>"
    element = svg_of(figure, identifier)
    opening, rest = re.split(r"(?<=>)", element, maxsplit=1)
    return opening.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + style + rest + "\n"


def markdown_with_images(report: Report) -> str:
    """A report as Markdown, its references to figures as images: reports know links but no images."""
    return re.sub(r"^(\[.*\]\([^)\s]+\.svg\))$", r"!\1", render_markdown(report), flags=re.MULTILINE)
