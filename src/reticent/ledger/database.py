"""Databases of ledgers and connections to them: a SQLite file of the run directory, or a PostgreSQL database by URL.

Contract. A committed write is durable: SQLite runs in WAL mode and syncs at every commit, PostgreSQL is told to answer
only after its log is synced. Readers see one snapshot, cannot write, and never create a database: one that is gone is
an error. Every database error leaves here as a `StorageError` ("cannot be reached or written; try again") or, where the
content is unreadable, as a `DeploymentStateError`. A password in a URL is never shown.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from reticent._files import fsync_directory
from reticent.errors import DeploymentStateError, InvalidValueError, StorageError

DATABASE_NAME: Final = "ledger.sqlite"
_BUSY_SECONDS: Final = 5
_SUPPORTED: Final = "sqlite:///FOLDER/FILE or postgresql://USER@HOST/DATABASE"
_POSTGRESQL_OPTIONS: Final = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "application_name": "reticent"}


@dataclass(frozen=True, slots=True)
class Database:
    """The place of a ledger.

    Attributes:
        url: what SQLAlchemy connects to.
        file: the SQLite file, or None for PostgreSQL.
    """

    url: URL
    file: Path | None

    @classmethod
    def of_run(cls, run_dir: Path, database_url: str | None = None) -> "Database":
        """The database a URL names; without one, `ledger.sqlite` in the run directory.

        Raises:
            InvalidValueError: not a URL of a database that can hold a ledger.
        """
        if database_url is None:
            return cls._of_file(run_dir / DATABASE_NAME)
        try:
            url = make_url(database_url)
        except ArgumentError:
            raise InvalidValueError(f"the database URL cannot be read; it must look like {_SUPPORTED}") from None
        backend = url.get_backend_name()
        if backend == "sqlite" and url.database and url.database != ":memory:":
            return cls._of_file(Path(url.database))
        if backend == "postgresql":
            return cls(url.set(drivername="postgresql+psycopg"), None)
        raise InvalidValueError(
            f"a ledger cannot be kept in {url.render_as_string(hide_password=True)}; give {_SUPPORTED}"
        )

    @classmethod
    def _of_file(cls, path: Path) -> "Database":
        file = path.absolute()
        address = "file:" + quote(os.fsencode(file))
        return cls(URL.create("sqlite+pysqlite", database=address, query={"uri": "true"}), file)

    @property
    def missing(self) -> bool:
        """True if this is a SQLite file that does not exist."""
        return self.file is not None and not self.file.exists()

    def file_identity(self) -> tuple[int, int] | None:
        """Device and number of the SQLite file; None where it is missing, and for PostgreSQL."""
        if self.file is None or self.missing:
            return None
        there = self.file.stat()
        return there.st_dev, there.st_ino

    def create_file(self) -> None:
        """Create the SQLite file if it is missing, for its owner alone; SQLite gives its journals the same mode.

        An existing file is not opened: closing it again would drop every lock that SQLite holds on it in this process.

        Raises:
            StorageError: it cannot be created.
        """
        if self.file is None or not self.missing:
            return
        try:
            os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            fsync_directory(self.file.parent)
        except FileExistsError:
            return
        except OSError as error:
            raise StorageError(f"cannot create {self.file}: {error.strerror}") from error

    def delete_file(self) -> None:
        """Delete the SQLite file and its journals, where they exist."""
        if self.file is not None:
            for suffix in ("-wal", "-shm", ""):
                Path(f"{self.file}{suffix}").unlink(missing_ok=True)
            fsync_directory(self.file.parent)

    def engine(self, *, write: bool) -> Engine:
        """An engine without a pool: its caller decides when a connection lives.

        Raises:
            InvalidValueError: the driver for PostgreSQL is not installed.
        """
        return self._sqlite(write) if self.file is not None else self._postgresql(write)

    @contextlib.contextmanager
    def opened(self, *, write: bool) -> Iterator[Engine]:
        """An engine until the end of the block.

        Raises:
            InvalidValueError: as for `engine`.
        """
        engine = self.engine(write=write)
        try:
            yield engine
        finally:
            engine.dispose()

    @contextlib.contextmanager
    def transaction(self, *, write: bool) -> Iterator[Connection]:
        """One transaction on a connection of its own, committed at the end of the block.

        Raises:
            StorageError: the database cannot be reached, read or written.
            DeploymentStateError: it is damaged.
        """
        with self.errors(), self.opened(write=write) as engine, engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn database errors into this package's."""
        try:
            yield
        except DBAPIError as error:
            reason = " ".join(str(error.orig).split())
            if getattr(error.orig, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise DeploymentStateError(
                    f"{self} is damaged and cannot be read as a ledger: {reason}. Put the latest state back, or reset "
                    "with `reticent state reset`"
                ) from error
            raise StorageError(
                f"the ledger {self} cannot be used: {reason}; nothing was released. It is tried again at the next "
                "request: free some space, or bring the database back"
            ) from error
        except SQLAlchemyError as error:
            raise StorageError(f"the ledger {self} cannot be used: {error}") from error

    def __str__(self) -> str:
        return str(self.file) if self.file is not None else self.url.render_as_string(hide_password=True)

    def _sqlite(self, write: bool) -> Engine:
        # The release thread is not always the one that opened the ledger; no two threads use a connection at once.
        options = {"check_same_thread": False, "timeout": _BUSY_SECONDS}
        # Neither mode creates the file: only `create_file` does, with its permissions.
        url = self.url.update_query_dict({"mode": "rw" if write else "ro"})
        engine = create_engine(url, poolclass=NullPool, connect_args=options)
        pragmas = ("journal_mode = WAL", "synchronous = FULL") if write else ("query_only = ON",)

        @event.listens_for(engine, "connect")
        def prepare(connection: sqlite3.Connection, _record: object) -> None:
            # The driver's own transactions would begin late and without a lock.
            connection.isolation_level = None
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}").close()

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

        return engine

    def _postgresql(self, write: bool) -> Engine:
        options = {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in self.url.query}
        isolation: dict[str, Any] = {} if write else {"isolation_level": "REPEATABLE READ"}
        try:
            engine = create_engine(self.url, poolclass=NullPool, connect_args=options, **isolation)
        except ModuleNotFoundError:
            raise InvalidValueError(
                "a ledger in PostgreSQL needs the driver psycopg; install it with `pip install reticent[postgresql]`"
            ) from None
        writing = ("synchronous_commit = on", "statement_timeout = '10s'")
        settings = writing if write else ("default_transaction_read_only = on",)

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            for setting in settings:
                connection.execute(f"SET {setting}")
            connection.commit()

        return engine
