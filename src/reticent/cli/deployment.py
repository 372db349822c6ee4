"""Helpers that the commands for a deployment share."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reticent._files import sha256_of_file
from reticent.cli.output import notes, parse_budget
from reticent.errors import RunDirectoryError
from reticent.pac.mechanism import ReleaseMechanism

if TYPE_CHECKING:
    from reticent.ledger.reader import LedgerReader
    from reticent.ledger.store import Ledger

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The run directory.")]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        envvar="RETICENT_DATABASE_URL",
        show_envvar=True,
        metavar="URL",
        help="Where the ledger is: postgresql://… or sqlite:///…; ledger.sqlite in the run directory unless given.",
    ),
]

NO_CAP = (
    "this deployment has NO CAP: what its tokens can tell grows without limit. Set one with --total-budget, now or at "
    "any later start"
)
DEFAULT_STEP_BUDGET = 2.0**-32
StepBudget = Annotated[
    float,
    typer.Option(
        parser=parse_budget,
        metavar="NATS",
        show_default="2^-32",
        help="Charge per token: 2^-32, 1e-9 or a decimal.",
    ),
]
TotalBudget = Annotated[
    float | None,
    typer.Option(
        parser=parse_budget,
        metavar="NATS",
        help="Cap over the deployment's life; may be set or lowered later, never raised.",
    ),
]
Release = Annotated[
    ReleaseMechanism,
    typer.Option(
        help="How the realised world's vote becomes a token: calibrated noise, or a mixture that keeps the worlds' own "
        "proportions. The charge is the same."
    ),
]
Drafts = Annotated[
    int,
    typer.Option(
        "--drafts",
        help="Tokens the public model guesses ahead, computed in one step with the next. Changes speed alone: it pays "
        "for long contexts.",
    ),
]


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
def open_deployment(
    run_dir: Path, num_worlds: int, total_budget: float | None, database_url: str | None = None
) -> "Iterator[Ledger]":
    """The ledger of a run's deployment, which is created at its first use; holds the deployment's locks.

    Raises:
        InvalidValueError: `total_budget` is above the cap that was set, or below what is spent.
        DeploymentStateError, StorageError: the ledger cannot be opened or written.
    """
    from reticent.ledger.keys import Keyring
    from reticent.ledger.store import Ledger
    from reticent.randomness import SystemNoise

    ledger = Ledger.open(
        run_dir,
        run_id(run_dir),
        num_worlds,
        Keyring.of_user(),
        database_url=database_url,
        total_budget=total_budget,
        noise=SystemNoise(),
    )
    with ledger:
        if ledger.created:
            notes.print("new deployment: its secret world is drawn now and stays", highlight=False)
        if ledger.curator.account.cap_units is None:
            notes.print(NO_CAP, highlight=False, soft_wrap=True)
        yield ledger


def read_ledger(run_dir: Path, database_url: str | None) -> "LedgerReader":
    """A reader of a run's ledger, which needs no lock; use it with `with`.

    Raises:
        DeploymentStateError, StorageError: as for `LedgerReader`.
    """
    from reticent.ledger.database import Database
    from reticent.ledger.keys import Keyring
    from reticent.ledger.reader import LedgerReader

    database = Database.of_run(run_dir, database_url)
    return LedgerReader(run_dir, run_id(run_dir), Keyring.of_user(), database)
