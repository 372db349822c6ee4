"""The account of information spent, in whole units of 2^-64 nat.

Integers add without error: a float32 sum of 2^-32 stops growing after 2^24 tokens. Charges are rounded up and caps
down, both exactly, so an account never allows more than the cap in nats.

Contract: an `Account` never changes; a charge is tested (`spent + charge ≤ cap`) before it is added, and the caller
makes that test before anything random is drawn.
"""

import math
import re
from dataclasses import dataclass

from reticent._validate import integer_in_range, non_negative_finite, positive_finite
from reticent.errors import BudgetExhaustedError, InvalidValueError

MIN_STEP_BUDGET = 2.0**-128
MAX_STEP_BUDGET = 2.0**10
UNIT_BITS = 64
NATS_PER_UNIT = 2.0**-UNIT_BITS

_POWER_OF_TWO = re.compile(r"2\^([+-]?\d{1,5})", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,5})?", re.ASCII)


def check_step_budget(step_budget: float) -> float:
    """Return a step budget in nats if every release law can represent it: the one rule for what a token may cost.

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


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a deployment: what it has spent, and may spend, over its whole life.

    Attributes:
        spent_units: information charged so far, in units of 2^-64 nat.
        cap_units: the most that may ever be charged, or None for no cap.

    Raises:
        InvalidValueError: a negative number, or more spent than the cap allows.
    """

    spent_units: int = 0
    cap_units: int | None = None

    def __post_init__(self) -> None:
        integer_in_range("spent_units", self.spent_units, 0)
        if self.cap_units is not None:
            integer_in_range("cap_units", self.cap_units, 0)
            if not self.spent_units <= self.cap_units:
                raise InvalidValueError(f"spent_units {self.spent_units} exceeds cap_units {self.cap_units}")

    @property
    def spent_nats(self) -> float:
        """Information charged so far, in nats."""
        return units_to_nats(self.spent_units)

    def can_afford(self, units: int) -> bool:
        """Return whether a charge of `units` stays within the cap."""
        integer_in_range("charge in units", units, 0)
        return self.cap_units is None or self.spent_units + units <= self.cap_units

    def charged(self, units: int) -> "Account":
        """Return the account after a charge of `units`.

        Raises:
            BudgetExhaustedError: the charge would pass the cap; nothing is charged.
        """
        if not self.can_afford(units):
            cap = units_to_nats(self.cap_units or 0)
            raise BudgetExhaustedError(
                f"a charge of {units_to_nats(units):.6g} nats on top of {self.spent_nats:.6g} nats spent would pass "
                f"the total budget of {cap:.6g} nats; release fewer tokens, or decode without the private worlds"
            )
        return Account(self.spent_units + units, self.cap_units)
