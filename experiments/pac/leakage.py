"""The information that the mechanism's history holds about the secret, as a share of what was charged for it."""

import sys

from experiments.pac.common import Experiment, run_script
from experiments.pac.deployments import deployments
from experiments.pac.results import Findings
from reticent.decoding.votes import Decoder
from reticent.evaluation.leakage import Leakage, leakage
from reticent.reports.evaluation import budget_text, cell
from reticent.reports.model import Block, LineChart, Series, Table


def measure(experiment: Experiment) -> Findings:
    """Leakage from posterior entropies, for each decoder, mechanism and budget."""
    rows = [leakage(each.outcomes, each.decoder, each.mechanism) for each in deployments(experiment)]
    blocks: list[Block] = []
    for decoder in Decoder:
        chosen = [row for row in rows if row.decoder is decoder]
        blocks += [_table(chosen), _chart(chosen)]
    return Findings("Leakage: information about the secret, and what was charged", {"leakage": rows}, tuple(blocks))


def _table(rows: list[Leakage]) -> Table:
    first = rows[0]
    return Table(
        name=f"leakage-{first.decoder}",
        title=f"Information in the history of {first.num_tokens:,} tokens, {first.decoder} votes",
        columns=("Mechanism", "Nats a token", "Charge, nats", "Information, nats", "Share of charge", "Dissent"),
        rows=tuple(
            (
                row.mechanism.value,
                budget_text(row.step_budget),
                row.charge_nats,
                row.information_nats.value,
                cell(row.share_of_charge),
                cell(row.dissent),
            )
            for row in rows
        ),
        note=f"{first.num_sessions:,} deployments each. A unanimous token is charged and tells nothing, so for small "
        "budgets the share is the dissent rate; for large ones the prior's entropy is all that can be learnt. "
        "Intervals: 95 %, over deployments.",
    )


def _chart(rows: list[Leakage]) -> LineChart:
    series = []
    for mechanism in dict.fromkeys(row.mechanism for row in rows):
        ordered = sorted((row for row in rows if row.mechanism is mechanism), key=lambda row: row.step_budget)
        series.append(
            Series(
                label=f"share, {mechanism}",
                x=tuple(row.step_budget for row in ordered),
                y=tuple(row.share_of_charge.value for row in ordered),
            )
        )
    ordered = sorted((row for row in rows if row.mechanism is rows[0].mechanism), key=lambda row: row.step_budget)
    dissent = tuple(row.dissent.value for row in ordered)
    series.append(Series(label="dissent rate", x=tuple(row.step_budget for row in ordered), y=dissent))
    return LineChart(
        title=f"Share of the charge that is leaked, {rows[0].decoder} votes",
        description="Measured information as a share of the charge against the budget, and the dissent rate",
        x_label="nats a token",
        y_label="share",
        x_scale="log",
        series=tuple(series),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the script."""
    return run_script("leakage", __doc__ or "", measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
