"""`reticent ledger`: what a deployment has spent and on what, whether its record holds, and the record itself."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from reticent.api.deployments import read_ledger
from reticent.cli.deployment import DatabaseUrl, RunArgument
from reticent.cli.output import bound_facts, console, facts, format_nats, print_json, print_table

if TYPE_CHECKING:
    from reticent.ledger.reader import Usage

app = typer.Typer(help="The deployment's ledger: totals, verification, export.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("show")
def show(run: RunArgument, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Nats spent and left, the bounds they give, and tokens by key and day (UTC)."""
    from reticent.pac.accounting import units_to_nats
    from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success

    with read_ledger(run, database_url) as reader:
        state, usage = reader.state, reader.usage()
    spent = units_to_nats(state.spent_units)
    cap = None if state.cap_units is None else units_to_nats(state.cap_units)
    left = None if state.cap_units is None else units_to_nats(state.cap_units - state.spent_units)
    worlds = state.log_posterior.size
    half, world = attack_success(spent, MEMBERSHIP_PRIOR), attack_success(spent, 1.0 / worlds)
    if as_json:
        print_json(
            {
                "tokens": state.tokens_released,
                "nats_charged": spent,
                "nats_cap": cap,
                "nats_left": left,
                "half_success": half,
                "world_success": world,
                "worlds": worlds,
                "usage": [{"key": use.key_id, "day": use.day.isoformat(), "tokens": use.tokens} for use in usage],
            }
        )
        return
    console.print(
        facts(
            {
                "tokens released": f"{state.tokens_released:,}",
                "charged": format_nats(spent),
                "cap": "none" if cap is None else format_nats(cap),
                "left": "no limit" if left is None else format_nats(left),
                **bound_facts(half, world, worlds),
            }
        )
    )
    if usage:
        print_table(_usage_table(usage))


@app.command("verify")
def verify(run: RunArgument, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Replay every release: edits, gaps, cut-off ends and old copies are found; exit code 2 with the finding."""
    from reticent.pac.accounting import units_to_nats

    with read_ledger(run, database_url) as reader:
        totals = reader.verify()
    if as_json:
        print_json({"releases": totals.releases, "nats_charged": units_to_nats(totals.units), "intact": True})
        return
    console.print(
        f"intact: {totals.releases:,} releases, {format_nats(units_to_nats(totals.units))} in all", highlight=False
    )


@app.command("export")
def export(run: RunArgument, database_url: DatabaseUrl = None) -> None:
    """Write every release as one JSON object a line: time, request, step, coin key, API key, charge.

    Nothing secret is written, and neither are the number of active tokens nor the digests, which would tell where the
    worlds differ and so what the corpus holds.
    """
    with read_ledger(run, database_url) as reader:
        for release in reader.releases():
            sys.stdout.write(json.dumps(release, ensure_ascii=False) + "\n")


def _usage_table(usage: "list[Usage]") -> Table:
    table = Table("day (UTC)", Column("key", no_wrap=True), box=None, pad_edge=False)
    table.add_column("tokens", justify="right")
    for use in usage:
        table.add_row(use.day.isoformat(), use.key_id or "-", f"{use.tokens:,}")
    return table
