"""Bounds: an adversary's success for a number of nats, and budgets for a bound (arXiv 2601.14033, 2609.05676).

Formal guarantee: if all releases carry I(S; output) ≤ B nats, no adversary guesses a property of S that has prior
probability δ with probability above the largest s with kl(s ‖ δ) ≤ B, kl the binary divergence in nats. A record is in
exactly half of the worlds (δ = ½); naming the world itself has δ = 1/m. The guarantee is an average over S.

| case | outcome |
|---|---|
| B = 0 | s = δ |
| B ≥ log(1/δ) | s = 1: the bound says nothing |
| any δ in (0, 1), B however small | s − δ to a relative accuracy limited by the rounding of s itself |

Searches end on the private side: `attack_success` is never below the true bound, and a budget derived from a target
never above it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from reticent import _validate
from reticent.errors import InvalidValueError
from reticent.pac.accounting import NATS_PER_UNIT, cap_units, check_step_budget
from reticent.pac.charging import DEFAULT_CHARGING_RULE, Charging, ChargingRule
from reticent.pac.divergence import phi

MEMBERSHIP_PRIOR = 0.5

# Above the relative rounding error of `_kl_of_gain` (about 2^-48).
_SAFETY = 2.0**-44


def binary_kl(success: float, prior: float) -> float:
    """Return kl(success ‖ prior) between two coins, in nats.

    Args:
        success: in [0, 1].
        prior: in (0, 1).

    Raises:
        InvalidValueError: a value out of range.
    """
    prior = _validate.open_probability("prior", prior)
    if not 0.0 <= success <= 1.0:
        raise InvalidValueError(f"success must lie between 0 and 1, got {success!r}")
    return _kl_of_gain(success - prior, prior)


def attack_gain(total_nats: float, prior: float) -> float:
    """Return `attack_success` − prior, itself accurate to about 13 digits however small it is."""
    prior = _validate.open_probability("prior", prior)
    total_nats = _validate.non_negative_finite("total_nats", total_nats)
    if total_nats == 0.0:
        return 0.0
    target = total_nats * (1.0 + _SAFETY)
    room = 1.0 - prior
    if not target < -math.log(prior):
        return room
    # Pinsker's inequality: kl ≥ 2 gain².
    low, high = 0.0, min(room, math.sqrt(0.5 * target) * (1.0 + _SAFETY))
    while low < (middle := 0.5 * (low + high)) < high:
        if _kl_of_gain(middle, prior) < target:
            low = middle
        else:
            high = middle
    return high


def attack_success(total_nats: float, prior: float) -> float:
    """Return the largest s with kl(s ‖ prior) ≤ total_nats, rounded up; 1 where the bound says nothing.

    Args:
        total_nats: information released about S, in nats, non-negative and finite.
        prior: the adversary's chance beforehand, in (0, 1).

    Raises:
        InvalidValueError: a value out of range.
    """
    gain = attack_gain(total_nats, prior)
    if gain >= 1.0 - prior:
        return 1.0
    success = prior + gain
    if success - prior < gain:
        success = math.nextafter(success, math.inf)
    return min(success, 1.0)


def nats_for_success(success: float, prior: float) -> float:
    """Return the most information, in nats, under which no attack exceeds `success`; rounded down.

    Raises:
        InvalidValueError: the prior is not in (0, 1), or the success is not in (prior, 1).
    """
    prior = _validate.open_probability("prior", prior)
    if not prior < success < 1.0:
        raise InvalidValueError(
            f"success must lie above the prior {prior!r} and below 1, got {success!r}: guessing alone reaches the prior"
        )
    return _kl_of_gain(success - prior, prior) * (1.0 - 4.0 * _SAFETY)


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """A budget for a deployment's life.

    Attributes:
        step_budget: b, nats charged for one token at most.
        tokens: T, the number of tokens that may be released.
        total_nats: the most that they can release together.
        half_success: bound on the success of telling which half a record is in, the realised world's or not (prior ½).
        world_success: bound on the success of naming the realised world (prior 1/m).
        worlds: m.
    """

    step_budget: float
    tokens: int
    total_nats: float
    half_success: float
    world_success: float
    worlds: int


def plan(
    tokens: int | None = None,
    step_budget: float | None = None,
    half_success: float | None = None,
    num_worlds: int = 128,
    charging_rule: ChargingRule = DEFAULT_CHARGING_RULE,
) -> BudgetPlan:
    """Return the plan that any two of tokens, step budget and half success determine.

    A derived step budget is a whole number of ledger units and derived tokens are what the ledger will allow, both
    rounded down; the plan then states the success actually bounded, at most the one asked for.

    Raises:
        InvalidValueError: not exactly two are given, a value is out of range, or nothing fits the target.
    """
    worlds = _validate.num_worlds(num_worlds)
    if sum(given is None for given in (tokens, step_budget, half_success)) != 1:
        raise InvalidValueError("give exactly two of tokens, step_budget and half_success; they fix the third")
    if tokens is not None:
        tokens = _validate.integer_in_range("tokens", tokens, 1)
    if step_budget is not None:
        step_budget = check_step_budget(step_budget)
    if tokens is None or step_budget is None:
        assert half_success is not None
        total_units = cap_units(nats_for_success(half_success, MEMBERSHIP_PRIOR))
        if step_budget is not None:
            tokens = Charging(step_budget, charging_rule).tokens_within(total_units)
        elif tokens is not None:
            step_budget = _round_down(Fraction(total_units // tokens, 2**64))
    assert tokens is not None
    assert step_budget is not None
    if not tokens or not step_budget:
        raise InvalidValueError(
            f"a success of {half_success!r} leaves less than one token, or less than the ledger's "
            f"unit of {NATS_PER_UNIT:.3g} nats a token; raise it, or lower the step budget or the number of tokens"
        )
    return _make_plan(tokens, Charging(step_budget, charging_rule), worlds)


def _make_plan(tokens: int, charging: Charging, worlds: int) -> BudgetPlan:
    total_nats = _validate.positive_finite("tokens times step_budget", charging.most_nats(tokens))
    return BudgetPlan(
        step_budget=charging.step_budget,
        tokens=tokens,
        total_nats=total_nats,
        half_success=attack_success(total_nats, MEMBERSHIP_PRIOR),
        world_success=attack_success(total_nats, 1.0 / worlds),
        worlds=worlds,
    )


def _kl_of_gain(gain: float, prior: float) -> float:
    """kl(prior + gain ‖ prior) = δ φ(gain/δ) + (1 − δ) φ(−gain/(1 − δ)): no cancellation, as φ ≥ 0."""
    other = 1.0 - prior
    return prior * phi(gain / prior) + other * phi(-gain / other)


def _round_down(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
