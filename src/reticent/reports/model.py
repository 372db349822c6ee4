"""The contents of a report, apart from its looks: sections of paragraphs, facts, tables with intervals, and figures.

Every kind of report is built as a `Report` and rendered by `reticent.reports.render`. All classes are frozen and
survive a round trip through JSON; numbers are finite, and a number that does not exist is `None` or text that says why.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from reticent._settings import FrozenModel
from reticent.stats.estimate import Estimate

SCHEMA_VERSION = 1

Cell = Estimate | bool | int | FiniteFloat | str | None
"""What a table cell holds: an estimate with its interval, a number, text, or nothing."""


class Paragraph(FrozenModel):
    """Running text, plain."""

    kind: Literal["paragraph"] = "paragraph"
    text: str


class Reference(FrozenModel):
    """A source that a reader can open; `name` says what it is, `url` where."""

    kind: Literal["reference"] = "reference"
    name: str
    url: str


class Facts(FrozenModel):
    """Names with their values, such as settings and hashes."""

    kind: Literal["facts"] = "facts"
    rows: tuple[tuple[str, str], ...]


class Table(FrozenModel):
    """Rows by columns; the first column names the row.

    Attributes:
        name: short, of letters, digits and hyphens; the table's CSV file is called so.
        title: what the table shows.
        columns: the heading of each column.
        rows: one cell for each column.
        note: what a reader must know to read it, or nothing.
    """

    kind: Literal["table"] = "table"
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    columns: tuple[str, ...] = Field(min_length=1)
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    @model_validator(mode="after")
    def _check_rectangular(self) -> Self:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.name!r}: a row of {len(row)} cells under {len(self.columns)} columns")
        return self


class Series(FrozenModel):
    """One line of a chart; `low` and `high` bound a band around it."""

    label: str
    x: tuple[FiniteFloat, ...]
    y: tuple[FiniteFloat, ...]
    low: tuple[FiniteFloat, ...] | None = None
    high: tuple[FiniteFloat, ...] | None = None

    @model_validator(mode="after")
    def _check_aligned(self) -> Self:
        lengths = {len(part) for part in (self.x, self.y, self.low, self.high) if part is not None}
        if len(lengths) != 1 or (self.low is None) != (self.high is None):
            raise ValueError(f"series {self.label!r}: x, y and the band's two sides must have one length")
        return self


class _Figure(FrozenModel):
    """The parts that all figures have: a title, and a description for whoever cannot see it."""

    title: str
    description: str


class LineChart(_Figure):
    """Lines over a common pair of axes.

    Attributes:
        steps: draw each line as steps, as an empirical distribution or ROC curve is.
        diagonal: also draw y = x.
        level: also draw a horizontal line at this height.
        error_bars: draw a series' `low` and `high` as a bar at each point in place of a band.
    """

    kind: Literal["lines"] = "lines"
    x_label: str
    y_label: str
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    series: tuple[Series, ...] = Field(min_length=1)
    steps: bool = False
    diagonal: bool = False
    level: FiniteFloat | None = None
    error_bars: bool = False


class Histogram(_Figure):
    """Counts of several groups over the same bins; `edges` has one entry more than each group's counts."""

    kind: Literal["histogram"] = "histogram"
    x_label: str
    edges: tuple[FiniteFloat, ...] = Field(min_length=2)
    groups: tuple[tuple[str, tuple[int, ...]], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_one_count_a_bin(self) -> Self:
        for label, counts in self.groups:
            if len(counts) != len(self.edges) - 1:
                raise ValueError(f"histogram group {label!r}: {len(counts)} counts for {len(self.edges) - 1} bins")
        return self


class HeatMap(_Figure):
    """Values by row and column on one colour scale from `low` to `high`; `None` is drawn as an empty cell."""

    kind: Literal["heat"] = "heat"
    row_labels: tuple[str, ...] = Field(min_length=1)
    column_labels: tuple[str, ...] = Field(min_length=1)
    values: tuple[tuple[FiniteFloat | None, ...], ...]
    low: FiniteFloat
    high: FiniteFloat
    decimals: int = Field(default=2, ge=0)

    @model_validator(mode="after")
    def _check_rectangular(self) -> Self:
        if len(self.values) != len(self.row_labels) or {len(row) for row in self.values} != {len(self.column_labels)}:
            raise ValueError(
                f"heat map {self.title!r}: values must be {len(self.row_labels)} rows of {len(self.column_labels)}"
            )
        if not self.low < self.high:
            raise ValueError(f"heat map {self.title!r}: the scale's ends {self.low} and {self.high} must rise")
        return self


class IntervalChart(_Figure):
    """Estimates with their intervals, one a line, against a value of reference."""

    kind: Literal["intervals"] = "intervals"
    x_label: str
    rows: tuple[tuple[str, Estimate], ...] = Field(min_length=1)
    reference: FiniteFloat | None = None


Figure = LineChart | Histogram | HeatMap | IntervalChart
Block = Annotated[
    Paragraph | Reference | Facts | Table | LineChart | Histogram | HeatMap | IntervalChart, Field(discriminator="kind")
]


class Section(FrozenModel):
    """A heading and the blocks under it, in order."""

    title: str
    blocks: tuple[Block, ...]


class Report(FrozenModel):
    """A whole report; warnings are shown before anything else.

    Attributes:
        title: what the report is about.
        created: when, ISO 8601.
        warnings: what limits or voids the figures that follow, most important first.
        sections: in reading order.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    title: str
    created: str
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...]

    @model_validator(mode="after")
    def _check_table_names_are_unique(self) -> Self:
        names = [table.name for table in self.tables]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"tables share the name {min(repeated)!r}; each names its own CSV file")
        return self

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, in order."""
        return tuple(block for section in self.sections for block in section.blocks if isinstance(block, Table))
