"""Gain against leakage: interpolation and pooling against values worked by hand."""

import pytest
from sample_audits import sample_attack, sample_audit
from small_grids import TOML, facts, small_grid

from reticent.auditing.results import CanaryExposure, CanaryResult
from reticent.benchmark.records import CellRecord, CellState
from reticent.reports.grid import CellOutcome, grid_report
from reticent.reports.grid_gain import auc_at_gain
from reticent.reports.model import LineChart
from reticent.stats.estimate import Estimate


def interval(value, reach):
    return Estimate(value=value, low=value - reach, high=value + reach, confidence=0.95)


CURVE = [(0.1, interval(0.6, 0.05)), (0.3, interval(0.8, 0.1)), (0.2, interval(0.9, 0.1))]


@pytest.mark.parametrize(
    ("gain", "value", "low", "high"),
    [
        (0.05, 0.55, 0.525, 0.575),  # half way from chance
        (0.1, 0.6, 0.55, 0.65),
        (0.15, 0.65, 0.5875, 0.7125),  # a quarter of the way from the first point to the second
        (0.3, 0.8, 0.7, 0.9),
    ],
)
def test_the_auc_at_a_gain_is_interpolated_on_the_way_up(gain, value, low, high):
    found = auc_at_gain(CURVE, gain)
    assert (found.value, found.low, found.high) == pytest.approx((value, low, high))


def test_a_gain_that_is_never_reached_has_no_auc():
    assert auc_at_gain(CURVE, 0.31) is None
    assert auc_at_gain([], 0.1) is None


@pytest.fixture
def report():
    epochs = 'technique = "lora"\nepochs = [1, 4]'
    one_model = TOML.replace(TOML[TOML.index('[[models]]\nname = "b"') : TOML.index("[[datasets]]")], "")
    grid = small_grid(one_model.replace('technique = "lora"', epochs, 1).replace('name = "small"', SEEDS))
    aucs = {("lora", 1): 0.6, ("lora", 4): 0.8, ("full", None): 0.7}
    outcomes = []
    for cell in grid.cells():
        auc = aucs[str(cell.technique.technique), cell.technique.epochs] + 0.02 * cell.seed
        gain = interval(0.1 * (cell.technique.epochs or 2), 0.05)
        exposures = (CanaryExposure(canary_id="c", rank=1, num_candidates=8, exposure_bits=2.0 + 2 * cell.seed),)
        canary = CanaryResult(kind="digits", repetitions=4, num_canaries=1, exposures=exposures)
        record = CellRecord(
            name=cell.name,
            state=CellState.DONE,
            settings={},
            facts=facts(epochs=cell.technique.epochs or 2, heldout_gain=gain, member_gain=gain),
            began="now",
            seconds=1.0,
        )
        attacks = (sample_attack("reference", "Reference", auc),)
        outcomes.append(CellOutcome(cell, record, sample_audit(attacks=attacks, canaries=(canary,))))
    return grid_report(grid, outcomes)


SEEDS = 'name = "small"\nseeds = [0, 1]'


def test_each_technique_is_a_curve_through_its_epochs_with_seeds_pooled(report):
    [chart] = [b for s in report.sections for b in s.blocks if isinstance(b, LineChart) and "gain" in b.title.lower()]
    curves = {series.label: (series.x, series.y) for series in chart.series}
    assert curves["lora"][0] == pytest.approx((0.1, 0.4))
    assert curves["lora"][1] == pytest.approx((0.61, 0.81))
    assert curves["full"] == (pytest.approx((0.2,)), pytest.approx((0.71,)))
    tables = {table.name: table for table in report.tables}
    assert [row[:2] for row in tables["gain"].rows] == [("lora", 1), ("lora", 4), ("full", 2)]
    equal = {row[0]: row for row in tables["equal-gain-reference"].rows}
    assert tables["equal-gain-reference"].columns[2:] == tuple(f"at {0.1 * n:.3f} nats" for n in (1, 2, 3, 4))
    assert equal["full"][3].value == pytest.approx(0.71)
    assert equal["full"][4] is None
    assert equal["lora"][3].value == pytest.approx(0.61 + 0.2 / 3)


def test_canaries_of_all_seeds_are_counted_together(report):
    table = next(table for table in report.tables if table.name == "canary-repetitions")
    assert table.columns == ("Technique", "Epochs", "planted 4 times")
    assert {row[2] for row in table.rows} == {"3.0 bits; 0 of 2 repeated"}


def test_a_grid_without_gains_has_no_such_section():
    grid = small_grid()
    record = CellRecord(name="x", state=CellState.DONE, settings={}, facts=facts(), began="now", seconds=1.0)
    outcomes = [CellOutcome(cell, record, sample_audit()) for cell in grid.cells()]
    assert not [section for section in grid_report(grid, outcomes).sections if "gain" in section.title.lower()]
