"""Options and notes that the commands for a deployment share."""

from pathlib import Path
from typing import Annotated

import typer

from reticent.cli.output import notes, parse_budget
from reticent.pac.charging import DESCRIPTIONS as CHARGED
from reticent.pac.charging import ChargingRule
from reticent.pac.mechanism import DEFAULT_RELEASE, DESCRIPTIONS, ReleaseMechanism

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
    float | None,
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
    ReleaseMechanism | None,
    typer.Option(
        help="The mechanism that turns the realised world's vote into a token: "
        + "; ".join(f"{name} {clause}" for name, clause in DESCRIPTIONS.items())
        + ". The charge is the same.",
        show_default=DEFAULT_RELEASE.value,
    ),
]
Charge = Annotated[
    ChargingRule | None,
    typer.Option(
        "--charging",
        help="The tokens that are charged over the deployment's life: "
        + "; ".join(f"{name}, {clause}" for name, clause in CHARGED.items())
        + ". Chosen at the first use: fixed unless given.",
    ),
]
Drafts = Annotated[
    int,
    typer.Option(
        "--drafts",
        help="Most draft tokens of the public model, computed in one step with the next token. Changes speed alone: it "
        "pays for long contexts.",
    ),
]


def announce_deployment(*, is_new: bool, has_cap: bool) -> None:
    """Say what whoever opens a deployment must know: that its secret was drawn, and that nothing caps it."""
    if is_new:
        notes.print("new deployment: its secret world is drawn now and stays", highlight=False)
    if not has_cap:
        notes.print(NO_CAP, highlight=False, soft_wrap=True)
