"""The one session that writes to a ledger, and its place in the row of writers.

Guarantee: a transaction that returns is durable, was made by the latest writer to open the ledger, and followed the
state it was meant to follow. After any failure the connection is dropped; the next transaction opens a new one, which
must win the session's lock first, so service resumes when the database does.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger import schema
from reticent.ledger.database import Database
from reticent.ledger.lock import busy, take_session_lock

_RAISE_EPOCH = (
    update(schema.state).values(writer_epoch=schema.state.c.writer_epoch + 1).returning(schema.state.c.writer_epoch)
)
_ADVANCE = (
    update(schema.state)
    .where(schema.state.c.writer_epoch == bindparam("epoch"), schema.state.c.tokens_released == bindparam("before"))
    .values(tokens_released=bindparam("after"), sealed=bindparam("bytes"))
)
_KEEP = (
    update(schema.state)
    .where(schema.state.c.writer_epoch == bindparam("epoch"))
    .values(tokens_released=schema.state.c.tokens_released)
)
_APPEND = insert(schema.releases)
_READ = select(schema.state)


class Writer:
    """Writes to one ledger until closed. `enroll` comes first; not thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine(write=True)
        self._connection: Connection | None = None
        self._epoch = -1
        self._file = database.file_identity()

    @property
    def epoch(self) -> int:
        """This writer's number in the row of writers; -1 before it is enrolled."""
        return self._epoch

    @property
    def has_its_file(self) -> bool:
        """True if the file that was opened is still in its place; True for PostgreSQL."""
        return self._database.file_identity() == self._file

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction, committed at the end of the block; on any exception it is rolled back or left in doubt.

        Raises:
            DeploymentStateError: before the first enrolment, another process writes to this ledger.
            StorageError: the database cannot be reached or written.
        """
        try:
            with self._database.errors():
                connection = self._require_connection()
                with connection.begin():
                    yield connection
        except BaseException:
            self._drop()
            raise

    def enroll(self) -> None:
        """Become the latest writer: from here on no earlier one can commit.

        Raises:
            DeploymentStateError, StorageError: as for `transaction`; or the ledger holds no state.
        """
        with self.transaction() as connection:
            epoch = connection.execute(_RAISE_EPOCH).scalar_one_or_none()
            if epoch is None:
                raise state_missing(self._database)
        self._epoch = epoch

    def advance(self, before: int, after: int, sealed: bytes, rows: Sequence[dict[str, Any]]) -> None:
        """Replace the sealed state that stood after `before` tokens, and append the releases since, all or nothing.

        Raises:
            DeploymentStateError: another writer has opened the ledger since, or another state stands in it.
            StorageError: it cannot be written, or it is not known whether it was.
        """
        values = {"epoch": self._epoch, "before": before, "after": after, "bytes": sealed}
        with self.transaction() as connection:
            if connection.execute(_ADVANCE, values).rowcount != 1:
                raise self._superseded_error()
            if rows:
                connection.execute(_APPEND, rows)

    def read_state(self) -> bytes:
        """The sealed state that stands in the database.

        Raises:
            DeploymentStateError: another writer has opened the ledger since.
            StorageError: it cannot be read yet.
        """
        with self.transaction() as connection:
            row = connection.execute(_READ).one_or_none()
            if row is None:
                raise state_missing(self._database)
            if row.writer_epoch != self._epoch:
                raise self._superseded_error()
        return bytes(row.sealed)

    def close(self) -> None:
        """Let go of the connection and its lock."""
        self._drop()
        self._engine.dispose()

    def _require_connection(self) -> Connection:
        if not self.has_its_file:
            # A connection would continue writing to the file that is no longer there, or create an empty one.
            raise DeploymentStateError(
                f"{self._database} was deleted or replaced while this process used it; nothing more is released. "
                "Put the latest ledger back, then start again"
            )
        if self._connection is None:
            connection = self._engine.connect()
            try:
                locked = take_session_lock(connection)
            except BaseException:
                connection.close()
                raise
            if not locked:
                connection.close()
                if self._epoch < 0:
                    raise busy(self._database)
                raise StorageError(f"another session holds the lock of {self._database}; nothing is released meanwhile")
            self._connection = connection
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Whatever is wrong with it, it goes; a rollback on a dead connection may fail once more.
            with contextlib.suppress(Exception):
                connection.invalidate()
                connection.close()

    def _superseded_error(self) -> DeploymentStateError:
        return DeploymentStateError(
            f"another process has opened {self._database} since, or another state was put there; this one releases "
            "nothing more. A deployment has one writer: stop one of them, then start again"
        )


def probe(database: Database, epoch: int, *, write: bool) -> bool:
    """True if a database answers on a fresh connection and `epoch` is its latest writer.

    Args:
        database: where the ledger lies.
        epoch: of the writer that asks.
        write: also write the state row as it is; it stays the same.
    """
    try:
        with database.transaction(write=write) as connection:
            if write:
                return connection.execute(_KEEP, {"epoch": epoch}).rowcount == 1
            return connection.execute(select(schema.state.c.writer_epoch)).scalar_one_or_none() == epoch
    except (StorageError, DeploymentStateError):
        return False


def state_missing(database: Database) -> DeploymentStateError:
    """The error of a ledger whose state row is gone."""
    return DeploymentStateError(
        f"{database} holds a deployment but not its sealed state: the row was deleted. Put the latest ledger back, or "
        "reset with `reticent state reset`"
    )
