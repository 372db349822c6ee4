"""Output that every command shares: budgets as options, JSON on standard output, text for people.

Results go to standard output and everything else (progress, notes, errors) to standard error, so that a pipe or a file
receives the result alone.
"""

import json
import math
import sys
from collections.abc import Mapping

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED, WORLD_QUESTION

_WIDEST = 100_000

console = Console()
notes = Console(stderr=True)


def parse_budget(text: str | float) -> float:
    """Read a budget in nats: a decimal, `1e-9`, or a power such as `2^-32`. For `typer.Option(parser=...)`.

    Typer passes an option's default through as well, which is a number already.
    """
    from reticent.errors import InvalidValueError
    from reticent.pac.accounting import parse_nats

    try:
        return parse_nats(text) if isinstance(text, str) else text
    except InvalidValueError as error:
        # Typer replaces the message of a plain ValueError by the bare value.
        raise typer.BadParameter(str(error)) from error


def print_json(result: Mapping[str, object]) -> None:
    """Write one JSON object to standard output; numbers that JSON does not know are a defect and raise."""
    json.dump(result, sys.stdout, allow_nan=False, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")


def percent_at_most(probability: float) -> str:
    """A bound as a percentage, rounded up to two decimals so that it still bounds."""
    return f"{min(math.ceil(probability * 10_000) / 100, 100.0):.2f} %"


def format_nats(nats: float) -> str:
    """A budget in nats, with the power of two it equals, if it does."""
    mantissa, exponent = math.frexp(nats)
    power = f" (2^{exponent - 1})" if mantissa == 0.5 else ""
    return f"{nats:.6g} nats{power}"


def bound_facts(half_success: float, world_success: float, worlds: int) -> dict[str, str]:
    """Both bounds on what all releases tell, each with its question, and what neither bounds: rows of `facts`.

    Args:
        half_success: bound on telling which half a record is in.
        world_success: bound on naming the realised world.
        worlds: m.
    """
    return {
        HALF_QUESTION: f"right at most {percent_at_most(half_success)} (a guess: 50 %)",
        WORLD_QUESTION: f"right at most {percent_at_most(world_success)} (a guess: {100 / worlds:.2f} %)",
        "not bounded": NOT_BOUNDED,
    }


def print_table(table: Table) -> None:
    """Write a table with every column whole: as wide as it needs in a pipe or file, folded in a terminal.

    Columns that may not wrap are never cut, however narrow the terminal.
    """
    measured = Measurement.get(console, console.options.update(width=_WIDEST, markup=False), table)
    wanted = max(console.width, measured.minimum) if console.is_terminal else measured.maximum
    Console(file=console.file, width=wanted).print(table, markup=False, highlight=False, crop=False)


def facts(rows: Mapping[str, str]) -> Table:
    """A two-column table: what, and its value."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for name, value in rows.items():
        table.add_row(name, value)
    return table
