import csv
import io
import json
import re
import stat
from html.parser import HTMLParser

import pytest
from sample_audits import HOSTILE, estimate, sample_attack, sample_audit

from reticent.auditing.results import AuditResult
from reticent.errors import StorageError
from reticent.reports.audit import audit_report
from reticent.reports.model import Report, Section, Table
from reticent.reports.render import cell_text, render_csv, render_html, render_markdown, write_report

VOID = {"meta", "br", "img", "link", "input", "hr"}


def render_audit(result):
    return render_html(audit_report(result))


class Outline(HTMLParser):
    """Checks that elements nest, and collects what a test asks about."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_asks_for_nothing_else():
    page = render_audit(sample_audit())
    outline = Outline(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(outline.tags)
    loading = [a for a in outline.attributes if a[1] in ("src", "srcset", "poster", "data")]
    assert loading == []
    outside = [value for tag, name, value in outline.attributes if name == "href" and not value.startswith("#")]
    assert {tag for tag, name, value in outline.attributes if value in outside} == {"a"}
    assert not re.search(r"@import|url\((?!#)", page)
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_every_value_is_escaped():
    page = render_audit(sample_audit())
    assert HOSTILE not in page
    assert HOSTILE in "".join(Outline(page).text)


def test_warnings_stand_before_everything_else():
    page = render_audit(sample_audit())
    assert page.index("the two sets share a near-duplicate") < page.index("<nav") < page.index("What was audited")


def test_identifiers_of_all_figures_differ():
    identifiers = [value for _, name, value in Outline(render_audit(sample_audit())).attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers)) > 50


def test_all_figures_and_headings_of_an_audit_are_there():
    text = " ".join(Outline(render_audit(sample_audit())).text)
    for wanted in (
        "0.600",
        "[0.550, 0.650]",
        "n < 3,000",
        "no shadow models were given",
        "one scored token",
        "ROC curves on logarithmic axes",
        "Blind baseline",
        "95 % confidence",
        "training.epochs",
        "3 and 0 above it",
    ):
        assert wanted in text, wanted
    assert render_audit(sample_audit()) == render_audit(
        AuditResult.model_validate_json(sample_audit().model_dump_json())
    )


def test_an_audit_without_a_single_figure_still_has_a_report():
    page = render_audit(sample_audit(attacks=(), canaries=(), one_run=None, blind=None, reference=None))
    assert "No attack could be scored" in page
    Outline(page)


def test_what_audits_are_compared_by_stands_first():
    target = {"name": "m", "technique": "lora", "base": "smol", "trained_parameters": 921600, "training": {"epochs": 3}}
    sections = {section.title: section for section in audit_report(sample_audit(target=target)).sections}
    facts = sections["What was audited, and how"].blocks[0]
    assert facts.rows == (
        ("technique", "lora"),
        ("base model", "smol"),
        ("trained parameters", "921,600"),
        ("epochs", "3"),
        ("members, non-members", "190, 200"),
    )


def test_warnings_of_attacks_reach_the_top_once():
    attack = sample_attack("likelihood", "Likelihood", 0.99).model_copy(update={"warnings": ("collapsed", "collapsed")})
    report = audit_report(sample_audit(attacks=(attack,)))
    assert report.warnings == ("the two sets share a near-duplicate", "Likelihood: collapsed")


def test_csv_spreads_estimates_and_keeps_full_precision():
    table = Table(name="t", title="t", columns=("a", "b"), rows=(("x,\n\"y'", estimate(1 / 3)), ("z", None)))
    rows = list(csv.reader(io.StringIO(render_csv(table))))
    assert rows[0] == ["a", "b", "b low", "b high"]
    assert rows[1][0] == "x,\n\"y'"
    assert float(rows[1][1]) == 1 / 3
    assert rows[2] == ["z", "", "", ""]


def test_markdown_tables_keep_their_columns():
    table = Table(name="t", title="t", columns=("a|b", "c"), rows=(("x|y\nz", 1),))
    text = render_markdown(Report(title="r", created="n", sections=(Section(title="s", blocks=(table,)),)))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3, 3, 3]


@pytest.mark.parametrize(
    ("cell", "text"),
    [(True, "yes"), (12345, "12,345"), (0.123456, "0.1235"), (None, ""), ("x", "x"), (1e-9, "1e-09")],
)
def test_cells_as_people_read_them(cell, text):
    assert cell_text(cell) == text


def test_a_report_is_written_in_all_its_forms(tmp_path):
    report = audit_report(sample_audit())
    write_report(report, tmp_path / "deep" / "out")
    folder = tmp_path / "deep" / "out"
    assert Report.model_validate(json.loads((folder / "report.json").read_text())) == report
    assert (folder / "report.html").read_text() == render_html(report)
    assert (folder / "report.md").read_text() == render_markdown(report)
    assert {path.stem for path in (folder / "tables").iterdir()} == {table.name for table in report.tables}


def test_an_unwritable_folder_is_a_storage_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    blocked.chmod(stat.S_IRUSR)
    with pytest.raises(StorageError, match="file"):
        write_report(audit_report(sample_audit()), blocked)
