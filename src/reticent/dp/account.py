"""The account of a corpus deployment: the ρ that it has spent, may still spend, and what that bounds.

Contract: a `RhoAccount` never changes; a charge is tested (`spent + charge ≤ cap`) before it is added, and the caller
makes that test before anything random is drawn. Every figure of spending that is shown anywhere comes from here.
"""

from dataclasses import dataclass

from reticent._validate import integer_in_range
from reticent.dp import bounds
from reticent.dp.accounting import units_to_rho
from reticent.errors import BudgetExhaustedError, InvalidValueError


@dataclass(frozen=True, slots=True)
class RhoAccount:
    """The account of a deployment: what it has spent, and may spend, over its whole life.

    Attributes:
        spent_units: charged so far, in units of 2^-64 of ρ.
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
    def spent_rho(self) -> float:
        """ρ charged so far."""
        return units_to_rho(self.spent_units)

    @property
    def cap_rho(self) -> float | None:
        """The most ρ that may ever be charged; None for no cap."""
        return None if self.cap_units is None else units_to_rho(self.cap_units)

    @property
    def left_units(self) -> int | None:
        """ρ that may still be charged, in units of 2^-64; None for no cap."""
        return None if self.cap_units is None else self.cap_units - self.spent_units

    @property
    def left_rho(self) -> float | None:
        """ρ that may still be charged; None for no cap."""
        return None if self.left_units is None else units_to_rho(self.left_units)

    def tokens_left(self, charge_units: int) -> int | None:
        """Return the number of tokens that the cap still allows at a charge each; None for no cap."""
        integer_in_range("charge in units", charge_units, 1)
        return None if self.left_units is None else self.left_units // charge_units

    def epsilon(self, delta: float) -> float:
        """Return ε at a δ in (0, 1), from all that was spent so far."""
        return bounds.epsilon(self.spent_rho, delta)

    @property
    def membership_success(self) -> float:
        """Bound on telling whether a unit is in the corpus, from all that was spent so far (prior ½)."""
        return bounds.membership_success(self.spent_rho)

    @property
    def at_cap(self) -> "RhoAccount | None":
        """The account once its cap is spent; None for no cap."""
        return None if self.cap_units is None else RhoAccount(self.cap_units, self.cap_units)

    def can_afford(self, units: int) -> bool:
        """Return whether a charge of `units` stays within the cap."""
        integer_in_range("charge in units", units, 0)
        return self.cap_units is None or self.spent_units + units <= self.cap_units

    def charged(self, units: int) -> "RhoAccount":
        """Return the account after a charge of `units`.

        Raises:
            BudgetExhaustedError: the charge would pass the cap; nothing is charged.
        """
        if not self.can_afford(units):
            raise BudgetExhaustedError(
                f"a charge of rho {units_to_rho(units):.6g} on top of {self.spent_rho:.6g} spent would pass the cap of "
                f"{self.cap_rho:.6g}; release fewer tokens, or decode without the private worlds"
            )
        return RhoAccount(self.spent_units + units, self.cap_units)
