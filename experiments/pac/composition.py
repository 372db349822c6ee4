"""Leakage through the curator's own posterior after whole deployments against one secret, beside bound and prior."""

import sys

from experiments.pac.common import Experiment, run_script
from experiments.pac.deployments import deployments
from experiments.pac.results import Findings
from reticent.decoding.votes import Decoder
from reticent.evaluation.sessions import Composition, composition
from reticent.reports.evaluation import budget_text, cell
from reticent.reports.model import Block, LineChart, Series, Table


def measure(experiment: Experiment) -> Findings:
    """Membership and world named rightly, for each decoder, mechanism and budget."""
    members_UM = experiment.run.membership().members
    rows = [
        composition(each.outcomes, each.decoder, each.mechanism, members_UM, experiment.settings.seed)
        for each in deployments(experiment)
    ]
    blocks: list[Block] = []
    for decoder in Decoder:
        chosen = [row for row in rows if row.decoder is decoder]
        blocks += [_table(chosen), _chart(chosen)]
    return Findings("Composition: many queries against one secret", {"composition": rows}, tuple(blocks))


def _table(rows: list[Composition]) -> Table:
    first = rows[0]
    return Table(
        name=f"composition-{first.decoder}",
        title=f"What the curator's posterior tells after {first.num_tokens:,} tokens, {first.decoder} votes",
        columns=("Mechanism", "Nats a token", "Record's half named right", "Bound", "World named right", "Bound on it"),
        rows=tuple(
            (
                row.mechanism.value,
                budget_text(row.step_budget),
                cell(row.membership),
                row.membership_bound,
                row.world,
                row.world_bound,
            )
            for row in rows
        ),
        note=f"{first.num_sessions:,} deployments each. Guessing alone: {first.membership_prior:.2f} for a record, "
        f"{first.world_prior:.4f} for the world. Worlds dissent on {first.dissent.value:.1%} of the tokens. Intervals, "
        "95 %: over deployments for records, exact for worlds.",
    )


def _chart(rows: list[Composition]) -> LineChart:
    def line(label: str, some: list[Composition], name: str) -> Series:
        ordered = sorted(some, key=lambda row: row.step_budget)
        values = [getattr(row, name) for row in ordered]
        return Series(
            label=label,
            x=tuple(row.step_budget for row in ordered),
            y=tuple(value if isinstance(value, float) else value.value for value in values),
        )

    series = []
    for mechanism in dict.fromkeys(row.mechanism for row in rows):
        some = [row for row in rows if row.mechanism is mechanism]
        series += [line(f"record, {mechanism}", some, "membership"), line(f"world, {mechanism}", some, "world")]
    some = [row for row in rows if row.mechanism is rows[0].mechanism]
    series += [line("bound, record", some, "membership_bound"), line("bound, world", some, "world_bound")]
    return LineChart(
        title=f"Attack success against budget, {rows[0].decoder} votes",
        description="Success of the curator's posterior at naming membership and the world, and the bounds on both",
        x_label="nats a token",
        y_label="success",
        x_scale="log",
        series=tuple(series),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("composition", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
