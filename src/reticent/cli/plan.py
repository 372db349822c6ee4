"""`reticent plan`: what a budget buys, before anything is built."""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reticent.cli.command_options import takes_options
from reticent.cli.deployment import Charge
from reticent.cli.output import bound_facts, console, facts, format_nats, parse_budget, percent_at_most, print_json
from reticent.dp.wording import NOT_COVERED
from reticent.guarantees import DEFAULT_GUARANTEE, HIDES, Guarantee
from reticent.pac.bounds import BudgetPlan
from reticent.pac.charging import DEFAULT_CHARGING_RULE, ChargingRule
from reticent.pac.charging import DESCRIPTIONS as CHARGED
from reticent.pac.wording import NOT_BOUNDED

if TYPE_CHECKING:
    from reticent.dp.plan import CorpusPlan


@dataclass(frozen=True)
class PlanOptions:
    """The options of `reticent plan`."""

    tokens: Annotated[
        int | None, typer.Option(help="Tokens released over the deployment's life, all users together.")
    ] = None
    worlds: Annotated[
        int | None,
        typer.Option(
            help="Number of worlds; even and 128 unless given for realised-world, declared beforehand for corpus."
        ),
    ] = None
    guarantee: Annotated[
        Guarantee,
        typer.Option(help="What tokens hide: " + "; ".join(f"{name}, {what}" for name, what in HIDES.items()) + "."),
    ] = DEFAULT_GUARANTEE
    step_budget: Annotated[
        float | None,
        typer.Option(
            parser=parse_budget,
            metavar="NATS",
            help="Charge for one released token: 2^-32, 1e-9 or a decimal.",
        ),
    ] = None
    half_success: Annotated[
        float | None, typer.Option(help="Largest success in telling which half a record is in: between 0.5 and 1.")
    ] = None
    charging: Charge = None
    total_epsilon: Annotated[
        float | None, typer.Option(help="For corpus: largest epsilon over the deployment's life, at --delta.")
    ] = None
    delta: Annotated[
        float | None, typer.Option(help="For corpus: below one over worlds times places; 1e-6 unless given.")
    ] = None
    membership_success: Annotated[
        float | None,
        typer.Option(help="For corpus: largest success in telling whether a unit is in the corpus, between 0.5 and 1."),
    ] = None
    total_rho: Annotated[float | None, typer.Option(help="For corpus: largest rho over the deployment's life.")] = None
    clip: Annotated[float | None, typer.Option(help="For corpus: nats; 0.5 unless given.")] = None
    gain: Annotated[
        float | None,
        typer.Option(help="For corpus: all worlds move a score by at most gain times clip over temperature."),
    ] = None
    temperature: Annotated[float | None, typer.Option(help="For corpus: 1 unless given.")] = None
    places: Annotated[
        int | None,
        typer.Option(help="For corpus: places a world. 1 unless given, which has the tighter neighbouring relation."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


@takes_options(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Relate tokens, budget and bound: give two of the three, read the third."""
    from reticent.api import planning

    given: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(options)}
    as_json = given.pop("as_json")
    result = planning.plan(**{name: value for name, value in given.items() if value is not None})
    if isinstance(result, BudgetPlan):
        _print_realised_world(result, options.charging or DEFAULT_CHARGING_RULE, as_json=as_json)
    else:
        _print_corpus(result, as_json=as_json)


def _print_corpus(result: "CorpusPlan", *, as_json: bool) -> None:
    from reticent.cli.corpus_readings import plan_facts, plan_record

    if as_json:
        print_json(plan_record(result))
        return
    console.print(facts(plan_facts(result)))
    console.print(
        f"\nSomeone who knows everything but whether a unit is in the corpus, and sees all {result.tokens:,} tokens, "
        f"tells whether it is with success at most {percent_at_most(result.membership_success)}. This does not cover "
        f"{NOT_COVERED}: docs/corpus-guarantee.md."
    )


def _print_realised_world(result: BudgetPlan, rule: ChargingRule, *, as_json: bool) -> None:
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
