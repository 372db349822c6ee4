"""`reticent keys`: who may ask a deployment. Works while the server runs; a revocation is in force within a second."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent.cli.deployment import DatabaseUrl, RunDirectory, run_id
from reticent.cli.output import console, notes, print_json
from reticent.errors import InvalidValueError

if TYPE_CHECKING:
    from reticent.ledger.api_keys import ApiKey, KeyTable

app = typer.Typer(help="API keys of a deployment: make, list and revoke them.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("create")
def create(
    run: RunDirectory,
    name: Annotated[str, typer.Option(help="Who holds it.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="generate (text) or admin (metrics, dashboard); may be repeated.")
    ] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Most tokens in a minute.")] = None,
    total_tokens: Annotated[int | None, typer.Option(help="Most tokens over the key's life.")] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once; the ledger keeps its hash alone."""
    from reticent.ledger.api_keys import Scope

    try:
        scopes = {Scope(word) for word in scope or [Scope.GENERATE]}
    except ValueError:
        raise InvalidValueError(f"a scope is one of {', '.join(Scope)}; got {', '.join(scope or ())}") from None
    key, text = _table(run, database_url).create(name, scopes, tokens_per_minute, total_tokens)
    if as_json:
        print_json(_facts(key, 0) | {"key": text})
        return
    notes.print(f"key {key.id} for {key.name}; it is shown this once:", highlight=False, markup=False)
    typer.echo(text)


@app.command("list")
def list_(run: RunDirectory, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """All keys, with what they have used."""
    from rich.table import Table

    from reticent.ledger.database import Database
    from reticent.ledger.usage import UsageTable

    keys = [stored.key for stored in _table(run, database_url).read()]
    used = UsageTable(Database.of_run(run, database_url)).tokens_by_key()
    rows = [_facts(key, used.get(key.id, 0)) for key in keys]
    if as_json:
        print_json({"keys": rows})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("id", "name", "scopes", "used", "of", "a minute", "created", "revoked"):
        table.add_column(column, justify="right" if column in ("used", "of", "a minute") else "left")
    for key in keys:
        table.add_row(
            key.id,
            key.name,
            ", ".join(sorted(key.scopes)),
            f"{used.get(key.id, 0):,}",
            _quota(key.total_tokens),
            _quota(key.tokens_per_minute),
            _day(key.created) or "",
            _day(key.revoked) or "-",
        )
    console.print(table, markup=False)


@app.command("revoke")
def revoke(
    run: RunDirectory,
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id, from `reticent keys list`.")],
    database_url: DatabaseUrl = None,
) -> None:
    """End a key. What it was given stays charged."""
    revoked = _table(run, database_url).revoke(key)
    notes.print(f"key {revoked.id} for {revoked.name} is revoked", highlight=False, markup=False)


def _table(run: Path, database_url: str | None) -> "KeyTable":
    from reticent.ledger.api_keys import KeyTable
    from reticent.ledger.database import Database

    run_id(run)
    return KeyTable(Database.of_run(run, database_url))


def _facts(key: "ApiKey", used: int) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "tokens_used": used,
        "total_tokens": key.total_tokens,
        "tokens_per_minute": key.tokens_per_minute,
        "created": _day(key.created),
        "revoked": _day(key.revoked),
    }


def _quota(tokens: int | None) -> str:
    return "any" if tokens is None else f"{tokens:,}"


def _day(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
