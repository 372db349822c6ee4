"""Creation and opening of a deployment's ledger, under the run's lock.

Guarantee: a run gets a new secret only if it never had one, as far as its lock file and the database know; whatever is
opened has been verified from its first release to its last. A creation that fails leaves nothing that blocks the next.
"""

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from sqlalchemy import insert

from reticent.dp.accounting import units_to_rho
from reticent.dp.curator import CorpusState
from reticent.dp.release import CorpusSettings
from reticent.errors import DeploymentStateError, InvalidValueError
from reticent.guarantees import Guarantee
from reticent.ledger import chain, schema
from reticent.ledger.database import Database
from reticent.ledger.high_water_mark import LastRelease, Mark, read_mark
from reticent.ledger.keys import Keyring, StateKey
from reticent.ledger.lock import RunLock
from reticent.ledger.reader import LedgerReader, read_header, require_run
from reticent.ledger.sealing import DeploymentState, Header, LedgerCheckpoint, run_digest, seal
from reticent.ledger.writer import Writer
from reticent.pac.accounting import units_to_nats
from reticent.pac.charging import DEFAULT_CHARGING_RULE, ChargingRule
from reticent.pac.curator import CuratorState


@dataclass(frozen=True)
class Opened:
    """A deployment that this process may write to."""

    writer: Writer
    mark: Mark
    key: StateKey
    header: Header
    checkpoint: LedgerCheckpoint

    def close(self) -> None:
        """Let go of the database and the mark."""
        self.writer.close()
        self.mark.close()


def existing_header(database: Database) -> Header | None:
    """The header of the deployment in a database, or None where it holds none.

    Raises:
        DeploymentStateError: it comes from a newer schema, or is damaged.
        StorageError: the database cannot be reached.
    """
    if database.missing:
        return None
    with database.transaction(write=False) as connection:
        return read_header(connection, database)


def open_or_create(
    lock: RunLock,
    run_dir: Path,
    run_id: str,
    keyring: Keyring,
    database: Database,
    *,
    accept: Callable[[Header], None],
    initial: Callable[[], DeploymentState],
) -> tuple[Opened, bool]:
    """Continue the deployment of a run, or create it at the first use; say whether it was created.

    Args:
        lock: the run's, held.
        run_dir: the run directory.
        run_id: the hash of its manifest.
        keyring: provides the key, and keeps the mark.
        database: where the ledger lies.
        accept: raises for a deployment that is not the one asked for.
        initial: the state of a new one.

    Raises:
        InvalidValueError, DeploymentStateError, StorageError: as for `create`, `continue_from` and `accept`; or the
            run had a deployment that is not here.
    """
    header = existing_header(database)
    if header is None:
        require_undeployed(lock.deployment_id, lock.ledger_place, database)
        return create(lock, database, run_id, keyring, initial()), True
    accept(header)
    return continue_from(lock, run_dir, run_id, keyring, database, header), False


def create(lock: RunLock, database: Database, run_id: str, keyring: Keyring, initial: DeploymentState) -> Opened:
    """Write a new deployment with its key and its mark, and hold its lock.

    Raises:
        DeploymentStateError: another process is about to create one there, or the key is malformed.
        StorageError: something cannot be written.
    """
    header = _new_header(run_id, initial)
    checkpoint = LedgerCheckpoint(initial, chain.first_digest(header.deployment_id, header.run_digest))
    with contextlib.ExitStack() as undo:
        if database.missing:
            undo.callback(database.delete_file)
        database.create_file()
        undo.callback(keyring.remove, header.deployment_id)
        key = keyring.create(header.deployment_id)
        lock.hold(keyring.lock_path(header.deployment_id))
        mark = Mark.create(keyring.mark_path(header.deployment_id), checkpoint.head)
        undo.callback(mark.close)
        writer = Writer(database)
        undo.callback(writer.close)
        with writer.transaction() as connection:
            schema.metadata.create_all(connection)
            connection.execute(
                insert(schema.deployment).values(
                    id=1,
                    schema_version=header.schema,
                    deployment_id=header.deployment_id,
                    run_digest=header.run_digest,
                    created=int(time.time()),
                    charging_rule=header.charging_rule.value,
                    guarantee=header.guarantee.value,
                    **_constants_row(header),
                )
            )
            sealed = seal(key, header, checkpoint)
            connection.execute(insert(schema.state).values(id=1, writer_epoch=0, tokens_released=0, sealed=sealed))
        writer.enroll()
        undo.pop_all()
    return Opened(writer, mark, key, header, checkpoint)


def _new_header(run_id: str, initial: DeploymentState) -> Header:
    rule, constants = DEFAULT_CHARGING_RULE, None
    if isinstance(initial, CorpusState):
        constants = initial.settings
    else:
        rule = initial.charging_rule
    return Header(schema.SCHEMA_VERSION, secrets.token_hex(16), run_digest(run_id), rule, constants)


def _constants_row(header: Header) -> dict[str, object]:
    """The constants of a corpus deployment as columns; none under the other guarantee."""
    if (constants := header.constants) is None:
        return {}
    return {
        "clip": float(constants.clip),
        "gain": float(constants.gain),
        "temperature": float(constants.temperature),
        "num_candidates": constants.num_candidates,
        "num_worlds": constants.num_worlds,
        "relation": constants.relation.value,
    }


def continue_from(
    lock: RunLock, run_dir: Path, run_id: str, keyring: Keyring, database: Database, header: Header
) -> Opened:
    """Become the writer of an existing deployment, under its lock, and verify all of its ledger.

    Raises:
        DeploymentStateError: another process writes to it or to a copy, it belongs to another run, fails its
            verification, or is not the ledger that its mark knows; or the key or the mark is missing.
        StorageError: the database cannot be reached.
    """
    require_run(header, run_id, database)
    # A key or a mark that is missing is named before a file is created beside them.
    keyring.load(header.deployment_id)
    mark_path = keyring.mark_path(header.deployment_id)
    read_mark(mark_path)
    lock.hold(keyring.lock_path(header.deployment_id))
    with contextlib.ExitStack() as undo:
        writer = Writer(database)
        undo.callback(writer.close)
        # First, so that nobody can commit between the verification and the first release.
        writer.enroll()
        with LedgerReader(run_dir, run_id, keyring, database) as reader:
            reader.verify()
            key, checkpoint = reader.key, reader.checkpoint
        mark = Mark.open(mark_path)
        undo.callback(mark.close)
        # A crash between a commit and its mark leaves the ledger ahead.
        mark.raise_to(LastRelease(checkpoint.state.tokens_released, checkpoint.head))
        undo.pop_all()
    return Opened(writer, mark, key, header, checkpoint)


def require_undeployed(deployment_id: str, place: str, database: Database) -> None:
    """Check that a run whose database holds no deployment never had one.

    Args:
        deployment_id: the deployment that the run remembers; "" for none.
        place: where its ledger was last opened.
        database: the one that holds no deployment.

    Raises:
        DeploymentStateError: it had.
    """
    if not deployment_id:
        return
    remedy = "restore it" if place == str(database) else f"it was last kept in {place}: name that with --database-url"
    raise DeploymentStateError(
        f"this run has a deployment, but {database} does not hold it. It was deleted, or is elsewhere; {remedy}. "
        "To give the deployment up, use `reticent state reset`, which says what that voids"
    )


def require_worlds(state: CuratorState, num_worlds: int) -> None:
    """Check that a stored state is one of this run's worlds.

    Raises:
        DeploymentStateError: their number differs.
    """
    if state.log_posterior.size != num_worlds:
        raise DeploymentStateError(
            f"the ledger was made for {state.log_posterior.size} worlds, and this run has {num_worlds}"
        )


def require_constants(header: Header, wanted: CorpusSettings | None, database: Database) -> None:
    """Check that a deployment has the corpus guarantee with the constants that are asked for; None for those it has.

    Raises:
        DeploymentStateError: it has the other guarantee.
        InvalidValueError: it has other constants.
    """
    require_guarantee(header, Guarantee.CORPUS, database)
    constants = header.constants
    if constants is None or wanted in (None, constants):
        return
    differing = ", ".join(
        f"{name} {getattr(constants, name)} (asked for: {getattr(wanted, name)})"
        for name in (field.name for field in fields(constants))
        if getattr(constants, name) != getattr(wanted, name)
    )
    raise InvalidValueError(
        f"the deployment in {database} has {differing}: its constants were chosen when it was created, for its whole "
        "life. Leave the option out, or deploy another run"
    )


def require_guarantee(header: Header, wanted: Guarantee, database: Database) -> None:
    """Check that a deployment has a guarantee.

    Raises:
        DeploymentStateError: it has the other.
    """
    if header.guarantee is not wanted:
        raise DeploymentStateError(
            f"the deployment in {database} has the guarantee {header.guarantee}, not {wanted}: the ledger belongs to "
            "another kind of run. Put it back beside the worlds it was made for"
        )


def require_rule(header: Header, wanted: ChargingRule | None, database: Database) -> None:
    """Check that a deployment charges by the rule that is asked for; None asks for the one it has.

    Raises:
        DeploymentStateError: it has the corpus guarantee.
        InvalidValueError: it charges by another.
    """
    require_guarantee(header, Guarantee.REALISED_WORLD, database)
    if wanted in (None, header.charging_rule):
        return
    raise InvalidValueError(
        f"charging {wanted}: the deployment in {database} charges by the rule {header.charging_rule}, which was chosen "
        "when it was created, for its whole life. Leave the option out, or deploy another run by the rule you want"
    )


def in_nats(units: int) -> str:
    """A number of units of a realised-world account in words."""
    return f"{units_to_nats(units):.6g} nats"


def in_rho(units: int) -> str:
    """A number of units of a corpus account in words."""
    return f"rho {units_to_rho(units):.6g}"


def with_cap(opened: Opened, cap: int | None, in_words: Callable[[int], str]) -> Opened:
    """Set or lower the cap of a deployment, durably; a cap that was set is never raised.

    Args:
        opened: the deployment.
        cap: in units of its account; None leaves the cap as it is.
        in_words: says a number of units to people.

    Raises:
        InvalidValueError: it is above the cap, or below what is spent; nothing is changed.
        DeploymentStateError, StorageError: it cannot be written.
    """
    state = opened.checkpoint.state
    if cap is None or cap == state.cap_units:
        return opened
    if state.cap_units is not None and cap > state.cap_units:
        raise InvalidValueError(
            f"total-budget {in_words(cap)}: this deployment's cap is {in_words(state.cap_units)} and is never raised; "
            "leave the option out, or give less"
        )
    if cap < state.spent_units:
        raise InvalidValueError(
            f"total-budget {in_words(cap)}: {in_words(state.spent_units)} are spent already; give at least as much"
        )
    checkpoint = LedgerCheckpoint(replace(state, cap_units=cap), opened.checkpoint.head)
    sealed = seal(opened.key, opened.header, checkpoint)
    opened.writer.advance(state.tokens_released, state.tokens_released, sealed, [])
    return replace(opened, checkpoint=checkpoint)
