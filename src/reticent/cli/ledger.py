"""`reticent ledger`: what a deployment has spent and on what, whether its record holds, and the record itself."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from reticent.api.deployments import read_ledger
from reticent.cli.deployment import DatabaseUrl, RunArgument
from reticent.cli.output import console, facts, format_nats, print_json, print_table
from reticent.cli.spending import has_prior, spending_facts, spending_record

if TYPE_CHECKING:
    from reticent.ledger.reader import DailyUsage

app = typer.Typer(help="The deployment's ledger: totals, verification, export.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("show")
def show(run: RunArgument, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Nats spent and left, the bounds they give, what each charging rule charges, and tokens by key and day (UTC)."""
    from reticent.pac.accounting import units_to_nats

    with read_ledger(run, database_url) as reader:
        state, usage = reader.state, reader.usage()
        nats_by_rule = {rule.value: units_to_nats(units) for rule, units in reader.units_by_rule().items()}
    if as_json:
        rows = [{"key": use.key_id, "day": use.day.isoformat(), "tokens": use.tokens} for use in usage]
        found = {"nats_by_rule": nats_by_rule, "usage": rows}
        print_json(spending_record(state, prior_known=has_prior(run)) | found)
        return
    others = {
        f"the rule {rule} would have charged": format_nats(nats)
        for rule, nats in nats_by_rule.items()
        if rule != state.charging_rule
    }
    console.print(facts(spending_facts(state, prior_known=has_prior(run)) | others))
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


def _usage_table(usage: "list[DailyUsage]") -> Table:
    table = Table("day (UTC)", Column("key", no_wrap=True), box=None, pad_edge=False)
    table.add_column("tokens", justify="right")
    for use in usage:
        table.add_row(use.day.isoformat(), use.key_id or "-", f"{use.tokens:,}")
    return table
