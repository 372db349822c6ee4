"""How a deployment is given up for good."""

from pathlib import Path

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger import schema
from reticent.ledger.database import Database
from reticent.ledger.lock import LOCK_NAME, RunLock
from reticent.ledger.opening import existing_header
from reticent.ledger.secret import Keyring
from reticent.ledger.writer import Writer


def void_ledger(run_dir: Path, keyring: Keyring, database: Database) -> None:
    """Delete a deployment's ledger with its API keys, its mark and its key file, so that no copy can be continued.

    This ends the guarantee of that deployment. Works on damaged ledgers too.

    Raises:
        DeploymentStateError: there is no deployment, or another process holds it.
        StorageError: something cannot be deleted.
    """
    try:
        header, readable = existing_header(database), True
    except DeploymentStateError:
        if database.file is None:
            raise
        header, readable = None, False
    nothing = DeploymentStateError(f"{run_dir} has no deployment; there is nothing to reset")
    if header is None and readable and not (run_dir / LOCK_NAME).exists():
        raise nothing
    with RunLock(run_dir, database) as lock:
        known_ids = {lock.deployment_id, header.deployment_id if header else ""} - {""}
        if not known_ids and readable:
            raise nothing
        try:
            _delete(database)
            for deployment_id in known_ids:
                keyring.remove(deployment_id)
        except OSError as error:
            raise StorageError(f"cannot delete {error.filename or run_dir}: {error.strerror}") from error
        lock.forget()


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
