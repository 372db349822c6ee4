"""One writer: the locks that keep a second process off a deployment.

Four layers, each for what the one before it cannot see:

1. a lock file in the run directory, and one beside a SQLite file that lies elsewhere: processes on one machine;
2. a lock file of the deployment beside its key: processes on copies of the run directory or of the database, which
   have lock files of their own but share the key and the mark;
3. in PostgreSQL, an advisory lock of the very session that commits. A connection that is lost loses the lock, and
   nothing can be committed on it either; the next session must win the lock before it reads or writes. As a session
   keeps its lock until its last transaction has ended, no late commit can follow what the next session reads;
4. the writer's epoch in the state row. Whoever opens a ledger raises it, and a commit compares it in its own
   transaction: a writer that was passed over cannot commit, whatever became of its locks.

The lock file also remembers which deployment the run has and where its ledger lies, so that a ledger which was deleted,
or is looked for in the wrong place, is not taken for a run that never had one.
"""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import Connection, text

from reticent._files import is_open_as
from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger.database import Database

LOCK_NAME: Final = "deployment.lock"
_SESSION_LOCK: Final = text(
    "SELECT pg_try_advisory_lock(hashtextextended('reticent ledger ' || coalesce(current_schema(), ''), 0))"
)
_SESSION_LOCK_WAIT_SECONDS: Final = 2.0
_MEMORY_BYTES: Final = 4096
_ID_DIGITS: Final = 32


class RunLock:
    """The lock files of a deployment, held from construction until `close`; `hold` adds the one beside its key.

    Raises:
        DeploymentStateError: another process holds one of them.
        StorageError: one cannot be opened.
    """

    def __init__(self, run_dir: Path, database: Database) -> None:
        self._paths = [run_dir / LOCK_NAME]
        if database.file is not None and database.file.parent != run_dir.absolute():
            self._paths.append(database.file.with_name(f"{database.file.name}.lock"))
        self._descriptors: list[int] = []
        try:
            for path in self._paths:
                self._descriptors.append(_acquire_file_lock(path, busy(path.parent)))
        except BaseException:
            self.close()
            raise

    def hold(self, deployment_lock: Path) -> None:
        """Hold the lock file beside a deployment's key as well, whose folder exists.

        Raises:
            DeploymentStateError: another process holds it.
            StorageError: it cannot be opened.
        """
        self._descriptors.append(_acquire_file_lock(deployment_lock, _busy_elsewhere()))
        self._paths.append(deployment_lock)

    @property
    def held(self) -> bool:
        """True if the lock is still open."""
        return bool(self._descriptors)

    @property
    def deployment_id(self) -> str:
        """The deployment the run directory remembers, or "" where none was created yet."""
        remembered = self._memory()[0]
        return remembered if is_deployment_id(remembered) else ""

    @property
    def ledger_place(self) -> str:
        """The place where that deployment's ledger was last opened; "" where none was."""
        return self._memory()[1]

    def remember(self, deployment_id: str, database: Database) -> None:
        """Note which deployment the run has, and where.

        Raises:
            StorageError: the lock file cannot be written.
        """
        if (self.deployment_id, self.ledger_place) == (deployment_id, str(database)):
            return
        self._write(f"{deployment_id}\n{database}\n".encode())

    def forget(self) -> None:
        """Note that the run has no deployment."""
        self._write(b"")

    def require_held(self) -> None:
        """Check that no lock file was deleted or replaced, which would let a second process in.

        Raises:
            DeploymentStateError: one was, or the lock is closed.
        """
        for path, descriptor in zip(self._paths, self._descriptors, strict=True):
            if not is_open_as(path, descriptor):
                raise DeploymentStateError(
                    f"the lock file {path} was deleted or replaced while this process held it; nothing more is "
                    "released. Make sure that no other process uses the deployment, then start again"
                )

    def close(self) -> None:
        """Let go; harmless when repeated."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _memory(self) -> tuple[str, str]:
        return _parse_memory(os.pread(self._descriptors[0], _MEMORY_BYTES, 0))

    def _write(self, content: bytes) -> None:
        try:
            os.ftruncate(self._descriptors[0], 0)
            os.pwrite(self._descriptors[0], content, 0)
            os.fsync(self._descriptors[0])
        except OSError as error:
            raise StorageError(f"cannot write {self._paths[0]}: {error.strerror}") from error


def is_deployment_id(text: str) -> bool:
    """True if a text is the name of a deployment: 32 hexadecimal digits, which are safe in a file name."""
    return len(text) == _ID_DIGITS and set(text) <= set("0123456789abcdef")


def take_session_lock(connection: Connection) -> bool:
    """Take the lock of a PostgreSQL session, waiting a moment for one whose client has just died; True in SQLite."""
    if connection.dialect.name != "postgresql":
        return True
    deadline = time.monotonic() + _SESSION_LOCK_WAIT_SECONDS
    while True:
        with connection.begin():
            if connection.execute(_SESSION_LOCK).scalar_one():
                return True
        if not time.monotonic() < deadline:
            return False
        time.sleep(0.05)


def recall(run_dir: Path) -> tuple[str, str]:
    """The deployment a run directory remembers and where its ledger was last opened, "" where none; takes no lock."""
    try:
        return _parse_memory((run_dir / LOCK_NAME).read_bytes()[:_MEMORY_BYTES])
    except FileNotFoundError:
        return "", ""
    except OSError as error:
        raise StorageError(f"cannot read {run_dir / LOCK_NAME}: {error.strerror}") from error


def _parse_memory(content: bytes) -> tuple[str, str]:
    remembered, _, place = content.decode(errors="replace").partition("\n")
    return remembered, place.strip()


def busy(place: object) -> DeploymentStateError:
    """The error of a deployment that another process holds."""
    return DeploymentStateError(
        f"another process is using the deployment in {place}; wait until it ends or stop it: "
        "a deployment has one writer"
    )


def _busy_elsewhere() -> DeploymentStateError:
    return DeploymentStateError(
        "another process is using the deployment from a copy of this run; wait until it ends or stop it: "
        "a deployment has one writer, and its copies share its key"
    )


def _acquire_file_lock(path: Path, refusal: DeploymentStateError) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"cannot open the lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise refusal from None
    return descriptor
