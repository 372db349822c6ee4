"""Reading of a ledger: its state, its verification, its totals and its releases, from one snapshot.

Reading takes no lock and changes nothing; it works while another process releases tokens. Every reader has checked
that the ledger belongs to the run and is neither older than the mark nor, at the same length, another one than it
knows, and has opened the sealed state; whether the chain holds, and holds the release the mark knows, is said by
`verify`.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import Connection, Row, func, inspect, select

from reticent.dp.curator import CorpusState
from reticent.dp.relations import Relation
from reticent.dp.release import CorpusSettings
from reticent.errors import DeploymentStateError, InvalidValueError
from reticent.guarantees import Guarantee
from reticent.ledger import chain, schema
from reticent.ledger.chain import Totals
from reticent.ledger.database import Database
from reticent.ledger.high_water_mark import LastRelease, read_mark
from reticent.ledger.keys import Keyring, StateKey
from reticent.ledger.lock import is_deployment_id
from reticent.ledger.sealing import (
    Header,
    LedgerCheckpoint,
    corpus_state,
    realised_world_state,
    run_digest,
    unseal,
)
from reticent.ledger.writer import state_missing
from reticent.pac.accounting import units_to_nats
from reticent.pac.charging import ChargingRule
from reticent.pac.curator import CuratorState

_ROWS_AT_ONCE: Final = 1000
_SECONDS_A_DAY: Final = 86_400
_GO_ON_WITH_THE_LATEST: Final = (
    "Go on with the latest ledger, where it is; `reticent state reset` here deletes this copy alone and leaves the "
    "deployment's key and mark"
)


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """Tokens released for one API key (None: without a key) on one day (UTC)."""

    key_id: str | None
    day: date
    tokens: int


class LedgerReader:
    """One snapshot of a ledger. Use it with `with`.

    Args:
        run_dir: the run directory.
        run_id: the hash of its manifest.
        keyring: provides the key and the mark.
        database: where the ledger lies.

    Raises:
        DeploymentStateError: there is no ledger, it belongs to another run, comes from a newer schema, is older than
            the mark or went another way, was altered, or its key or mark is missing.
        StorageError: the database cannot be reached.
    """

    def __init__(self, run_dir: Path, run_id: str, keyring: Keyring, database: Database) -> None:
        self._database = database
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            if database.missing:
                raise _no_ledger(database)
            engine = undo.enter_context(database.opened(write=False))
            with database.errors():
                self._connection = undo.enter_context(engine.connect())
                header = read_header(self._connection, database)
            if header is None:
                raise _no_ledger(database)
            require_run(header, run_id, database)
            self._header = header
            self._key = keyring.load(header.deployment_id)
            # The mark first: a commit in between moves the ledger ahead of it, never behind.
            self._marked = read_mark(keyring.mark_path(header.deployment_id))
            self._connection.rollback()
            self._checkpoint = self._load()
            _require_latest(self._checkpoint, self._marked, database)
            self._undo = undo.pop_all()

    @property
    def header(self) -> Header:
        """The deployment, run and schema of the ledger."""
        return self._header

    @property
    def key(self) -> StateKey:
        """The key of the deployment."""
        return self._key

    @property
    def checkpoint(self) -> LedgerCheckpoint:
        """The state and the head of the chain. Secret."""
        return self._checkpoint

    @property
    def state(self) -> CuratorState:
        """The state of a realised-world deployment. Secret.

        Raises:
            DeploymentStateError: the deployment has the corpus guarantee.
        """
        return realised_world_state(self._checkpoint.state, self._database)

    @property
    def corpus_state(self) -> CorpusState:
        """The state of a corpus deployment.

        Raises:
            DeploymentStateError: the deployment has the other guarantee.
        """
        return corpus_state(self._checkpoint.state, self._database)

    def verify(self) -> Totals:
        """Replay the chain and compare it with what is sealed; rows are read in passing, whatever their number.

        Raises:
            DeploymentStateError: the finding: a row was edited, deleted, added or cut off, or the release that the
                mark knows is another one.
            StorageError: the database cannot be read.
        """
        start = chain.first_digest(self._header.deployment_id, self._header.run_digest)
        totals = chain.replay(self._rows(), start)
        chain.require_sealed(totals, self._checkpoint.totals)
        with self._database.errors():
            if not holds_release(self._connection, self._header, self._marked):
                raise _fork_error(self._database, self._marked)
        return totals

    def usage(self) -> list[DailyUsage]:
        """Tokens by key and day, by day first."""
        table = schema.releases.c
        day = (table.time - table.time % _SECONDS_A_DAY).label("day")
        query = (
            select(table.key_id, day, func.count())
            .select_from(schema.releases)
            .group_by(table.key_id, day)
            .order_by(day, table.key_id)
        )
        with self._database.errors():
            rows = self._connection.execute(query).all()
        return [DailyUsage(key_id, datetime.fromtimestamp(start, UTC).date(), tokens) for key_id, start, tokens in rows]

    def units_by_rule(self) -> dict[ChargingRule, int]:
        """Charges for the releases so far by each rule, in units of 2^-64 nat; one of them was the deployment's.

        Raises:
            DeploymentStateError: the deployment has the corpus guarantee, which has one rule.
        """
        realised_world_state(self._checkpoint.state, self._database)
        table = schema.releases.c
        reserve = table.reserve_units if self._header.has_rule else table.charge_units
        differ = table.num_active > 1
        with self._database.errors():
            rows = self._connection.execute(select(reserve, differ, func.count()).group_by(reserve, differ)).all()
        # Amounts pass 64 bits, so they are added here; a deployment has few different ones.
        worst = [(int(units, 16) * count, bool(is_dissenting)) for units, is_dissenting, count in rows]
        return {
            ChargingRule.FIXED: sum(units for units, _ in worst),
            ChargingRule.DISSENT: sum(units for units, is_dissenting in worst if is_dissenting),
        }

    def releases(self) -> Iterator[dict[str, object]]:
        """Every release as plain values, without anything secret.

        The number of active tokens is left out, with the digest, from which it could be guessed, and a charge that
        depends on it: they tell where the worlds differ, and so what the corpus holds. `nats` is the most that the
        token could have cost, which is what the rule `fixed` charged; a corpus deployment has `rho` instead.
        """
        unit = "nats" if self._header.guarantee is Guarantee.REALISED_WORLD else "rho"
        for row in self._rows():
            yield {
                "release": row.number,
                "time": datetime.fromtimestamp(row.time, UTC).isoformat().replace("+00:00", "Z"),
                "request": row.request,
                "step": row.step,
                "coin_key": None if row.coin_key is None else row.coin_key.hex(),
                "key": row.key_id,
                unit: units_to_nats(int(row.reserve_units if self._header.has_rule else row.charge_units, 16)),
            }

    def close(self) -> None:
        """Let go of the snapshot."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> LedgerCheckpoint:
        with self._database.errors():
            row = self._connection.execute(select(schema.state)).one_or_none()
        if row is None:
            raise state_missing(self._database)
        checkpoint = unseal(self._key, self._header, bytes(row.sealed))
        if checkpoint.state.tokens_released != row.tokens_released:
            raise DeploymentStateError(
                f"{self._database} counts {row.tokens_released} released tokens, but "
                f"{checkpoint.state.tokens_released} are sealed: the state row was edited"
            )
        return checkpoint

    def _rows(self) -> Iterator[Row[Any]]:
        with self._database.errors():
            query = select(*schema.release_columns(has_reserve=self._header.has_rule))
            query = query.order_by(schema.releases.c.number)
            yield from self._connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)


def read_header(connection: Connection, database: Database) -> Header | None:
    """The header of a ledger, or None where the database holds no deployment.

    Raises:
        DeploymentStateError: the ledger comes from a newer schema, or a table was dropped.
    """
    tables = set(inspect(connection).get_table_names())
    if schema.deployment.name not in tables:
        return None
    columns = schema.present_columns(connection, schema.deployment)
    row = connection.execute(select(*columns)).one_or_none()
    if row is None:
        return None
    if row.schema_version > schema.SCHEMA_VERSION:
        raise DeploymentStateError(
            f"{database} has schema version {row.schema_version}, this release reads up to {schema.SCHEMA_VERSION}; "
            "upgrade reticent"
        )
    for table in (schema.state, schema.releases):
        if table.name not in tables:
            raise DeploymentStateError(
                f"{database} holds a deployment, but its table {table.name!r} was dropped; put the latest ledger back, "
                "or reset with `reticent state reset`"
            )
    if not is_deployment_id(row.deployment_id):
        raise DeploymentStateError(f"{database} names its deployment by no identifier; put the latest ledger back")
    return Header(
        row.schema_version,
        row.deployment_id,
        bytes(row.run_digest),
        _charging_rule(row, database),
        _constants(row, database),
    )


def _charging_rule(row: Row[Any], database: Database) -> ChargingRule:
    """The rule in the row of a deployment; `fixed` where its schema keeps none."""
    if row.schema_version < schema.FIRST_VERSION_WITH_RULE:
        return ChargingRule.FIXED
    try:
        return ChargingRule(str(getattr(row, "charging_rule", "")))
    except ValueError:
        raise DeploymentStateError(
            f"{database} names no charging rule of this release; put the latest ledger back, or upgrade reticent"
        ) from None


def _constants(row: Row[Any], database: Database) -> CorpusSettings | None:
    """The constants in the row of a corpus deployment; None for one of the other guarantee, or of an older schema."""
    name = getattr(row, "guarantee", None)
    if row.schema_version < schema.FIRST_VERSION_WITH_RULE or name in (None, Guarantee.REALISED_WORLD):
        return None
    try:
        if name != Guarantee.CORPUS:
            raise InvalidValueError(f"no guarantee is called {name!r}")
        relation = Relation(str(row.relation))
        return CorpusSettings(row.clip, row.gain, row.temperature, row.num_candidates, row.num_worlds, relation)
    except (AttributeError, ValueError):
        raise DeploymentStateError(
            f"{database} names no guarantee of this release, or not its constants; put the latest ledger back, or "
            "upgrade reticent"
        ) from None


def holds_release(connection: Connection, header: Header, last: LastRelease) -> bool:
    """True if a ledger holds the last release that a mark knows; its chain is taken as it stands."""
    if last.tokens == 0:
        found: bytes | None = chain.first_digest(header.deployment_id, header.run_digest)
    else:
        row = select(schema.releases.c.digest).where(schema.releases.c.number == last.tokens)
        stored = connection.execute(row).scalar_one_or_none()
        found = None if stored is None else bytes(stored)
    return found is not None and last.head in (None, found)


def require_run(header: Header, run_id: str, database: Database) -> None:
    """Check that a ledger belongs to a run.

    Raises:
        DeploymentStateError: it belongs to another.
    """
    here = run_digest(run_id)
    if header.run_digest != here:
        raise DeploymentStateError(
            f"the ledger {database} belongs to run {header.run_digest.hex()[:16]}, not to run {here.hex()[:16]} found "
            "here; put it back beside the worlds it was made for"
        )


def _require_latest(checkpoint: LedgerCheckpoint, marked: LastRelease, database: Database) -> None:
    tokens = checkpoint.state.tokens_released
    if tokens < marked.tokens:
        raise DeploymentStateError(
            f"the ledger {database} was made after {tokens} released tokens, but {marked.tokens} have been released; "
            f"it is an old copy, and continuing from it would void the guarantee. {_GO_ON_WITH_THE_LATEST}"
        )
    if tokens == marked.tokens and marked.head not in (None, checkpoint.head):
        raise _fork_error(database, marked)


def _fork_error(database: Database, marked: LastRelease) -> DeploymentStateError:
    return DeploymentStateError(
        f"release {marked.tokens} in the ledger {database} is not the one that the mark beside the key knows: it is a "
        "copy that went another way, and continuing from it would void the guarantee. " + _GO_ON_WITH_THE_LATEST
    )


def _no_ledger(database: Database) -> DeploymentStateError:
    return DeploymentStateError(
        f"there is no ledger at {database}; `reticent generate` creates it for a run that never had one"
    )
