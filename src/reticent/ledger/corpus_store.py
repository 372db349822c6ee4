"""The ledger of a corpus deployment: its constants, account and releases in one database.

The guarantee of the ledger is that of `store`: what a curator commits is durable before it draws, a copy or an older
ledger is refused, and one writer has it. There is no secret to seal; the account is sealed all the same, so that nobody
who can write to the database can turn it back.
"""

import contextlib
from pathlib import Path
from typing import Self

from reticent.dp.accounting import cap_units
from reticent.dp.curator import CorpusCurator, CorpusReleaseRecord, CorpusState
from reticent.dp.release import CorpusSettings
from reticent.errors import InvalidValueError
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.lock import RunLock
from reticent.ledger.opening import existing_header, in_rho, open_or_create, require_constants, with_cap
from reticent.ledger.sealing import DeploymentState, corpus_state
from reticent.ledger.store import LARGEST_BUDGET, OpenDeployment
from reticent.randomness import BitSource


class CorpusLedger(OpenDeployment[CorpusState, CorpusReleaseRecord]):
    """An open corpus deployment. Made by `open`; close it, best with `with`.

    Attributes:
        curator: releases tokens, whose charges are committed here before anything is drawn; threads may share it.
    """

    curator: CorpusCurator

    @classmethod
    def open(
        cls,
        run_dir: Path,
        run_id: str,
        settings: CorpusSettings | None,
        keyring: Keyring,
        *,
        database_url: str | None = None,
        total_rho: float | None = None,
        bits: BitSource,
    ) -> Self:
        """Continue the corpus deployment of a run, or create its ledger at the first use.

        Args:
            run_dir: the run directory; it must be writable.
            run_id: the hash of its manifest; a ledger opens with its own run only.
            settings: the constants, kept for the deployment's life; None for those it has.
            keyring: provides the key, and keeps the mark.
            database_url: `sqlite:///…` or `postgresql://…`; `ledger.sqlite` in the run directory unless given.
            total_rho: the cap over the deployment's life; None for no cap, or for the cap the deployment has. An
                existing deployment's cap may be set or lowered, never raised.
            bits: draws the tokens; a secure source, such as `SystemNoise`.

        Raises:
            InvalidValueError: the source can be replayed, a number is out of range, the URL is none, the cap is above
                the one that was set or below what is spent, the deployment has other constants, or there is none yet
                and no settings are given.
            DeploymentStateError: the ledger belongs to another run, has the other guarantee, fails its verification, is
                older than the last release, comes from a newer schema, was deleted, is in use elsewhere, or its key
                does not fit.
            StorageError: the database or a file cannot be reached or written.
        """
        if bits.is_secure is not True:
            raise InvalidValueError(
                f"{type(bits).__name__} would show what the worlds say to whoever replays it; use SystemNoise"
            )
        if total_rho is not None and not total_rho <= LARGEST_BUDGET:
            raise InvalidValueError(f"total rho must be at most {LARGEST_BUDGET}, got {total_rho!r}")
        cap = None if total_rho is None else cap_units(total_rho)
        database = Database.of_run(run_dir, database_url)
        with contextlib.ExitStack() as undo:
            lock = undo.enter_context(RunLock(run_dir, database))
            opened, created = open_or_create(
                lock,
                run_dir,
                run_id,
                keyring,
                database,
                accept=lambda header: require_constants(header, settings, database),
                initial=lambda: CorpusState(_required(settings, database), cap_units=cap),
            )
            undo.callback(opened.close)
            opened = with_cap(opened, cap, in_rho)
            lock.remember(opened.header.deployment_id, database)
            ledger = cls(database, lock, opened, created)
            ledger.curator = CorpusCurator(ledger._own_state(opened.checkpoint.state), ledger, bits)
            undo.pop_all()
        return ledger

    def _own_state(self, state: DeploymentState) -> CorpusState:
        return corpus_state(state, self._database)


def deployed_constants(run_dir: Path, database_url: str | None = None) -> CorpusSettings | None:
    """Return the constants of a run's corpus deployment; None where it has none yet, or the other guarantee.

    Raises:
        InvalidValueError: the URL is none.
        DeploymentStateError, StorageError: the ledger cannot be read.
    """
    header = existing_header(Database.of_run(run_dir, database_url))
    return None if header is None else header.constants


def _required(settings: CorpusSettings | None, database: Database) -> CorpusSettings:
    if settings is None:
        raise InvalidValueError(f"{database} holds no deployment yet: say its clip, gain and temperature")
    return settings
