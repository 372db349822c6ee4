"""The part of a grid's report that sets what adaptation gained on held-out texts against what it leaks of its members.

PrivAuditor compares techniques after the same number of epochs, at which they have learnt differently much. Here each
technique is a curve through its numbers of epochs, and techniques are compared where their held-out gains are equal.

Seeds are pooled as `reports.grid` pools cells.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from reticent.auditing.attacks.registry import AttackName
from reticent.auditing.results import AttackResult, CanaryResult
from reticent.benchmark.records import CellFacts
from reticent.benchmark.settings import GridCell
from reticent.reports.model import Block, LineChart, Paragraph, Section, Series, Table
from reticent.reports.model import Cell as TableCell
from reticent.stats.estimate import Estimate

SHARES_OF_BEST_GAIN = (0.25, 0.5, 0.75, 1.0)
COMPARED_ATTACKS = (AttackName.LIKELIHOOD, AttackName.REFERENCE)
"""Attacks whose AUC is set against the gain: the same for every technique, so that none is chosen by its success."""


class GainPoint:
    """Figures of the cells of one technique and number of epochs, over their seeds.

    Attributes:
        label: the technique, with its ε where it has one.
        epochs: of its training.
        gain, member_gain: in nats a token over the base.
        aucs: by the attack's name.
        canaries: of all seeds.
    """

    def __init__(
        self,
        cells: Sequence[tuple[GridCell, CellFacts, Sequence[AttackResult], Sequence[CanaryResult]]],
        pool: Callable[[Sequence[Estimate]], Estimate],
    ) -> None:
        first, facts, _, _ = cells[0]
        self.label, self.epochs = first.technique.label, facts.epochs
        self.gain = _pooled([facts.heldout_gain for _, facts, _, _ in cells], pool)
        self.member_gain = _pooled([facts.member_gain for _, facts, _, _ in cells], pool)
        aucs: dict[str, list[Estimate]] = defaultdict(list)
        for _, _, attacks, _ in cells:
            for attack in attacks:
                aucs[attack.name].append(attack.auc)
        self.aucs = {name: pool(found) for name, found in aucs.items()}
        self.canaries = [canary for _, _, _, canaries in cells for canary in canaries]


def gain_sections(points: Sequence[GainPoint]) -> list[Section]:
    """Gain against leakage, and canaries against repetitions; no section without figures for it."""
    curves: dict[str, list[GainPoint]] = defaultdict(list)
    for point in sorted(points, key=lambda point: point.epochs):
        if point.gain is not None:
            curves[point.label].append(point)
    sections = []
    if curves:
        sections.append(Section(title="Held-out gain against leakage", blocks=tuple(_gain_blocks(curves))))
    if any(point.canaries for point in points):
        sections.append(Section(title="Canaries by repetitions", blocks=(_canary_chart(points), _canary_table(points))))
    return sections


def auc_at_gain(curve: Sequence[tuple[float, Estimate]], gain: float) -> Estimate | None:
    """The AUC at the first point of a curve with this gain, value and ends interpolated linearly.

    The curve begins where nothing is trained: no gain, and an AUC of ½. None where it never reaches the gain.

    Args:
        curve: gain and AUC, in the order of the epochs.
        gain: in nats a token, positive.
    """
    if not curve:
        return None
    start = Estimate(value=0.5, low=0.5, high=0.5, confidence=curve[0][1].confidence)
    for (gain_before, before), (gain_after, after) in pairwise([(0.0, start), *curve]):
        if gain_before <= gain <= gain_after:
            share = (gain - gain_before) / (gain_after - gain_before) if gain_after > gain_before else 1.0
            ends = {name: (1 - share) * getattr(before, name) + share * getattr(after, name) for name in _ENDS}
            return Estimate(confidence=after.confidence, **ends)
    return None


_ENDS = ("value", "low", "high")


def _pooled(found: Sequence[Estimate | None], pool: Callable[[Sequence[Estimate]], Estimate]) -> Estimate | None:
    known = [estimate for estimate in found if estimate is not None]
    return pool(known) if known else None


def _gain_blocks(curves: dict[str, list[GainPoint]]) -> list[Block]:
    blocks: list[Block] = [
        Paragraph(
            text="Gain is what adaptation added to the log-probability of a token of the non-members, in nats over "
            "the base model; an AUC of 0.5 is chance. Each point is a number of epochs, trained from the base; seeds "
            "are pooled, with the mean ends of their intervals."
        )
    ]
    blocks += [_gain_chart(curves, name) for name in COMPARED_ATTACKS if _has_attack(curves, name)]
    blocks.append(_gain_table(curves))
    blocks += [_equal_gain_table(curves, name) for name in COMPARED_ATTACKS if _has_attack(curves, name)]
    return blocks


def _has_attack(curves: dict[str, list[GainPoint]], name: str) -> bool:
    return any(name in point.aucs for curve in curves.values() for point in curve)


def _gain_chart(curves: dict[str, list[GainPoint]], attack: AttackName) -> LineChart:
    series = []
    for label, curve in curves.items():
        points = [(point.gain, point.aucs[attack]) for point in curve if point.gain and attack in point.aucs]
        if points:
            series.append(
                Series(
                    label=label,
                    x=tuple(gain.value for gain, _ in points),
                    y=tuple(auc.value for _, auc in points),
                    low=tuple(auc.low for _, auc in points),
                    high=tuple(auc.high for _, auc in points),
                )
            )
    return LineChart(
        title=f"Held-out gain against the AUC of the attack '{attack}'",
        description="One curve a technique through its numbers of epochs; right is useful, down is private.",
        x_label="held-out gain over the base, nats a token",
        y_label=f"AUC of {attack}",
        series=tuple(series),
        error_bars=True,
        level=0.5,
    )


def _gain_table(curves: dict[str, list[GainPoint]]) -> Table:
    attacks = tuple(dict.fromkeys(name for curve in curves.values() for point in curve for name in point.aucs))
    rows: list[tuple[TableCell, ...]] = [
        (point.label, point.epochs, point.gain, point.member_gain, *(point.aucs.get(name) for name in attacks))
        for curve in curves.values()
        for point in curve
    ]
    return Table(
        name="gain",
        title="Gain and the AUC of each attack",
        columns=("Technique", "Epochs", "Held-out gain", "Members' gain", *attacks),
        rows=tuple(rows),
    )


def _equal_gain_table(curves: dict[str, list[GainPoint]], attack: AttackName) -> Table:
    best = max(point.gain.value for curve in curves.values() for point in curve if point.gain)
    columns, rows = ["Technique", "Largest gain"], []
    levels = [share * best for share in SHARES_OF_BEST_GAIN] if best > 0 else []
    columns += [f"at {level:.3f} nats" for level in levels]
    for label, curve in curves.items():
        path = [(point.gain.value, point.aucs[attack]) for point in curve if point.gain and attack in point.aucs]
        largest: TableCell = max((gain for gain, _ in path), default=None)
        rows.append((label, largest, *(auc_at_gain(path, level) for level in levels)))
    return Table(
        name=f"equal-gain-{attack.replace('+', 'p')}",
        title=f"AUC of {attack} at equal held-out gain",
        columns=tuple(columns),
        rows=tuple(rows),
        note="Interpolated between numbers of epochs, from chance at no gain. Empty: it never gains as much.",
    )


def _canary_chart(points: Sequence[GainPoint]) -> LineChart:
    longest = {label: max(p.epochs for p in points if p.label == label) for label in {p.label for p in points}}
    series = []
    for point in points:
        exposures = _exposures(point)
        if point.epochs == longest[point.label] and exposures:
            series.append(
                Series(label=f"{point.label}, {point.epochs} epochs", x=tuple(exposures), y=tuple(exposures.values()))
            )
    return LineChart(
        title="Mean exposure of canaries by how often they were planted",
        description="One line a technique at its largest number of epochs; 1.44 bits is chance.",
        x_label="times planted",
        y_label="exposure, bits",
        x_scale="log",
        series=tuple(series),
        level=1.4427,
    )


def _exposures(point: GainPoint) -> dict[float, float]:
    """Mean exposure in bits by how often canaries were planted, without the held-out twins."""
    bits: dict[int, list[float]] = defaultdict(list)
    for canary in point.canaries:
        if canary.repetitions > 0:
            bits[canary.repetitions] += [exposure.exposure_bits for exposure in canary.exposures]
    return {float(times): sum(found) / len(found) for times, found in sorted(bits.items()) if found}


def _canary_table(points: Sequence[GainPoint]) -> Table:
    times = sorted({canary.repetitions for point in points for canary in point.canaries})
    rows: list[tuple[TableCell, ...]] = []
    for point in sorted(points, key=lambda point: (point.label, point.epochs)):
        if not point.canaries:
            continue
        row: list[TableCell] = [point.label, point.epochs]
        for repetitions in times:
            group = [canary for canary in point.canaries if canary.repetitions == repetitions]
            bits = [exposure.exposure_bits for canary in group for exposure in canary.exposures]
            count = sum(canary.num_canaries for canary in group)
            emitted = sum(
                round(canary.extracted_greedy.value * canary.num_canaries)
                for canary in group
                if canary.extracted_greedy is not None
            )
            row.append(f"{sum(bits) / len(bits):.1f} bits; {emitted} of {count} repeated" if bits else None)
        rows.append(tuple(row))
    return Table(
        name="canary-repetitions",
        title="Exposure, and canaries repeated verbatim by greedy decoding, by how often they were planted",
        columns=("Technique", "Epochs", *(f"planted {count} times" if count else "held out" for count in times)),
        rows=tuple(rows),
        note="Canaries of all seeds together; the held-out twins show chance, 1.44 bits.",
    )
