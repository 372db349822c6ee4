"""A grid's report taken over as files: every figure beside the Markdown that shows it, and every number kept."""

import json
import re
from xml.etree import ElementTree

import pytest

from experiments.privauditor.publish import main
from reticent.reports.model import HeatMap, Paragraph, Report, Section, Table
from reticent.reports.render import write_report
from reticent.stats.estimate import Estimate


def heat(title: str) -> HeatMap:
    return HeatMap(
        title=title,
        description="of two",
        row_labels=("lora", "full"),
        column_labels=("zlib",),
        values=((0.5,), (0.9,)),
        low=0.0,
        high=1.0,
    )


REPORT = Report(
    title="Benchmark cpu",
    created="2026-01-01T00:00:00+00:00",
    sections=(
        Section(title="One", blocks=(Paragraph(text="before"), heat("AUC on one"), heat("TPR on one"))),
        Section(
            title="Two",
            blocks=(
                heat("AUC on two"),
                Table(
                    name="auc",
                    title="AUC",
                    columns=("a",),
                    rows=((Estimate(value=0.75, low=0.5, high=0.875, confidence=0.95),),),
                ),
            ),
        ),
    ),
)


def test_figures_of_all_sections_are_files_that_the_page_shows_in_order(tmp_path):
    write_report(REPORT, tmp_path / "grid")
    assert main([str(tmp_path / "grid"), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "cpu.md").read_text("utf-8")
    shown = re.findall(r"^!\[(.*?)\. of two\]\((.*?)\)$", page, re.MULTILINE)
    assert shown == [("AUC on one", "cpu.svg"), ("TPR on one", "cpu-2.svg"), ("AUC on two", "cpu-3.svg")]
    for _, name in shown:
        assert ElementTree.parse(tmp_path / "out" / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert "0.750 \\[0.500, 0.875\\]" in page
    assert json.loads((tmp_path / "out" / "cpu.json").read_text("utf-8")) == REPORT.model_dump(mode="json")


@pytest.mark.parametrize("content", [None, "{}", "not JSON"])
def test_a_folder_without_a_grids_report_is_named(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"{tmp_path / 'report.json'} is no report of a grid" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
