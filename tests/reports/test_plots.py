import re
import xml.etree.ElementTree as ET

import pytest
from sample_audits import HOSTILE, estimate

from reticent.reports.model import HeatMap, Histogram, IntervalChart, LineChart, Series
from reticent.reports.plots import svg_of

FIGURES = {
    "lines": LineChart(
        title=f"lines {HOSTILE}",
        description="a & b",
        x_label="x <y>",
        y_label="y",
        x_scale="log",
        y_scale="log",
        steps=True,
        diagonal=True,
        level=0.5,
        series=tuple(
            Series(label=f"series {index}", x=(0, 0.1, 1), y=(0, 0.5, 1), low=(0, 0.4, 1), high=(0.1, 0.6, 1))
            for index in range(9)
        ),
    ),
    "histogram": Histogram(
        title="h", description="d", x_label="score", edges=(0, 1, 2), groups=(("members", (3, 0)), ("others", (1, 1)))
    ),
    "heat": HeatMap(
        title="heat",
        description="d",
        row_labels=("lora", "full"),
        column_labels=("likelihood", "min-k%"),
        values=((0.5, 0.875), (None, 1.0)),
        low=0.5,
        high=1,
        decimals=3,
    ),
    "intervals": IntervalChart(title="i", description="d", x_label="AUC", rows=(("a", estimate(0.5)),), reference=0.5),
}


@pytest.mark.parametrize("kind", FIGURES)
def test_a_drawing_is_one_accessible_element_that_names_nothing_outside_itself(kind):
    figure = FIGURES[kind]
    svg = svg_of(figure, "figure-1")
    root = ET.fromstring(svg)  # well-formed, so titles and labels were escaped
    assert root.tag == "svg"
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "figure-1-title figure-1-description"
    assert [root[0].tag, root[0].text] == ["title", figure.title]
    assert [root[1].tag, root[1].text] == ["desc", figure.description]
    assert "http" not in svg
    assert "<image" not in svg
    assert "<style" not in svg
    identifiers = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(identifiers) == len(set(identifiers))
    assert all(identifier.startswith("figure-1-") for identifier in identifiers)
    referred = re.findall(r'(?:url\(#|href="#)([^")]+)', svg)
    assert set(referred) <= set(identifiers)


@pytest.mark.parametrize("kind", FIGURES)
def test_colours_follow_the_page_and_the_bytes_are_reproducible(kind):
    svg = svg_of(FIGURES[kind], "f")
    assert svg == svg_of(FIGURES[kind], "f")
    assert "currentColor" in svg
    assert not re.search(r"#(010203|040506|0a0b)", svg)
    fixed = set(re.findall(r"#[0-9a-f]{6}", svg))
    assert fixed == set() or kind == "heat"


def test_a_heat_map_writes_every_value_and_leaves_the_missing_one_empty():
    svg = svg_of(FIGURES["heat"], "f")
    texts = [element.text for element in ET.fromstring(svg).iter("text")]
    assert {"0.500", "0.875", "1.000", "lora", "min-k%"} <= set(texts)
    assert "nan" not in svg


def test_every_series_is_told_from_the_others_by_colour_or_dash():
    svg = svg_of(FIGURES["lines"], "f")
    first, ninth = (re.findall(rf"stroke: var\(--series-{0}\)", svg), re.findall(r"stroke-dasharray", svg))
    assert len(first) > 2
    assert ninth


def test_drawing_leaves_matplotlibs_settings_alone():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    svg_of(FIGURES["lines"], "f")
    assert dict(mpl.rcParams) == before
