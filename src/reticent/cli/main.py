"""The `reticent` command: registers the commands and turns errors into one line and an exit code.

| what happens | standard error | exit code |
|---|---|---|
| success | - | 0 |
| a `ReticentError`, or wrong usage | `error: ...` | 2 (the error's own code) |
| Ctrl-C | `interrupted`, and how to resume where the command can (`InterruptedRunError`) | 130 |
| a question answered with no | `aborted` | 1 |
| the reader of a pipe goes away | - | 1 |
| anything else is a defect | the traceback | 1 |

Commands import what they need when they run, so that help and planning never wait for torch.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from reticent import __version__
from reticent.cli import (
    adapt,
    audit,
    benchmark,
    canaries,
    demo,
    distill,
    evaluate,
    generate,
    keys,
    ledger,
    plan,
    serve,
    state,
    worlds,
)
from reticent.errors import InterruptedRunError, InvalidValueError, ReticentError

app = typer.Typer(
    name="reticent",
    help="Serve a model adapted on private text with a guarantee that can be stated, and audit what models give away.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo", short_help="The whole way on invented clinic letters.")(demo.demo)
app.add_typer(worlds.app, name="worlds")
app.command("adapt", short_help="Adapt one model, and write down who was a member.")(adapt.adapt)
app.command("audit", short_help="Attack a model or endpoint: what does it give away?")(audit.audit)
app.add_typer(canaries.app, name="canaries", short_help="Invented secrets, planted before training.")
app.command("benchmark", short_help="Adapt and audit a grid of models, data sets and techniques.")(benchmark.benchmark)
app.command("evaluate", short_help="What a run is worth on held-out texts, at every budget.")(evaluate.evaluate)
app.command("distill", short_help="A model to publish, from public texts and released tokens.")(distill.distill)
app.command("distill-report", short_help="For the operator: a distilled model on private texts.")(
    distill.distill_report
)
app.command("generate")(generate.generate)
app.command("serve")(serve.serve)
app.add_typer(keys.app, name="keys", short_help="API keys: make, list, change, revoke.")
app.command("plan", short_help="Relate tokens, budget and bound.")(plan.plan)
app.add_typer(state.app, name="state", short_help="Show what was spent, or give the deployment up.")
app.add_typer(ledger.app, name="ledger")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reticent {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` defaults to the command line, and nothing means help."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        _refuse_undecodable(words)
        code = app(args=words, prog_name="reticent", standalone_mode=False)
        sys.stdout.flush()
    except InterruptedRunError as interruption:
        return _write_message(f"interrupted: {interruption}", interruption.exit_code)
    except ReticentError as error:
        return _write_message(f"error: {error}", error.exit_code)
    except TyperException as error:
        return _write_message(f"error: {error.format_message()}", error.exit_code)
    except typer.Abort:
        return _write_message("aborted; nothing was changed", 1)
    except BrokenPipeError:
        # The interpreter would try to flush the closed pipe once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if code == InterruptedRunError.exit_code:
        # Typer turns a Ctrl-C that no command has caught into this code.
        return _write_message("interrupted", code)
    return code if isinstance(code, int) else 0


def _refuse_undecodable(words: Sequence[str]) -> None:
    """Make sure that the command line is text: files, models and prompts are written down and encoded later.

    Raises:
        InvalidValueError: an argument holds bytes that are not UTF-8.
    """
    for number, word in enumerate(words, start=1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise InvalidValueError(
                f"argument {number} holds bytes that are not UTF-8; rename the file, or set the terminal to UTF-8"
            ) from None


def _write_message(message: str, exit_code: int) -> int:
    """Write a message as one line to standard error and hand the exit code on."""
    sys.stderr.write(" ".join(message.split()) + "\n")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
