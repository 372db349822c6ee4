"""Budgets for a deployment's life, as a caller writes them.

>>> import reticent
>>> plan = reticent.plan(tokens=1_000_000, step_budget="2^-32", worlds=128)
>>> f"{plan.total_nats:.6g} nats, half of a record right at most {plan.half_success:.2%}"
'0.000232831 nats, half of a record right at most 51.08%'
"""

from reticent.api.settings import parse_choice
from reticent.pac import bounds
from reticent.pac.accounting import parse_nats
from reticent.pac.bounds import BudgetPlan
from reticent.pac.charging import DEFAULT_CHARGING_RULE, ChargingRule

Nats = float | str
"""A budget in nats: a number, or text such as `"2^-32"` or `"1e-9"`."""


def to_nats(budget: Nats) -> float:
    """Return a budget as a number of nats.

    Raises:
        InvalidValueError: the text is no budget.
    """
    return parse_nats(budget) if isinstance(budget, str) else budget


def plan(
    *,
    tokens: int | None = None,
    step_budget: Nats | None = None,
    half_success: float | None = None,
    worlds: int = 128,
    charging: ChargingRule | str = DEFAULT_CHARGING_RULE,
) -> BudgetPlan:
    """Relate tokens, budget and bound: any two give the third.

    Args:
        tokens: T, the number of tokens that may be released.
        step_budget: b, the most that one token is charged, in nats.
        half_success: largest success in telling which half of the corpus a record is in, in (0.5, 1).
        worlds: m, even.
        charging: the rule by which a released token is charged, a `ChargingRule`.

    Raises:
        InvalidValueError: not exactly two of the three are given, a value is out of range, or nothing fits.
    """
    budget = None if step_budget is None else to_nats(step_budget)
    rule = parse_choice("charging", ChargingRule, charging)
    return bounds.plan(tokens, budget, half_success, worlds, rule)
