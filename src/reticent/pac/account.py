"""The account of a deployment: what it has spent, may still spend, and what that bounds.

Contract: an `Account` never changes; a charge is tested (`spent + charge ≤ cap`) before it is added, and the caller
makes that test before anything random is drawn. Every figure of spending that is shown anywhere comes from here.
"""

from dataclasses import dataclass

from reticent._validate import integer_in_range
from reticent.errors import BudgetExhaustedError, InvalidValueError
from reticent.pac.accounting import units_to_nats
from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success
from reticent.pac.charging import Charging


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

    @property
    def cap_nats(self) -> float | None:
        """The most that may ever be charged, in nats; None for no cap."""
        return None if self.cap_units is None else units_to_nats(self.cap_units)

    @property
    def left_units(self) -> int | None:
        """Information that may still be charged, in units of 2^-64 nat; None for no cap."""
        return None if self.cap_units is None else self.cap_units - self.spent_units

    @property
    def left_nats(self) -> float | None:
        """Information that may still be charged, in nats; None for no cap."""
        return None if self.left_units is None else units_to_nats(self.left_units)

    def tokens_left(self, charging: Charging) -> int | None:
        """Return the number of tokens that the cap still allows at least; None for no cap."""
        return None if self.left_units is None else charging.tokens_within(self.left_units)

    @property
    def half_success(self) -> float:
        """Bound on telling which half of the corpus a record is in, from all that was spent so far (prior ½)."""
        return attack_success(self.spent_nats, MEMBERSHIP_PRIOR)

    def world_success(self, num_worlds: int) -> float:
        """Return the bound on naming the realised world, from all that was spent so far (prior 1/m)."""
        return attack_success(self.spent_nats, 1.0 / num_worlds)

    @property
    def at_cap(self) -> "Account | None":
        """The account once its cap is spent; None for no cap."""
        return None if self.cap_units is None else Account(self.cap_units, self.cap_units)

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
            raise BudgetExhaustedError(
                f"a charge of {units_to_nats(units):.6g} nats on top of {self.spent_nats:.6g} nats spent would pass "
                f"the total budget of {self.cap_nats:.6g} nats; release fewer tokens, or decode without the private "
                "worlds"
            )
        return Account(self.spent_units + units, self.cap_units)
