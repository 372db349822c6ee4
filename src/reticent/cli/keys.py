"""`reticent keys`: who may ask a deployment. Works while the server runs; changes are in force within a second."""

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from reticent.api.deployments import run_id
from reticent.cli.deployment import DatabaseUrl, RunArgument
from reticent.cli.output import notes, print_json, print_table
from reticent.errors import InvalidValueError

if TYPE_CHECKING:
    from reticent.ledger.api_keys import ApiKey, KeyChanges, KeyTable

app = typer.Typer(help="API keys of a deployment: make, list, change and revoke them.")

_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNLIMITED: Final = "any"
_NEVER: Final = "never"

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
KeyId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The key's id, from `reticent keys list`, or a beginning of it that is its own."),
]


@app.command("create")
def create(
    run: RunArgument,
    name: Annotated[str, typer.Option(help="Who holds it.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="generate (text) or admin (metrics, dashboard); may be repeated.")
    ] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Most tokens in a minute.")] = None,
    total_tokens: Annotated[int | None, typer.Option(help="Most tokens over the key's life.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="When it ends: 90d, 12h, 2027-01-31 or 2027-01-31T18:00 (UTC).")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. It is shown once; the ledger keeps its hash alone."""
    from reticent.ledger.api_keys import Scope

    try:
        scopes = {Scope(word) for word in scope or [Scope.GENERATE]}
    except ValueError:
        raise InvalidValueError(f"a scope is one of {', '.join(Scope)}; got {', '.join(scope or ())}") from None
    end = None if expires is None else _time(expires)
    key, text = _table(run, database_url).create(name, scopes, tokens_per_minute, total_tokens, end)
    if as_json:
        print_json(_facts(key, 0) | {"key": text})
        return
    notes.print(f"key {key.id} for {key.name}; it is shown this once:", highlight=False, markup=False)
    typer.echo(text)


@app.command("list")
def list_(run: RunArgument, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """All keys, with what they have used. The first column is what `keys set` and `keys revoke` take."""
    from rich.console import JustifyMethod
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
    for column in ("id", "name", "scopes", "used", "of", "a minute", "created", "state"):
        side: JustifyMethod = "right" if column in ("used", "of", "a minute") else "left"
        table.add_column(column, justify=side, no_wrap=column == "id", overflow="fold")
    for key in keys:
        table.add_row(
            key.id,
            key.name,
            ", ".join(sorted(key.scopes)),
            f"{used.get(key.id, 0):,}",
            _quota(key.total_tokens),
            _quota(key.tokens_per_minute),
            _day(key.created) or "",
            _state(key),
        )
    print_table(table)


@app.command("set")
def set_(
    run: RunArgument,
    key: KeyId,
    name: Annotated[str | None, typer.Option(help="Who holds it now.")] = None,
    tokens_per_minute: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Most tokens in a minute, or any.")
    ] = None,
    total_tokens: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="Most tokens over its whole life, used ones included, or any.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="When it ends: as for `keys create`, or never.")
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a key another name, quota or expiry. Its text and its scopes stay."""
    from reticent.ledger.database import Database
    from reticent.ledger.usage import UsageTable

    changes: KeyChanges = {}
    if name is not None:
        changes["name"] = name
    if tokens_per_minute is not None:
        changes["tokens_per_minute"] = _tokens("tokens-per-minute", tokens_per_minute)
    if total_tokens is not None:
        changes["total_tokens"] = _tokens("total-tokens", total_tokens)
    if expires is not None:
        changes["expires"] = None if expires == _NEVER else _time(expires)
    changed = _table(run, database_url).change(key, changes)
    if as_json:
        used = UsageTable(Database.of_run(run, database_url)).tokens_by_key()
        print_json(_facts(changed, used.get(changed.id, 0)))
        return
    notes.print(
        f"key {changed.id} for {changed.name}: {_quota(changed.total_tokens)} tokens in all, "
        f"{_quota(changed.tokens_per_minute)} a minute, {_state(changed)}",
        highlight=False,
        markup=False,
    )


@app.command("revoke")
def revoke(run: RunArgument, key: KeyId, database_url: DatabaseUrl = None) -> None:
    """End a key, and its answers under way. What it was given stays charged."""
    revoked = _table(run, database_url).revoke(key)
    notes.print(f"key {revoked.id} for {revoked.name} is revoked", highlight=False, markup=False)


def _table(run: Path, database_url: str | None) -> "KeyTable":
    from reticent.ledger.api_keys import KeyTable
    from reticent.ledger.database import Database
    from reticent.ledger.lock import recall
    from reticent.ledger.opening import existing_header, require_undeployed

    run_id(run)
    database = Database.of_run(run, database_url)
    if existing_header(database) is None:
        # A ledger that is elsewhere has its keys there; made here, a key would never be asked for.
        require_undeployed(*recall(run), database)
    return KeyTable(database)


def _facts(key: "ApiKey", used: int) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "tokens_used": used,
        "total_tokens": key.total_tokens,
        "tokens_per_minute": key.tokens_per_minute,
        "created": _day(key.created),
        "expires": _day(key.expires),
        "revoked": _day(key.revoked),
        "live": key.is_live(time.time()),
    }


def _state(key: "ApiKey") -> str:
    if key.revoked is not None:
        return f"revoked {_day(key.revoked)}"
    if key.expires is None:
        return "live"
    return f"{'expired' if key.has_expired(time.time()) else 'live until'} {_day(key.expires)}"


def _quota(tokens: int | None) -> str:
    return _UNLIMITED if tokens is None else f"{tokens:,}"


def _tokens(what: str, text: str) -> int | None:
    if text == _UNLIMITED:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise InvalidValueError(f"{what} must be a number of tokens, or {_UNLIMITED}; got {text!r}")
    return int(text)


def _time(text: str) -> int:
    """Seconds since 1970 of a time from now (`90d`), or of a date or time in UTC unless it names another zone."""
    if matched := re.fullmatch(r"([0-9]{1,9})([mhdw])", text):
        return int(time.time()) + int(matched[1]) * _SECONDS[matched[2]]
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise InvalidValueError(
            f"a time is a number with m, h, d or w from now (90d), or a date or time in UTC (2027-01-31T18:00); "
            f"got {text!r}"
        ) from None


def _day(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
