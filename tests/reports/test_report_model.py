import pytest
from pydantic import ValidationError
from sample_audits import estimate

from reticent.reports.model import HeatMap, Histogram, LineChart, Paragraph, Report, Section, Series, Table


def table(name, rows=((1, 2),)):
    return Table(name=name, title="t", columns=("a", "b"), rows=rows)


def report(*blocks):
    return Report(title="r", created="now", sections=(Section(title="s", blocks=blocks),))


def test_a_report_survives_json_with_every_kind_of_cell_and_block():
    made = report(
        Paragraph(text="p"),
        table("cells", rows=((estimate(0.25), True), (3, 0.5), ("text", None))),
        LineChart(
            title="l",
            description="d",
            x_label="x",
            y_label="y",
            series=(Series(label="s", x=(0, 1), y=(1, 2), low=(0, 1), high=(2, 3)),),
        ),
        HeatMap(
            title="h",
            description="d",
            row_labels=("r",),
            column_labels=("a", "b"),
            values=((0.5, None),),
            low=0,
            high=1,
        ),
    )
    read = Report.model_validate_json(made.model_dump_json())
    assert read == made
    kinds = [type(cell) for row in read.tables[0].rows for cell in row]
    assert kinds == [type(estimate(0.25)), bool, int, float, str, type(None)]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_are_refused(value):
    with pytest.raises(ValidationError):
        table("t", rows=((1, value),))
    with pytest.raises(ValidationError):
        Series(label="s", x=(0.0,), y=(value,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: table("t", rows=((1,),)), "a row of 1 cells under 2 columns"),
        (lambda: report(table("t"), table("t")), "share the name 't'"),
        (lambda: Series(label="s", x=(0, 1), y=(0,)), "one length"),
        (lambda: Series(label="s", x=(0,), y=(0,), low=(0,)), "one length"),
        (
            lambda: Histogram(title="h", description="", x_label="x", edges=(0, 1), groups=(("g", (1, 2)),)),
            "2 counts for 1 bins",
        ),
        (
            lambda: HeatMap(
                title="h", description="", row_labels=("r",), column_labels=("a",), values=((1, 2),), low=0, high=1
            ),
            "1 rows of 1",
        ),
        (
            lambda: HeatMap(
                title="h", description="", row_labels=("r",), column_labels=("a",), values=((1,),), low=1, high=1
            ),
            "must rise",
        ),
    ],
)
def test_malformed_parts_say_what_is_wrong(make, message):
    with pytest.raises(ValidationError, match=message):
        make()


@pytest.mark.parametrize("name", ["../up", "a/b", "", "A b"])
def test_a_table_name_cannot_leave_its_folder(name):
    with pytest.raises(ValidationError):
        table(name)
