"""Warnings for a user when noise eats what adaptation gains.

Two rules, stated in docs/evaluate.md. They are read off the smallest budget measured, where a deployment that must last
will work; utility hardly depends on the budget there.
"""

from collections.abc import Iterable

from reticent.evaluation.utility import Utility, UtilityRow
from reticent.stats.means import Mean

LEAST_UNANIMITY = 0.65
LEAST_KEPT = 0.5
REMEDY = "train for fewer steps, at a lower rate, on fewer layers or on more records (docs/evaluate.md)"


def verdict_warnings(utilities: Iterable[Utility]) -> list[str]:
    """List the warnings on the utility of each decoder, most important first."""
    warnings = []
    for result in utilities:
        name = result.decoder.value
        if not _clearly_positive(result.gain):
            warnings.append(
                f"{name}: the worlds are not measurably better than the public model on these texts "
                f"(gain {result.gain.value:+.2%}), so there is no gain to keep"
            )
            continue
        released = [row for row in result.rows if row.step_budget is not None and row.kept is not None]
        warnings += [
            f"{name}: at {row.step_budget:.3g} nats a token the {row.method} release keeps {row.kept.value:.0%} of the "
            f"noiseless gain; worlds dissent too often: {REMEDY}"
            for row in _at_smallest_budget(released)
            if row.kept is not None and row.kept.value < LEAST_KEPT
        ]
        if result.unanimity.value < LEAST_UNANIMITY:
            warnings.append(
                f"{name}: all worlds agree at only {result.unanimity.value:.0%} of positions (below "
                f"{LEAST_UNANIMITY:.0%}), and where they differ the released token is mostly noise: {REMEDY}"
            )
    return warnings


def _clearly_positive(gain: Mean) -> bool:
    interval = gain.interval()
    return gain.value > 0.0 and (interval is None or interval[0] > 0.0)


def _at_smallest_budget(rows: list[UtilityRow]) -> list[UtilityRow]:
    smallest = min((row.step_budget for row in rows if row.step_budget is not None), default=None)
    return [row for row in rows if row.step_budget == smallest]
