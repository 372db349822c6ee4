"""Giving a deployment up for good, and deleting a mere copy of one."""

from dataclasses import dataclass
from pathlib import Path

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger import schema
from reticent.ledger.database import Database
from reticent.ledger.high_water_mark import read_mark
from reticent.ledger.keys import Keyring
from reticent.ledger.lock import LOCK_NAME, RunLock
from reticent.ledger.opening import existing_header
from reticent.ledger.reader import holds_release
from reticent.ledger.sealing import Header
from reticent.ledger.writer import Writer


@dataclass(frozen=True, slots=True)
class Voided:
    """The outcome of a reset.

    Attributes:
        copy_alone: whether a copy was deleted whose deployment lives elsewhere, and keeps its key and mark.
        set_aside: where the key file and the mark of the deployment are now.
    """

    copy_alone: bool
    set_aside: list[Path]


def is_copy(run_dir: Path, keyring: Keyring, database: Database) -> bool:
    """True if a reset would delete a copy alone.

    Raises:
        DeploymentStateError: there is nothing to reset, or another process holds it.
        StorageError: the database or a file cannot be read.
    """
    with _lock_of_existing(run_dir, database) as lock:
        return _Deployed.find(run_dir, lock, keyring, database).copy_alone


def void_ledger(run_dir: Path, keyring: Keyring, database: Database) -> Voided:
    """Delete a deployment's ledger with its API keys, and set its mark and its key file aside, under its lock.

    This ends the guarantee of that deployment. Works on damaged ledgers too. A ledger that is a copy goes alone: one
    that lacks the release which the mark knows, or whose run folder remembers that its ledger lies elsewhere, and there
    it does. Key and mark then stay, as the deployment continues with the other.

    Raises:
        DeploymentStateError: there is no deployment, or another process holds it, here or from a copy.
        StorageError: something cannot be deleted or renamed.
    """
    with _lock_of_existing(run_dir, database) as lock:
        deployed = _Deployed.find(run_dir, lock, keyring, database)
        kept: list[Path] = []
        try:
            if deployed.copy_alone:
                _delete(database)
            else:
                if keyring.folder.is_dir():
                    lock.hold(keyring.lock_path(deployed.deployment_id))
                _delete(database)
                kept = keyring.set_aside(deployed.deployment_id)
        except OSError as error:
            raise StorageError(f"cannot delete {error.filename or run_dir}: {error.strerror}") from error
        if lock.deployment_id == deployed.deployment_id:
            lock.forget()
    return Voided(deployed.copy_alone, kept)


@dataclass(frozen=True, slots=True)
class _Deployed:
    """The deployment that a run folder and its database have; "" where a damaged file does not say which."""

    deployment_id: str
    copy_alone: bool

    @classmethod
    def find(cls, run_dir: Path, lock: RunLock, keyring: Keyring, database: Database) -> "_Deployed":
        header, damaged = _header(database)
        deployment_id = header.deployment_id if header else lock.deployment_id
        if not deployment_id:
            if not damaged:
                raise _nothing_to_reset(run_dir)
            return cls("", copy_alone=True)
        if header is None and not damaged and "://" in lock.ledger_place and lock.ledger_place != str(database):
            raise DeploymentStateError(
                f"{database} holds no deployment; the ledger of this run was last kept in {lock.ledger_place}: name "
                "that with --database-url"
            )
        elsewhere = lock.deployment_id == deployment_id and _lies_elsewhere(lock.ledger_place, database)
        behind = header is not None and _lacks_last_release(header, keyring, database)
        return cls(deployment_id, elsewhere or behind)


def _lock_of_existing(run_dir: Path, database: Database) -> RunLock:
    """The lock of a run that has something to reset; a folder that has nothing gets no lock file."""
    if not (run_dir / LOCK_NAME).exists() and _header(database) == (None, False):
        raise _nothing_to_reset(run_dir)
    return RunLock(run_dir, database)


def _header(database: Database) -> tuple[Header | None, bool]:
    """The header in a database, if it can be read, and whether what lies there is damaged.

    Raises:
        DeploymentStateError: a PostgreSQL database cannot be read as a ledger.
    """
    try:
        return existing_header(database), False
    except DeploymentStateError:
        if database.file is None:
            raise
        return None, True


def _lies_elsewhere(place: str, database: Database) -> bool:
    """True if a remembered place is another SQLite file than this one, and is there."""
    if database.file is None or place == str(database):
        return False
    there = Path(place)
    return there.is_file() and not (database.file.exists() and there.samefile(database.file))


def _lacks_last_release(header: Header, keyring: Keyring, database: Database) -> bool:
    """True if the mark beside the key knows a release that a ledger does not hold."""
    try:
        marked = read_mark(keyring.mark_path(header.deployment_id))
    except DeploymentStateError:
        return False
    with database.transaction(write=False) as connection:
        return not holds_release(connection, header, marked)


def _nothing_to_reset(run_dir: Path) -> DeploymentStateError:
    return DeploymentStateError(f"{run_dir} has no deployment; there is nothing to reset")


def _delete(database: Database) -> None:
    if database.file is not None:
        database.delete_file()
        return
    writer = Writer(database)
    try:
        with writer.transaction() as connection:
            schema.metadata.drop_all(connection)
    finally:
        writer.close()
