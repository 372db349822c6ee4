"""Charges of the corpus guarantee, counted in whole units of 2^-64 of ρ.

Guarantee: an η-bounded-range release is ρ-zCDP with ρ = η²/8 (Cesar and Rogers 2021), and zCDP adds up under adaptive
composition (Bun and Steinke 2016). The arithmetic of a release widens its range by at most `ROUNDING_ETA`; the charge
is for the wider range, rounded up exactly, and caps are rounded down, so an account never allows more than its cap.
"""

from fractions import Fraction
from typing import Final

from reticent._validate import positive_finite
from reticent.errors import InvalidValueError

UNIT_BITS: Final = 64
RHO_PER_UNIT: Final = 2.0**-UNIT_BITS
ROUNDING_ETA: Final = Fraction(1, 2**42)
"""The most that the arithmetic of one release adds to its range: four errors of 2^-44 each, see `release`."""


def rho_of_range(eta: Fraction) -> Fraction:
    """Return ρ of an η-bounded-range release, η²/8, exactly."""
    return eta * eta / 8


def charge_units(eta: Fraction) -> int:
    """Return the charge for one release whose exact range is η: the least number of units worth at least its ρ.

    Raises:
        InvalidValueError: η is negative.
    """
    if not eta >= 0:
        raise InvalidValueError(f"eta must be a non-negative number, got {eta!r}")
    rho = rho_of_range(eta + ROUNDING_ETA)
    return -((-rho.numerator << UNIT_BITS) // rho.denominator)


def cap_units(rho: float) -> int:
    """Return the greatest number of units worth at most ρ (positive and finite)."""
    numerator, denominator = positive_finite("total rho", rho).as_integer_ratio()
    return (numerator << UNIT_BITS) // denominator


def units_to_rho(units: int) -> float:
    """Return the value of a number of units as ρ, correctly rounded to float64."""
    return units / (1 << UNIT_BITS)
