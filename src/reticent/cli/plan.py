"""`reticent plan`: what a budget buys, before anything is built."""

from dataclasses import asdict
from typing import Annotated

import typer

from reticent.cli.deployment import Charge
from reticent.cli.output import bound_facts, console, facts, format_nats, parse_budget, percent_at_most, print_json
from reticent.pac.charging import DEFAULT_CHARGING_RULE, ChargingRule
from reticent.pac.charging import DESCRIPTIONS as CHARGED
from reticent.pac.wording import NOT_BOUNDED


def plan(
    tokens: Annotated[
        int | None, typer.Option(help="Tokens released over the deployment's life, all users together.")
    ] = None,
    step_budget: Annotated[
        float | None,
        typer.Option(
            parser=parse_budget,
            metavar="NATS",
            help="Charge for one released token: 2^-32, 1e-9 or a decimal.",
        ),
    ] = None,
    half_success: Annotated[
        float | None, typer.Option(help="Largest success in telling which half a record is in: between 0.5 and 1.")
    ] = None,
    worlds: Annotated[int, typer.Option(help="Number of candidate worlds; even.")] = 128,
    charging: Charge = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Relate tokens, budget and bound: give two of the three, read the third."""
    from reticent.pac import bounds

    rule = charging or DEFAULT_CHARGING_RULE
    result = bounds.plan(
        tokens=tokens, step_budget=step_budget, half_success=half_success, num_worlds=worlds, charging_rule=rule
    )
    if as_json:
        print_json(asdict(result) | {"charging": rule.value})
        return
    is_worst_case = rule is not ChargingRule.FIXED
    console.print(
        facts(
            {
                "tokens": f"at least {result.tokens:,}" if is_worst_case else f"{result.tokens:,}",
                "charge per token": f"at most {format_nats(result.step_budget)} ({CHARGED[rule]})"
                if is_worst_case
                else format_nats(result.step_budget),
                "total": format_nats(result.total_nats),
                **bound_facts(result.half_success, result.world_success, result.worlds),
            }
        )
    )
    console.print(
        f"\nSomeone who knows all {result.worlds} worlds and sees all {result.tokens:,} tokens tells which half of the "
        f"corpus a record is in, the realised world's or the other, with success at most "
        f"{percent_at_most(result.half_success)}, and names the world with at most "
        f"{percent_at_most(result.world_success)}. These bounds do not cover {NOT_BOUNDED}: "
        "docs/guarantee.md."
    )
