"""What the commands that touch a deployment share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reticent._files import sha256_of_file
from reticent.cli.output import format_nats, notes
from reticent.errors import InvalidValueError, RunDirectoryError
from reticent.ledger.sealed_file import SealedStateStore, has_state
from reticent.ledger.secret import Keyring
from reticent.pac.accounting import cap_units, units_to_nats
from reticent.pac.curator import Curator
from reticent.randomness import SystemNoise


def run_id(run_dir: Path) -> str:
    """The identity of a run: the SHA-256 of its manifest, which names every other file by hash.

    Raises:
        RunDirectoryError: there is no manifest.
    """
    manifest = run_dir / "manifest.json"
    try:
        return sha256_of_file(manifest)
    except OSError as error:
        raise RunDirectoryError(
            f"{run_dir} is no run directory: cannot read {manifest.name} ({error.strerror}); "
            "build one with `reticent worlds build`"
        ) from error


@contextmanager
def open_deployment(run_dir: Path, num_worlds: int, total_budget: float | None) -> Iterator[Curator]:
    """The curator of a run's deployment, which is created at its first use; holds the deployment's lock.

    Raises:
        InvalidValueError: `total_budget` is given and is not the cap that the deployment was created with.
        DeploymentStateError, StorageError: the state cannot be opened or written.
    """
    keyring, noise = Keyring.of_user(), SystemNoise()
    if has_state(run_dir):
        store, state = SealedStateStore.open(run_dir, run_id(run_dir), keyring)
    else:
        store, state = SealedStateStore.create(run_dir, run_id(run_dir), num_worlds, keyring, noise, total_budget)
        notes.print("new deployment: its secret world is drawn now and stays", highlight=False)
    with store:
        if total_budget is not None and cap_units(total_budget) != state.cap_units:
            cap = "none" if state.cap_units is None else format_nats(units_to_nats(state.cap_units))
            raise InvalidValueError(
                f"total-budget {format_nats(total_budget)}: this deployment's cap is {cap} since its first use "
                "and stays; leave the option out"
            )
        yield Curator(state, store, noise)
