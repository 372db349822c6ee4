"""`reticent ledger`: what a deployment has spent and on what, whether its record holds, and the record itself."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from reticent.api.deployments import read_ledger
from reticent.cli.deployment import DatabaseUrl, RunArgument
from reticent.cli.output import console, facts, format_nats, print_json, print_table
from reticent.cli.spending import read_spending
from reticent.guarantees import Guarantee

if TYPE_CHECKING:
    from reticent.ledger.reader import DailyUsage, LedgerReader

app = typer.Typer(help="The deployment's ledger: totals, verification, export.")

Delta = Annotated[
    float | None, typer.Option(help="Of a corpus deployment: delta at which epsilon is stated; 1e-6 unless given.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("show")
def show(run: RunArgument, database_url: DatabaseUrl = None, delta: Delta = None, as_json: AsJson = False) -> None:
    """Spent and left, the bounds that gives, what each charging rule charges, and tokens by key and day (UTC)."""
    with read_ledger(run, database_url) as reader:
        spending, usage = read_spending(reader, run, delta), reader.usage()
        nats_by_rule = _nats_by_rule(reader)
        rule_in_force = reader.header.charging_rule
    if as_json:
        rows = [{"key": use.key_id, "day": use.day.isoformat(), "tokens": use.tokens} for use in usage]
        by_rule = {"nats_by_rule": nats_by_rule} if nats_by_rule else {}
        print_json(spending.record | by_rule | {"usage": rows})
        return
    others = {
        f"the rule {rule} would have charged": format_nats(nats)
        for rule, nats in nats_by_rule.items()
        if rule != rule_in_force
    }
    console.print(facts(spending.facts | others))
    if usage:
        print_table(_usage_table(usage))


@app.command("verify")
def verify(run: RunArgument, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Replay every release: edits, gaps, cut-off ends and old copies are found; exit code 2 with the finding."""
    from reticent.dp.accounting import units_to_rho
    from reticent.pac.accounting import units_to_nats

    with read_ledger(run, database_url) as reader:
        totals, is_corpus = reader.verify(), reader.header.guarantee is Guarantee.CORPUS
    charged = units_to_rho(totals.units) if is_corpus else units_to_nats(totals.units)
    if as_json:
        name = "rho_charged" if is_corpus else "nats_charged"
        print_json({"releases": totals.releases, name: charged, "intact": True})
        return
    in_all = f"rho {charged:.6g}" if is_corpus else format_nats(charged)
    console.print(f"intact: {totals.releases:,} releases, {in_all} in all", highlight=False)


@app.command("export")
def export(run: RunArgument, database_url: DatabaseUrl = None) -> None:
    """Write every release as one JSON object a line: time, request, step, coin key, API key, charge.

    Nothing secret is written, and neither are the number of active tokens nor the digests, which would tell where the
    worlds differ and so what the corpus holds.
    """
    with read_ledger(run, database_url) as reader:
        for release in reader.releases():
            sys.stdout.write(json.dumps(release, ensure_ascii=False) + "\n")


def _nats_by_rule(reader: "LedgerReader") -> dict[str, float]:
    """Charges for the releases so far by each rule, in nats; none under the corpus guarantee, which has one rule."""
    from reticent.pac.accounting import units_to_nats

    if reader.header.guarantee is Guarantee.CORPUS:
        return {}
    return {rule.value: units_to_nats(units) for rule, units in reader.units_by_rule().items()}


def _usage_table(usage: "list[DailyUsage]") -> Table:
    table = Table("day (UTC)", Column("key", no_wrap=True), box=None, pad_edge=False)
    table.add_column("tokens", justify="right")
    for use in usage:
        table.add_row(use.day.isoformat(), use.key_id or "-", f"{use.tokens:,}")
    return table
