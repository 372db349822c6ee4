"""Options and notes that the commands for a deployment share."""

from pathlib import Path
from typing import Annotated

import typer

from reticent.cli.output import notes, parse_budget
from reticent.pac.mechanism import ReleaseMechanism

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


def announce_deployment(*, is_new: bool, has_cap: bool) -> None:
    """Say what whoever opens a deployment must know: that its secret was drawn, and that nothing caps it."""
    if is_new:
        notes.print("new deployment: its secret world is drawn now and stays", highlight=False)
    if not has_cap:
        notes.print(NO_CAP, highlight=False, soft_wrap=True)
