"""Budgets for a deployment's life, as a caller writes them.

>>> import reticent
>>> plan = reticent.plan(tokens=1_000_000, step_budget="2^-32", worlds=128)
>>> f"{plan.total_nats:.6g} nats, half of a record right at most {plan.half_success:.2%}"
'0.000232831 nats, half of a record right at most 51.08%'
>>> plan = reticent.plan(guarantee="corpus", membership_success=0.6, gain=2.0, worlds=512)
>>> f"{plan.tokens:,} tokens, a unit in the corpus or not right at most {plan.membership_success:.2%}"
'42,516 tokens, a unit in the corpus or not right at most 60.00%'
"""

from typing import TYPE_CHECKING, Any, Literal, overload

from reticent.api.settings import parse_choice
from reticent.errors import InvalidValueError
from reticent.guarantees import DEFAULT_GUARANTEE, Guarantee
from reticent.pac import bounds
from reticent.pac.accounting import parse_nats
from reticent.pac.bounds import BudgetPlan
from reticent.pac.charging import DEFAULT_CHARGING_RULE, ChargingRule

if TYPE_CHECKING:
    from reticent.dp.plan import CorpusPlan

Nats = float | str
"""A budget in nats: a number, or text such as `"2^-32"` or `"1e-9"`."""

DEFAULT_WORLDS = 128

_OPTIONS = {
    Guarantee.REALISED_WORLD: ("step_budget", "half_success", "charging"),
    Guarantee.CORPUS: (
        "total_rho", "total_epsilon", "membership_success", "delta", "gain", "clip", "temperature", "candidates",
        "places",
    ),
}  # fmt: skip


def to_nats(budget: Nats) -> float:
    """Return a budget as a number of nats.

    Raises:
        InvalidValueError: the text is no budget.
    """
    return parse_nats(budget) if isinstance(budget, str) else budget


@overload
def plan(
    *,
    guarantee: Literal["realised-world", Guarantee.REALISED_WORLD] = ...,
    tokens: int | None = ...,
    step_budget: Nats | None = ...,
    half_success: float | None = ...,
    worlds: int = ...,
    charging: ChargingRule | str = ...,
) -> BudgetPlan: ...


@overload
def plan(
    *,
    guarantee: Literal["corpus", Guarantee.CORPUS],
    worlds: int,
    tokens: int | None = ...,
    total_rho: float | None = ...,
    total_epsilon: float | None = ...,
    membership_success: float | None = ...,
    gain: float | None = ...,
    clip: float = ...,
    temperature: float = ...,
    candidates: int = ...,
    places: int = ...,
    delta: float = ...,
) -> "CorpusPlan": ...


def plan(
    *,
    guarantee: Guarantee | str = DEFAULT_GUARANTEE,
    tokens: int | None = None,
    worlds: int | None = None,
    **options: Any,
) -> "BudgetPlan | CorpusPlan":
    """Relate tokens, budget and bound: any two give the third.

    Args:
        guarantee: the one that is planned for; it decides which options there are.
        tokens: T, the number of tokens that may be released.
        worlds: m; even, and 128 unless given, for a realised-world deployment.
        options: for `realised-world`: `step_budget`, b in nats, `half_success`, the largest success in telling which
            half of the corpus a record is in, and `charging`, a `ChargingRule`. For `corpus`: one bound (`total_rho`,
            `total_epsilon` at `delta`, or `membership_success`), `gain`, and what stands beside it: `clip` in nats,
            `temperature`, `candidates`, and `places` a world, which decide the neighbouring relation.

    Raises:
        InvalidValueError: not exactly two of the three are given, an option belongs to the other guarantee, a value is
            out of range, or nothing fits.
    """
    kind = parse_choice("guarantee", Guarantee, guarantee)
    _require_own(kind, options)
    if kind is Guarantee.REALISED_WORLD:
        return _plan_realised_world(tokens, DEFAULT_WORLDS if worlds is None else worlds, **options)
    if worlds is None:
        raise InvalidValueError(f"a plan for the guarantee {kind} needs the number of worlds: give worlds")
    return _plan_corpus(tokens, worlds, **options)


def _require_own(kind: Guarantee, options: dict[str, Any]) -> None:
    for name in options:
        if name in _OPTIONS[kind]:
            continue
        owner = next((other for other in Guarantee if name in _OPTIONS[other]), None)
        if owner is None:
            raise TypeError(f"plan() has no argument {name!r}")
        raise InvalidValueError(
            f"{name} is for the guarantee {owner}, and this is a plan for {kind}; leave it out, or plan for {owner}"
        )


def _plan_realised_world(
    tokens: int | None,
    worlds: int,
    *,
    step_budget: Nats | None = None,
    half_success: float | None = None,
    charging: ChargingRule | str = DEFAULT_CHARGING_RULE,
) -> BudgetPlan:
    budget = None if step_budget is None else to_nats(step_budget)
    rule = parse_choice("charging", ChargingRule, charging)
    return bounds.plan(tokens, budget, half_success, worlds, rule)


def _plan_corpus(
    tokens: int | None,
    worlds: int,
    *,
    total_rho: float | None = None,
    total_epsilon: float | None = None,
    membership_success: float | None = None,
    gain: float | None = None,
    candidates: int | None = None,
    **constants: Any,
) -> "CorpusPlan":
    from reticent.dp.plan import CorpusBound
    from reticent.dp.plan import plan as plan_of_corpus

    bound = CorpusBound(total_rho, total_epsilon, membership_success)
    if candidates is not None:
        constants["num_candidates"] = candidates
    return plan_of_corpus(tokens, bound, gain, num_worlds=worlds, **constants)
