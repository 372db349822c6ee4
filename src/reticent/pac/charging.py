"""The charge for a released token, by a closed set of rules: the accounting is proved for these and no others.

Contract: `Charging.charge` is made once the votes are fixed, before anything random is drawn, and is a function of how
many distinct votes there are: it never sees the realised world. It is never above `Charging.reserve_units`, the worst
case, which is known before the votes. The account adds up charges; whatever a user may see adds up reserves, since a
charge that depends on the votes would tell where the worlds differ, and so what the corpus holds.

| rule | reserved before | charged after |
|---|---|---|
| `fixed` | the step budget | the step budget, unanimous or not: a charge tells nothing about dissent |
| `dissent` | the step budget | the step budget where the worlds' votes differ, nothing where all of them agree |

Guarantee: under either rule I(S; everything released) ≤ E[sum of charges] ≤ cap, for every adaptive user.
docs/odometer.md has the proof, and `tests/pac/test_odometer.py` searches for a counterexample.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final, assert_never

from reticent._validate import integer_in_range
from reticent.errors import InvalidValueError
from reticent.pac.accounting import charge_units, check_step_budget


class ChargingRule(StrEnum):
    """A rule by which released tokens are charged."""

    FIXED = "fixed"
    """Every token costs the step budget."""
    DISSENT = "dissent"
    """A token costs the step budget where the worlds' votes differ, and nothing where all of them agree."""


DEFAULT_CHARGING_RULE: Final = ChargingRule.FIXED

DESCRIPTIONS: Final[dict[ChargingRule, str]] = {
    ChargingRule.FIXED: "every token",
    ChargingRule.DISSENT: "only tokens on which the worlds' votes differ",
}
"""The tokens that each rule charges, for help texts."""


@dataclass(frozen=True, slots=True)
class Charging:
    """A charging rule at one step budget.

    Attributes:
        step_budget: b, the mutual information to which the mechanism holds one release, in nats.
        rule: what a token costs at that budget.

    Raises:
        InvalidValueError: the budget is out of range, or the rule is none of the set.
    """

    step_budget: float
    rule: ChargingRule = DEFAULT_CHARGING_RULE

    def __post_init__(self) -> None:
        check_step_budget(self.step_budget)
        if not isinstance(self.rule, ChargingRule):
            names = ", ".join(rule.value for rule in ChargingRule)
            raise InvalidValueError(f"the charging rule must be one of {names}, got {self.rule!r}")

    @property
    def reserve_units(self) -> int:
        """The most that one token can cost, in units of 2^-64 nat."""
        return charge_units(self.step_budget)

    def charge(self, num_active: int) -> int:
        """Return the charge for a token, in units of 2^-64 nat.

        Args:
            num_active: the number of distinct votes, a, at least 1.
        """
        integer_in_range("num_active", num_active, 1)
        match self.rule:
            case ChargingRule.FIXED:
                return self.reserve_units
            case ChargingRule.DISSENT:
                return self.reserve_units if num_active > 1 else 0
            case _:
                assert_never(self.rule)

    def tokens_within(self, units: int) -> int:
        """Return the number of tokens that `units` of 2^-64 nat allow at least, whatever the votes are."""
        return integer_in_range("units", units, 0) // self.reserve_units

    def most_nats(self, tokens: int) -> float:
        """Return the most information that a number of tokens can release, in nats; infinite beyond float64.

        It is a multiple of the step budget itself; the account adds up charges, which are rounded up.
        """
        try:
            return float(tokens * Fraction(self.step_budget))
        except OverflowError:
            return float("inf")
