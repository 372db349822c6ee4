"""Figures as inline SVG, drawn by matplotlib without its global state.

Colours of text, grid and series are drawn as marks that become CSS variables of the page, so that one drawing serves
light, dark and print. Each drawing carries its title and description, has its own identifiers, and names no other
resource. The same figure gives the same bytes.
"""

import html
import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas

from reticent.reports.model import Figure, HeatMap, Histogram, IntervalChart, LineChart, Series

NUM_SERIES_COLOURS = 8
"""How many colours the style sheet has for series (`--series-0` and on); dashes tell further series apart."""

_INK, _GRID = "#010203", "#040506"
_SERIES = tuple(f"#0a0b{index:02x}" for index in range(NUM_SERIES_COLOURS))
_VARIABLES = {_INK: "currentColor", _GRID: "var(--grid)"} | {
    mark: f"var(--series-{index})" for index, mark in enumerate(_SERIES)
}
_DASHES = ("-", "--", ":", "-.")
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_WIDTH_INCHES = 7.2


def svg_of(figure: Figure, identifier: str) -> str:
    """Draw a figure as one `<svg>` element.

    Args:
        figure: what to draw.
        identifier: unique in the page; prefixes every identifier in the drawing.
    """
    with mpl.rc_context({**_STYLE, "svg.hashsalt": identifier}):
        canvas = _DRAWERS[type(figure)](figure)
        stream = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(stream, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _extract_svg_element(stream.getvalue(), figure, identifier)


def _extract_svg_element(document: str, figure: Figure, identifier: str) -> str:
    """The drawing without prolog, metadata, style rules and fonts; those of the page apply."""
    viewbox = re.search(r'viewBox="([^"]+)"', document)
    assert viewbox is not None, "matplotlib writes a viewBox"
    body = document[document.index("<svg") :].partition(">")[2]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{identifier}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{identifier}-\1)", body)
    body = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{identifier}-\1"', body)
    body = re.sub(r"font-family: [^;\"]+;? ?", "", body)
    for mark, variable in _VARIABLES.items():
        body = body.replace(mark, variable)
    names = f"{identifier}-title {identifier}-description"
    title, description = html.escape(figure.title), html.escape(figure.description)
    return (
        f'<svg viewBox="{viewbox.group(1)}" role="img" aria-labelledby="{names}">'
        f'<title id="{identifier}-title">{title}</title><desc id="{identifier}-description">{description}</desc>'
        f"{body.rstrip()}"
    )


def _canvas(height_inches: float) -> tuple[Canvas, Any]:
    canvas = Canvas(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
    canvas.patch.set_visible(False)
    axes = canvas.subplots()
    axes.patch.set_visible(False)
    return canvas, axes


def _line_style(index: int) -> dict[str, Any]:
    return {"color": _SERIES[index % NUM_SERIES_COLOURS], "linestyle": _DASHES[index // NUM_SERIES_COLOURS % 4]}


def _draw_lines(chart: LineChart) -> Canvas:
    canvas, axes = _canvas(4.6)
    # Zeros have no place on a log axis: they are drawn beyond its edge, so that the line enters from there.
    axes.set_xscale(chart.x_scale, **({"nonpositive": "clip"} if chart.x_scale == "log" else {}))
    axes.set_yscale(chart.y_scale, **({"nonpositive": "clip"} if chart.y_scale == "log" else {}))
    for index, series in enumerate(chart.series):
        _draw_series(axes, series, _line_style(index), "steps-post" if chart.steps else "default", chart.error_bars)
    if chart.diagonal:
        axes.axline((1e-6, 1e-6), (1.0, 1.0), color=_INK, linewidth=0.8, linestyle=":")
    if chart.level is not None:
        axes.axhline(chart.level, color=_INK, linewidth=0.8, linestyle=":")
    _limit_log_axes(axes, chart)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    canvas.legend(loc="outside right upper", fontsize=9)
    return canvas


def _draw_series(axes: Any, series: Series, style: dict[str, Any], drawstyle: str, error_bars: bool) -> None:
    marker = "o" if len(series.x) <= _MOST_MARKED_POINTS else None
    axes.plot(series.x, series.y, label=series.label, drawstyle=drawstyle, linewidth=1.6, marker=marker, **style)
    if series.low is None or series.high is None:
        return
    if error_bars:
        axes.vlines(series.x, series.low, series.high, color=style["color"], linewidth=1.1, alpha=0.7)
    else:
        axes.fill_between(series.x, series.low, series.high, color=style["color"], alpha=0.18, linewidth=0)


def _limit_log_axes(axes: Any, chart: LineChart) -> None:
    for scale, values, set_limit in (
        (chart.x_scale, [x for series in chart.series for x in series.x], axes.set_xlim),
        (chart.y_scale, [y for series in chart.series for y in series.y], axes.set_ylim),
    ):
        positive = [value for value in values if value > 0]
        if scale == "log" and positive:
            set_limit(min(positive) / 1.5, max(positive) * 1.1)


def _draw_histogram(histogram: Histogram) -> Canvas:
    canvas, axes = _canvas(2.9)
    for index, (label, counts) in enumerate(histogram.groups):
        colour = _line_style(index)["color"]
        axes.stairs(counts, histogram.edges, fill=True, color=colour, alpha=0.35)
        axes.stairs(counts, histogram.edges, label=label, color=colour, linewidth=1.4)
    axes.set_xlabel(histogram.x_label)
    axes.set_ylabel("texts")
    canvas.legend(loc="outside right upper", fontsize=9)
    return canvas


def _draw_heat_map(heat: HeatMap) -> Canvas:
    canvas, axes = _canvas(1.5 + 0.36 * len(heat.row_labels))
    values = np.array([[np.nan if value is None else value for value in row] for row in heat.values], dtype=float)
    colours = mpl.colormaps["cividis"]
    scale = Normalize(heat.low, heat.high, clip=True)
    image = axes.pcolormesh(np.ma.masked_invalid(values), cmap=colours, norm=scale, edgecolors=_GRID, linewidth=0.5)
    for row, cells in enumerate(values):
        for column, value in enumerate(cells):
            missing = bool(np.isnan(value))
            text = "" if missing else f"{value:.{heat.decimals}f}"
            # The cell keeps its colour in light and dark, so its text does too.
            ink = _INK if missing else "#ffffff" if scale(value) < _DARK_HALF else "#111111"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9, color=ink)
    axes.grid(visible=False)
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(heat.column_labels)) + 0.5, heat.column_labels, rotation=40, ha="right")
    axes.set_yticks(np.arange(len(heat.row_labels)) + 0.5, heat.row_labels)
    axes.tick_params(length=0)
    bar = canvas.colorbar(image, ax=axes, pad=0.02, aspect=30)
    if bar.solids is not None:
        bar.solids.set_rasterized(rasterized=False)
    return canvas


def _draw_intervals(chart: IntervalChart) -> Canvas:
    canvas, axes = _canvas(0.9 + 0.3 * len(chart.rows))
    for position, (_, estimate) in enumerate(chart.rows):
        axes.plot([estimate.low, estimate.high], [position, position], color=_SERIES[0], linewidth=2)
        axes.plot([estimate.value], [position], "o", color=_SERIES[0], markersize=5)
    if chart.reference is not None:
        axes.axvline(chart.reference, color=_INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(chart.rows)), [label for label, _ in chart.rows])
    axes.set_ylim(len(chart.rows) - 0.4, -0.6)
    axes.set_xlabel(chart.x_label)
    return canvas


_MOST_MARKED_POINTS = 12
_DARK_HALF = 0.55
_DRAWERS: dict[type, Callable[[Any], Canvas]] = {
    LineChart: _draw_lines,
    Histogram: _draw_histogram,
    HeatMap: _draw_heat_map,
    IntervalChart: _draw_intervals,
}
