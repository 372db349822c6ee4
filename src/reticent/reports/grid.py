"""The report of a grid: heat maps and tables by data set, and what each factor that PrivAuditor studies goes with."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from reticent.auditing.results import AttackResult, AuditResult
from reticent.benchmark.records import CellFacts, CellRecord, CellState, read_cell_audit
from reticent.benchmark.settings import Grid, GridCell
from reticent.reports.grid_gain import GainPoint, gain_sections
from reticent.reports.model import Block, Facts, HeatMap, Paragraph, Report, Section, Table
from reticent.reports.model import Cell as TableCell
from reticent.reports.render import write_audit_report, write_report
from reticent.stats.estimate import Estimate

LOW_FPR = 0.01
_AUC_SCALE = (0.5, 1.0)
_RATE_SCALE = (0.0, 1.0)


@dataclass(frozen=True)
class CellOutcome:
    """One cell, its record, and its audit where it ended well."""

    cell: GridCell
    record: CellRecord
    result: AuditResult | None


@dataclass(frozen=True)
class _Done:
    """A cell that ended well, with the attacks that have figures by title."""

    outcome: CellOutcome
    facts: CellFacts
    attacks: dict[str, AttackResult]


Measure = Callable[[AttackResult], Estimate | None]


def grid_report(grid: Grid, outcomes: Sequence[CellOutcome]) -> Report:
    """Report a grid, whole or in part."""
    done = [
        _Done(outcome, outcome.record.facts, {attack.title: attack for attack in outcome.result.attacks})
        for outcome in outcomes
        if outcome.result is not None and outcome.record.facts is not None
    ]
    sections = [_overview(grid, outcomes)]
    for dataset in grid.datasets:
        cells = [cell for cell in done if cell.outcome.cell.dataset.name == dataset.name]
        if cells:
            sections.append(_dataset_section(dataset.name, dataset.domain, cells))
    if done:
        sections += gain_sections(_gain_points(done))
        sections.append(_factors(done))
    if marked := _collect_warnings(outcomes):
        table = Table(
            name="warnings", title="Figures with a warning", columns=("Attack", "Warning", "Cell"), rows=marked
        )
        sections.append(Section(title="Warnings about single figures", blocks=(table,)))
    return Report(
        title=f"Benchmark {grid.name}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        warnings=tuple(_warnings(outcomes)),
        sections=tuple(sections),
    )


def report_grid(grid: Grid, records: Sequence[CellRecord], out: Path) -> None:
    """Report a grid that was run into `out`: `report.html`, `.md`, `.json` and `tables/` there, and each cell's own.

    Raises:
        StorageError: a file cannot be written.
    """
    outcomes = []
    for cell, record in zip(grid.cells(), records, strict=True):
        folder = out / "cells" / cell.name
        result = read_cell_audit(folder) if record.state is CellState.DONE else None
        if result is not None:
            write_audit_report(result, folder)
        outcomes.append(CellOutcome(cell, record, result))
    write_report(grid_report(grid, outcomes), out)


def auc_of(attack: AttackResult) -> Estimate:
    """An attack's AUC."""
    return attack.auc


def low_rate_of(attack: AttackResult) -> Estimate | None:
    """An attack's TPR at 1 % FPR; None where there are too few non-members for it."""
    return attack.tpr_at(LOW_FPR)


def pool_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of estimates, with the mean of their ends as its interval.

    The standard deviation of a mean is at most the mean of the standard deviations, whatever the correlation; cells
    share texts and base models, so the interval must not shrink with their number.
    """
    count = len(estimates)
    return Estimate(
        value=sum(estimate.value for estimate in estimates) / count,
        low=sum(estimate.low for estimate in estimates) / count,
        high=sum(estimate.high for estimate in estimates) / count,
        confidence=min(estimate.confidence for estimate in estimates),
    )


def _warnings(outcomes: Sequence[CellOutcome]) -> list[str]:
    failed = [outcome for outcome in outcomes if outcome.record.state is CellState.FAILED]
    warnings = []
    if failed:
        warnings.append(f"{len(failed)} of {len(outcomes)} cells failed; they are missing from every figure")
    by_warning: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        for text in dict.fromkeys(outcome.result.warnings if outcome.result else ()):
            by_warning[text].append(outcome.record.name)
    for text, names in by_warning.items():
        warnings.append(f"{text} ({names[0]}{f' and {len(names) - 1} more cells' if names[1:] else ''})")
    if marked := _collect_warnings(outcomes):
        warnings.append(f"{len(marked)} figures carry their own warning; they are listed at the end")
    return warnings


def _collect_warnings(outcomes: Sequence[CellOutcome]) -> tuple[tuple[str, str, str], ...]:
    """Every warning about one attack's figures: attack, warning, cell."""
    return tuple(
        (attack.title, text, outcome.record.name)
        for outcome in outcomes
        if outcome.result is not None
        for attack in outcome.result.attacks
        for text in attack.warnings
    )


def _overview(grid: Grid, outcomes: Sequence[CellOutcome]) -> Section:
    done = sum(outcome.record.state is CellState.DONE for outcome in outcomes)
    rows = [
        ("grid", grid.name),
        ("what it is", grid.description or "not said"),
        ("cells", f"{done} done, {len(outcomes) - done} failed"),
        (
            "texts of a cell",
            f"{grid.members:,} members, {grid.nonmembers:,} non-members, cut at {grid.max_tokens} tokens",
        ),
        ("computed in", f"{grid.dtype} on {grid.device}"),
        ("time", f"{sum(outcome.record.seconds for outcome in outcomes) / 60:.1f} minutes over all cells"),
    ]
    if limits := grid.attacks.limits:
        rows.append(
            ("texts of each set for some attacks", ", ".join(f"{name} {count}" for name, count in limits.items()))
        )
    blocks: list[Block] = [Facts(rows=tuple(rows))]
    failed = [
        (outcome.record.name, outcome.record.error or "")
        for outcome in outcomes
        if outcome.record.state is CellState.FAILED
    ]
    if failed:
        blocks.append(Table(name="failed", title="Cells that failed", columns=("Cell", "Why"), rows=tuple(failed)))
    return Section(title="The grid", blocks=tuple(blocks))


def _dataset_section(name: str, domain: str, cells: list[_Done]) -> Section:
    blocks: list[Block] = [Paragraph(text=f"Domain: {domain}. Seeds are pooled.")]
    for key, title, measure, scale in (
        ("auc", "AUC", auc_of, _AUC_SCALE),
        ("tpr", "TPR at 1 % FPR", low_rate_of, _RATE_SCALE),
    ):
        attacks = _attack_titles(cells)
        table_rows: list[tuple[TableCell, ...]] = []
        for model, group in _group_cells(cells, lambda cell: cell.outcome.cell.model.name).items():
            rows = _matrix(group, attacks, measure)
            table_rows += [(technique, model, *row) for technique, row in rows]
            if any(cell is not None for _, row in rows for cell in row):
                blocks.append(_heat_map(f"{title} on {name}, {model}", attacks, rows, scale))
        if all(cell is None for row in table_rows for cell in row[2:]):
            blocks.append(Paragraph(text=f"{title}: too few non-members for a figure."))
            continue
        blocks.append(
            Table(
                name=f"{key}-{_slug(name)}",
                title=f"{title} on {name}, with intervals",
                columns=("Technique", "Model", *attacks),
                rows=tuple(table_rows),
                note="Empty: the attack has no figure there; the cell's own report says why."
                if any(cell is None for row in table_rows for cell in row)
                else "",
            )
        )
    return Section(title=f"Data set {name}", blocks=tuple(blocks))


def _group_cells(cells: Sequence[_Done], key: Callable[[_Done], str]) -> dict[str, list[_Done]]:
    """Cells grouped by a key, in order of first occurrence."""
    groups: dict[str, list[_Done]] = defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell)
    return groups


def _attack_titles(cells: Sequence[_Done]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(title for cell in cells for title in cell.attacks))


def _matrix(
    cells: Sequence[_Done], attacks: tuple[str, ...], measure: Measure
) -> list[tuple[str, list[Estimate | None]]]:
    """One row for each technique, one column an attack; seeds are pooled."""
    groups = _group_cells(cells, lambda cell: cell.outcome.cell.variant)
    return [
        (technique, [_pool_attack(group, title, measure) for title in attacks]) for technique, group in groups.items()
    ]


def _pool_attack(cells: Sequence[_Done], title: str, measure: Measure) -> Estimate | None:
    """An attack's measure, pooled over the cells that have it."""
    found = [estimate for cell in cells if title in cell.attacks and (estimate := measure(cell.attacks[title]))]
    return pool_estimates(found) if found else None


def _heat_map(
    title: str, attacks: tuple[str, ...], rows: list[tuple[str, list[Estimate | None]]], scale: tuple[float, float]
) -> HeatMap:
    values = tuple(tuple(None if cell is None else cell.value for cell in row) for _, row in rows)
    known = [value for row in values for value in row if value is not None]
    return HeatMap(
        title=f"{title}: technique by attack",
        description=f"Values from {min(known):.2f} to {max(known):.2f}; the table below has them with intervals.",
        row_labels=tuple(label for label, _ in rows),
        column_labels=attacks,
        values=values,
        low=scale[0],
        high=scale[1],
    )


def _gain_points(cells: Sequence[_Done]) -> list[GainPoint]:
    """Cells of one data set, model, technique and number of epochs together; of the first data set and model alone."""
    first = cells[0].outcome.cell
    one_setting = [
        cell
        for cell in cells
        if (cell.outcome.cell.dataset, cell.outcome.cell.model) == (first.dataset, first.model) and cell.outcome.result
    ]
    groups = _group_cells(one_setting, lambda cell: f"{cell.outcome.cell.technique.label}, {cell.facts.epochs}")
    return [
        GainPoint(
            [
                (cell.outcome.cell, cell.facts, cell.outcome.result.attacks, cell.outcome.result.canaries)
                for cell in group
                if cell.outcome.result is not None
            ],
            pool_estimates,
        )
        for group in groups.values()
    ]


def _factors(cells: list[_Done]) -> Section:
    blocks: list[Block] = [
        Paragraph(
            text="Each table groups the cells by one factor and gives the mean AUC of every attack. Intervals are the "
            "mean ends of the cells' intervals: they hold whatever the cells share. Factors that differ together in "
            "this grid, as technique and number of trained parameters do, are not separated."
        )
    ]
    blocks += [_factor_table(name, level, cells) for name, level in _FACTORS]
    return Section(title="Factors", blocks=tuple(blocks))


def _factor_table(name: str, level: Callable[[_Done], tuple[float, str]], cells: list[_Done]) -> Table:
    groups: dict[tuple[float, str], list[_Done]] = defaultdict(list)
    for cell in cells:
        groups[level(cell)].append(cell)
    titles = _attack_titles(cells)
    rows: list[tuple[TableCell, ...]] = []
    for key in sorted(groups):
        group = groups[key]
        rows.append((key[1], len(group), *(_pool_attack(group, title, auc_of) for title in titles)))
    return Table(
        name=f"factor-{_slug(name)}",
        title=f"AUC by {name}",
        columns=(name[:1].upper() + name[1:], "Cells", *titles),
        rows=tuple(rows),
    )


def _name_sort_key(text: str) -> tuple[float, str]:
    return 0.0, text


def _count_sort_key(number: int | None) -> tuple[float, str]:
    return (0.0, "not known") if number is None else (float(number), f"{number:,}")


def _magnitude(number: int) -> tuple[float, str]:
    """The power of ten that a number lies at or above."""
    if number == 0:
        return 0.0, "0"
    low = 10 ** (len(str(number)) - 1)
    return float(low), f"{low:,} to {10 * low:,}"


def _length(tokens: float) -> tuple[float, str]:
    low = 32 * int(tokens // 32)
    return float(low), f"{low} to {low + 32} tokens"


_FACTORS: tuple[tuple[str, Callable[[_Done], tuple[float, str]]], ...] = (
    ("technique", lambda cell: _name_sort_key(str(cell.outcome.cell.technique.technique))),
    ("family", lambda cell: _name_sort_key(cell.outcome.cell.model.family)),
    ("model size", lambda cell: _count_sort_key(cell.facts.num_parameters)),
    ("trained parameters", lambda cell: _magnitude(cell.facts.num_trained)),
    ("epochs", lambda cell: _count_sort_key(cell.facts.epochs)),
    ("domain", lambda cell: _name_sort_key(cell.outcome.cell.dataset.domain)),
    ("mean length of a member", lambda cell: _length(cell.facts.mean_tokens)),
    ("members", lambda cell: _count_sort_key(cell.facts.num_members)),
)


def _slug(name: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in name.lower()).strip("-")
