"""The ledger of a deployment: its secret state, account and releases in one database.

Guarantee. When a commit returns, the sealed state and the releases that led to it are durable together; when it raises,
or the process dies inside it, either all of them are or none. A caller that commits before it shows a token can
therefore lose a token, never a charge or a posterior update. A ledger is opened only if it belongs to the run, its
chain of releases holds and ends with or after the release that the mark beside the key knows, and no other process
writes to it or to a copy that shares its key.

| crash or failure | what stands | why it is safe |
|---|---|---|
| before the transaction commits | n releases, mark n | the token was not shown |
| between the transaction and the mark | n + 1 releases, mark n | counted, not shown; the mark follows at a start |
| the commit is sent and its answer lost | n or n + 1 | nothing is released until it was read again which |
| after the mark | n + 1 releases, mark n + 1 | counted, perhaps shown |

Copies of the ledger that share the key folder are known by its lock and its mark. Copies of the key, the mark and the
ledger on a second machine cannot be told from the original: one deployment, one place.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from reticent.dp.curator import CorpusReleaseRecord, CorpusState
from reticent.errors import DeploymentStateError, InvalidValueError
from reticent.ledger import chain, schema
from reticent.ledger.database import Database
from reticent.ledger.high_water_mark import LastRelease
from reticent.ledger.keys import Keyring
from reticent.ledger.lock import RunLock
from reticent.ledger.opening import (
    Opened,
    in_nats,
    open_or_create,
    require_rule,
    require_worlds,
    with_cap,
)
from reticent.ledger.room import DiskRoom
from reticent.ledger.sealing import DeploymentState, LedgerCheckpoint, realised_world_state, seal, unseal
from reticent.ledger.writer import probe
from reticent.pac.accounting import cap_units
from reticent.pac.charging import DEFAULT_CHARGING_RULE, ChargingRule
from reticent.pac.curator import Curator, CuratorState, ReleaseRecord
from reticent.randomness import NoiseSource

NO_VOTES_COUNTED: Final = 0
"""`num_active` of a corpus deployment's releases."""
LARGEST_BUDGET: Final = 2.0**63

StateT = TypeVar("StateT", CuratorState, CorpusState)
RecordT = TypeVar("RecordT", ReleaseRecord, CorpusReleaseRecord)


class OpenDeployment(Generic[StateT, RecordT]):
    """An open deployment: the database that its curator commits to. Close it, best with `with`.

    Releases are committed one batch after another; `healthy` may be asked from any thread.

    Attributes:
        created: whether the deployment was created by this opening.
    """

    def __init__(self, database: Database, lock: RunLock, opened: Opened, created: bool) -> None:
        self._database = database
        self._lock = lock
        self._opened = opened
        self._tokens = opened.checkpoint.state.tokens_released
        self._head = self._attempted_head = opened.checkpoint.head
        self._failed = False
        folders = {opened.mark.folder} | (set() if database.file is None else {database.file.parent})
        self._rooms = [DiskRoom(folder) for folder in sorted(folders)]
        self.created = created

    def _own_state(self, state: DeploymentState) -> StateT:
        """Return a stored state as one of this deployment's guarantee, or raise `DeploymentStateError`."""
        raise NotImplementedError

    @property
    def database(self) -> Database:
        """The place of the ledger."""
        return self._database

    def commit(self, state: StateT, records: Sequence[RecordT]) -> None:
        """Make releases and the state after them durable; only after this may their tokens be shown.

        Raises:
            DeploymentStateError: the ledger is closed, the state does not follow the last one committed, or another
                process has taken the deployment over, here or from a copy.
            StorageError: it cannot be written; the tokens must not be shown.
        """
        if state.tokens_released != self._tokens + len(records):
            raise DeploymentStateError(
                f"a commit must follow the last one: {self._tokens} tokens are committed, got {len(records)} releases "
                f"and a state after {state.tokens_released}; a deployment has one curator"
            )
        if not state.spent_units <= schema.LARGEST_UNITS:
            raise InvalidValueError("the account of a ledger ends at 2^64 nats; such a charge protects nothing")
        self._failed = True
        self._require_held()
        self._opened.mark.require_current()
        head, rows = self._head, []
        now = int(time.time())
        for number, record in enumerate(records, self._tokens + 1):
            row = _row(number, now, record, has_reserve=self._opened.header.has_rule)
            head = chain.digest(head, **row)
            rows.append(row | {"digest": head})
        sealed = seal(self._opened.key, self._opened.header, LedgerCheckpoint(state, head))
        self._attempted_head = head
        self._opened.writer.advance(self._tokens, state.tokens_released, sealed, rows)
        self._opened.mark.raise_to(LastRelease(state.tokens_released, head))
        self._tokens, self._head, self._failed = state.tokens_released, head, False

    def reconcile(self, state: StateT) -> StateT:
        """Read which state stands in the database after a commit that raised, and continue from it.

        Raises:
            DeploymentStateError: neither the state before the commit nor the one it made: the ledger was put back or
                written to by another process.
            StorageError: the database cannot be reached yet.
        """
        self._require_held()
        checkpoint = unseal(self._opened.key, self._opened.header, self._opened.writer.read_state())
        if checkpoint.head not in (self._head, self._attempted_head):
            raise DeploymentStateError(
                f"{self._database} holds a state after {checkpoint.state.tokens_released} tokens that this process did "
                f"not commit, where it had committed {state.tokens_released}: the ledger was replaced while it was in "
                "use. Nothing more is released; stop, and put the latest ledger back"
            )
        self._opened.mark.raise_to(LastRelease(checkpoint.state.tokens_released, checkpoint.head))
        self._tokens, self._head, self._failed = checkpoint.state.tokens_released, checkpoint.head, False
        return self._own_state(checkpoint.state)

    def healthy(self) -> bool:
        """True if a release could be committed now, as far as can be told without making one.

        Asks the database on a connection of its own; after a failed commit, whether it can be written again. The disks
        of the ledger's file and of the mark must take more bytes.
        """
        try:
            self._require_held()
        except DeploymentStateError:
            return False
        in_place = self._opened.writer.has_its_file and self._opened.mark.in_place
        if not in_place or not all(room.is_there() for room in self._rooms):
            return False
        return probe(self._database, self._opened.writer.epoch, write=self._failed)

    def close(self) -> None:
        """Let go of the deployment; harmless when repeated."""
        if self._lock.held:
            self._opened.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._database)!r})"

    def _require_held(self) -> None:
        if not self._lock.held:
            raise DeploymentStateError(f"the ledger {self._database} is closed; nothing can be released")
        self._lock.require_held()


class Ledger(OpenDeployment[CuratorState, ReleaseRecord]):
    """An open realised-world deployment. Made by `open`.

    Attributes:
        curator: releases tokens, each batch committed here before it returns; for one thread.
    """

    curator: Curator

    @classmethod
    def open(
        cls,
        run_dir: Path,
        run_id: str,
        num_worlds: int,
        keyring: Keyring,
        *,
        database_url: str | None = None,
        total_budget: float | None = None,
        charging_rule: ChargingRule | None = None,
        noise: NoiseSource,
    ) -> Self:
        """Continue the deployment of a run, or draw its secret and create its ledger at the first use.

        Args:
            run_dir: the run directory; it must be writable.
            run_id: the hash of its manifest; a ledger opens with its own run only.
            num_worlds: m, even.
            keyring: provides the key, and keeps the mark.
            database_url: `sqlite:///…` or `postgresql://…`; `ledger.sqlite` in the run directory unless given.
            total_budget: B, the cap over the deployment's life in nats, at most 2^63; None for no cap, or for the
                cap the deployment has. An existing deployment's cap may be set or lowered, never raised.
            charging_rule: the rule by which tokens are charged over the deployment's life; None for the one it has, or
                `fixed` for a new one.
            noise: draws the secret and the noise; a secure source, such as `SystemNoise`.

        Raises:
            InvalidValueError: the source can be replayed, a number is out of range, the URL is none, the total budget
                is above the cap that was set, or below what is spent, or the deployment charges by another rule.
            DeploymentStateError: the ledger belongs to another run, fails its verification, is older than the last
                release, comes from a newer schema, was deleted, is in use elsewhere, or its key does not fit.
            StorageError: the database or a file cannot be reached or written.
        """
        if noise.is_secure is not True:
            raise InvalidValueError(
                f"{type(noise).__name__} would reveal the secret to whoever replays it; use SystemNoise"
            )
        if total_budget is not None and not total_budget <= LARGEST_BUDGET:
            raise InvalidValueError(f"total_budget must be at most {LARGEST_BUDGET} nats, got {total_budget!r}")
        database = Database.of_run(run_dir, database_url)
        with contextlib.ExitStack() as undo:
            lock = undo.enter_context(RunLock(run_dir, database))
            opened, created = open_or_create(
                lock,
                run_dir,
                run_id,
                keyring,
                database,
                accept=lambda header: require_rule(header, charging_rule, database),
                initial=lambda: CuratorState.initial(
                    num_worlds, noise, total_budget, charging_rule or DEFAULT_CHARGING_RULE
                ),
            )
            undo.callback(opened.close)
            require_worlds(realised_world_state(opened.checkpoint.state, database), num_worlds)
            opened = with_cap(opened, None if total_budget is None else cap_units(total_budget), in_nats)
            lock.remember(opened.header.deployment_id, database)
            ledger = cls(database, lock, opened, created)
            ledger.curator = Curator(ledger._own_state(opened.checkpoint.state), ledger, noise)
            undo.pop_all()
        return ledger

    def _own_state(self, state: DeploymentState) -> CuratorState:
        return realised_world_state(state, self._database)


def _row(number: int, now: int, record: ReleaseRecord | CorpusReleaseRecord, *, has_reserve: bool) -> dict[str, Any]:
    row = {
        "number": number,
        "time": now,
        "request": record.request,
        "step": record.step,
        "coin_key": None,
        "num_active": NO_VOTES_COUNTED,
        "charge_units": schema.units_as_text(record.charge_units),
        "key_id": record.key_id,
    }
    reserve_units = record.charge_units
    if isinstance(record, ReleaseRecord):
        row |= {"coin_key": record.coin_key, "num_active": record.num_active}
        reserve_units = record.reserve_units
    if has_reserve:
        row["reserve_units"] = schema.units_as_text(reserve_units)
    return row
