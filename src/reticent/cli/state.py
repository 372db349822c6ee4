"""`reticent state`: what a deployment has spent, and the one way to give its state up."""

from pathlib import Path
from typing import Annotated

import typer

from reticent.api.deployments import read_ledger
from reticent.cli.deployment import DatabaseUrl, RunArgument
from reticent.cli.output import console, facts, notes, print_json
from reticent.cli.spending import read_spending
from reticent.errors import DeploymentStateError, InvalidValueError

app = typer.Typer(help="The deployment's durable state: show what was spent, or give it up.")

WHAT_RESET_VOIDS = (
    "This deletes the realised world, the posterior, the account and the API keys of {run}; where the run carries the "
    "corpus guarantee, the account and the keys.\n"
    "So far {tokens} were released. They stay covered by the bound for what was charged for them, and nothing takes "
    "them back.\n"
    "The next deployment starts from zero, with a new world where one is secret: no single bound will cover what was "
    "released so far together with what is released after. Whoever saw both has two bounds to add up."
)
WHAT_DELETING_A_COPY_DOES = (
    "The ledger of {run} is a copy: the deployment continues elsewhere, and its key and mark stay as they are.\n"
    "This deletes the copy with its API keys. A new deployment in {run} would draw another world: no single bound "
    "covers what both release."
)


@app.command("show")
def show(
    run: RunArgument,
    database_url: DatabaseUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tokens released, what was spent, and the bounds that gives. Never the realised world or the posterior."""
    with read_ledger(run, database_url) as reader:
        spending = read_spending(reader, run)
    if as_json:
        print_json(spending.record)
    else:
        console.print(facts(spending.facts))


@app.command("reset")
def reset(
    run: RunArgument,
    void_guarantee: Annotated[
        bool, typer.Option("--void-guarantee", help="Say that you mean it: the guarantee ends here.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Delete the deployment's secret, posterior, account and API keys, so that a new deployment can start.

    The key and the mark are kept aside under other names. Of a ledger that is a copy of another, the copy alone goes.
    """
    from reticent.ledger.database import Database
    from reticent.ledger.keys import Keyring
    from reticent.ledger.reset import is_copy, void_ledger

    keyring, database = Keyring.of_user(), Database.of_run(run, database_url)
    if is_copy(run, keyring, database):
        notes.print(WHAT_DELETING_A_COPY_DOES.format(run=run), highlight=False)
    else:
        notes.print(WHAT_RESET_VOIDS.format(run=run, tokens=_tokens_released(run, database_url)), highlight=False)
    if not void_guarantee:
        raise InvalidValueError("nothing was deleted; add --void-guarantee to proceed")
    if not yes:
        typer.confirm("Delete it?", abort=True, err=True)
    voided = void_ledger(run, keyring, database)
    if voided.copy_alone:
        notes.print("deleted the copy alone; no key and no mark was touched", highlight=False)
        return
    notes.print("deleted", highlight=False)
    for path in voided.set_aside:
        notes.print(f"kept aside: {path}", highlight=False, soft_wrap=True)


def _tokens_released(run: Path, database_url: str | None) -> str:
    """Say how many tokens were released; unknown where the ledger cannot be read."""
    try:
        with read_ledger(run, database_url) as reader:
            return f"{reader.checkpoint.state.tokens_released:,} tokens"
    except DeploymentStateError:
        return "an unknown number of tokens"
