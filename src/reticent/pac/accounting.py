"""Information counted in whole units of 2^-64 nat.

Integers add without error: a float32 sum of 2^-32 stops growing after 2^24 tokens. Charges are rounded up and caps
down, both exactly, so an account never allows more than the cap in nats.
"""

import math
import re

from reticent._validate import non_negative_finite, positive_finite
from reticent.errors import InvalidValueError

MIN_STEP_BUDGET = 2.0**-128
MAX_STEP_BUDGET = 2.0**10
UNIT_BITS = 64
NATS_PER_UNIT = 2.0**-UNIT_BITS

_POWER_OF_TWO = re.compile(r"2\^([+-]?\d{1,5})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?", re.ASCII)


def check_step_budget(step_budget: float) -> float:
    """Return a step budget in nats if every release mechanism can represent it: the one rule for what a token may cost.

    Raises:
        InvalidValueError: not a number in [`MIN_STEP_BUDGET`, `MAX_STEP_BUDGET`].
    """
    if not isinstance(step_budget, int | float) or not MIN_STEP_BUDGET <= step_budget <= MAX_STEP_BUDGET:
        raise InvalidValueError(f"step_budget must lie between 2^-128 and 2^10 nats, got {step_budget!r}")
    return float(step_budget)


def charge_units(nats: float) -> int:
    """Return the least number of units worth at least `nats` (non-negative and finite)."""
    numerator, denominator = non_negative_finite("charge in nats", nats).as_integer_ratio()
    return -((-numerator << UNIT_BITS) // denominator)


def cap_units(nats: float) -> int:
    """Return the greatest number of units worth at most `nats` (positive and finite)."""
    numerator, denominator = positive_finite("total budget in nats", nats).as_integer_ratio()
    return (numerator << UNIT_BITS) // denominator


def units_to_nats(units: int) -> float:
    """Return the value of a number of units in nats, correctly rounded to float64."""
    return units / (1 << UNIT_BITS)


def parse_nats(text: str) -> float:
    """Read a budget in nats, written as a power of two (`2^-32`) or a decimal (`1e-9`, `0.001`).

    Raises:
        InvalidValueError: neither form, or not positive and finite.
    """
    stripped = text.strip()
    if power := _POWER_OF_TWO.fullmatch(stripped):
        exponent = int(power[1])
        value = math.ldexp(1.0, exponent) if exponent < 1024 else math.inf
    elif _DECIMAL.fullmatch(stripped):
        value = float(stripped)
    else:
        raise InvalidValueError(f"a budget in nats must look like 2^-32, 1e-9 or 0.001, got {text!r}")
    if not 0.0 < value < math.inf:
        raise InvalidValueError(f"a budget in nats must be positive and finite, got {text!r}")
    return value
