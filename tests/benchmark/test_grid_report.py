import pytest
from sample_audits import estimate, sample_attack, sample_audit
from small_grids import TOML, RecordingProgress, distinct_texts, facts, small_grid

from reticent.auditing.results import RateAtFpr
from reticent.benchmark.grid import GridRequest, run_grid
from reticent.benchmark.records import CellRecord, CellState
from reticent.reports.grid import CellOutcome, grid_report, pool_estimates, report_grid
from reticent.reports.model import HeatMap, Report

AUCS = {("lora", "a"): 0.6, ("lora", "b"): 0.7, ("full", "a"): 0.8, ("full", "b"): 0.9}


def outcome(cell, auc, **changes):
    rate = RateAtFpr(fpr=0.01, tpr=estimate(auc / 2))
    attack = sample_attack("likelihood", "Likelihood", auc).model_copy(update={"rates": (rate,)})
    record = CellRecord(
        name=cell.name, state=CellState.DONE, settings={}, facts=facts(**changes), began="now", seconds=3.0
    )
    return CellOutcome(cell, record, sample_audit(attacks=(attack,), warnings=("mind the gap",)))


@pytest.fixture
def outcomes():
    return [
        outcome(
            cell,
            AUCS[str(cell.technique.technique), cell.model.name],
            num_trained=10 if cell.model.name == "a" else 2000,
        )
        for cell in small_grid().cells()
    ]


def tables(report):
    return {table.name: table for table in report.tables}


def test_heat_maps_and_tables_hold_every_cell(outcomes):
    report = grid_report(small_grid(), outcomes)
    maps = [block for section in report.sections for block in section.blocks if isinstance(block, HeatMap)]
    assert [(block.title, block.row_labels, block.values) for block in maps[:2]] == [
        ("AUC on notes, a: technique by attack", ("lora", "full"), ((0.6,), (0.8,))),
        ("AUC on notes, b: technique by attack", ("lora", "full"), ((0.7,), (0.9,))),
    ]
    assert maps[3].title == "TPR at 1 % FPR on notes, b: technique by attack"
    assert [row[0] for row in maps[3].values] == pytest.approx([0.35, 0.45])
    assert {row[:2]: row[2] for row in tables(report)["auc-notes"].rows} == {
        cell: estimate(auc) for cell, auc in AUCS.items()
    }


@pytest.mark.parametrize(
    ("factor", "means"),
    [
        ("technique", {"full": 0.85, "lora": 0.65}),
        ("family", {"llama": 0.7, "t5": 0.8}),
        ("model-size", {"1,000": 0.75}),
        ("trained-parameters", {"10 to 100": 0.7, "1,000 to 10,000": 0.8}),
        ("epochs", {"2": 0.75}),
        ("domain", {"notes": 0.75}),
        ("mean-length-of-a-member", {"32 to 64 tokens": 0.75}),
        ("members", {"4": 0.75}),
    ],
)
def test_factors_group_the_cells(outcomes, factor, means):
    table = tables(grid_report(small_grid(), outcomes))[f"factor-{factor}"]
    assert {row[0]: row[2].value for row in table.rows} == pytest.approx(means)
    assert [row[0] for row in table.rows] == list(means)
    assert sum(row[1] for row in table.rows) == 4


def test_pooling_never_narrows_an_interval():
    mean = pool_estimates([estimate(0.5, 0.1), estimate(0.7, 0.3)])
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.6, 0.4, 0.8))


def test_seeds_are_pooled_in_one_row():
    grid = small_grid("seeds = [0, 1]\n" + TOML)
    several = [outcome(cell, 0.6 + 0.2 * cell.seed) for cell in grid.cells()]
    rows = tables(grid_report(grid, several))["auc-notes"].rows
    assert len(rows) == 4
    assert all(row[2].value == pytest.approx(0.7) for row in rows)


def test_a_rate_that_no_cell_has_is_said_and_not_drawn(outcomes):
    few = [
        CellOutcome(each.cell, each.record, sample_audit(attacks=(sample_attack("likelihood", "Likelihood", 0.6),)))
        for each in outcomes
    ]
    report = grid_report(small_grid(), few)
    assert "tpr-notes" not in tables(report)
    assert any("too few non-members" in str(block) for section in report.sections for block in section.blocks)


def test_failures_and_warnings_come_first(outcomes):
    failed = CellRecord(name="x", state=CellState.FAILED, settings={}, error="no such model", began="now", seconds=0.1)
    report = grid_report(small_grid(), [*outcomes[:3], CellOutcome(outcomes[3].cell, failed, None)])
    assert report.warnings[0].startswith("1 of 4 cells failed")
    assert report.warnings[1] == f"mind the gap ({outcomes[0].record.name} and 2 more cells)"
    assert tables(report)["failed"].rows == (("x", "no such model"),)


def test_warnings_about_single_figures_are_counted_first_and_listed_last(outcomes):
    attack = outcomes[0].result.attacks[0].model_copy(update={"warnings": ("separates", "collapsed")})
    marked = CellOutcome(outcomes[0].cell, outcomes[0].record, sample_audit(attacks=(attack,), warnings=()))
    report = grid_report(small_grid(), [marked])
    assert report.warnings == ("2 figures carry their own warning; they are listed at the end",)
    assert tables(report)["warnings"].rows == (
        ("Likelihood", "separates", outcomes[0].record.name),
        ("Likelihood", "collapsed", outcomes[0].record.name),
    )
    assert report.sections[-1].title == "Warnings about single figures"


def test_a_grid_of_failures_still_has_a_report(outcomes):
    failed = [
        CellOutcome(
            each.cell,
            CellRecord(name="x", state=CellState.FAILED, settings={}, error="e", began="now", seconds=0),
            None,
        )
        for each in outcomes
    ]
    report = grid_report(small_grid(), failed)
    assert [section.title for section in report.sections] == ["The grid"]


def test_the_report_and_each_cells_own_are_written(tmp_path):
    (tmp_path / "notes.txt").mkdir()
    for number, text in enumerate(distinct_texts(12)):
        (tmp_path / "notes.txt" / f"{number}.txt").write_text(text)
    grid = small_grid(TOML.replace("notes.jsonl", "notes.txt"))

    def run_cell(work, progress):
        made = outcome(work.cell, 0.6)
        return made.result, made.record.facts

    records = run_grid(GridRequest(grid, tmp_path / "out", tmp_path, {}), run_cell, RecordingProgress())
    report_grid(grid, records, tmp_path / "out")
    read = Report.model_validate_json((tmp_path / "out" / "report.json").read_text())
    assert (tmp_path / "out" / "tables" / "auc-notes.csv").is_file()
    assert read.title == "Benchmark small"
    for record in records:
        assert (tmp_path / "out" / "cells" / record.name / "report.html").is_file()
