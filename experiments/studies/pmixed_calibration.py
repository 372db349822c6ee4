"""PMixED's bound on membership, read three ways, and the radius that meets a target.

| reading | how | what it is |
|---|---|---|
| generous | T · ε(2) taken for a pure ε | no bound, since order 2 bounds no pure ε; the kindest one may meet |
| rigorous | the best (ε, δ) over all orders, δ = 10^-5, then the best test | a bound, by dp-accounting's conversion |
| tight | the best test that no order forbids | a bound, and the smallest one the orders give |

Searches end on the private side.
"""

from enum import StrEnum

from dp_accounting.rdp import compute_epsilon

from experiments.studies.pmixed import PMixedSettings
from experiments.studies.rdp import rdp_curve, success_of_epsilon, success_of_rdp
from reticent import _validate
from reticent.errors import InvalidValueError

DELTA = 1e-5
_LARGEST_BETA = 64.0
_HALVINGS = 80


class Reading(StrEnum):
    """A way to turn Rényi divergences into success at telling whether a record was in the corpus."""

    GENEROUS = "generous"
    RIGOROUS = "rigorous"
    TIGHT = "tight"


def pmixed_success(settings: PMixedSettings, num_tokens: int, reading: Reading, delta: float = DELTA) -> float:
    """Success, at even odds, that a reading concedes to an attacker who sees `num_tokens` tokens.

    Raises:
        InvalidValueError: a value out of range.
    """
    orders = range(2, settings.max_order + 1)
    curve = rdp_curve(orders, settings.num_shards, settings.sampling_rate, settings.beta, num_tokens)
    if reading is Reading.GENEROUS:
        return success_of_epsilon(float(curve[0]))
    if reading is Reading.TIGHT:
        return success_of_rdp(orders, curve.tolist())
    epsilon, _ = compute_epsilon(list(orders), curve.tolist(), delta)
    return success_of_epsilon(float(epsilon), delta)


def calibrate_pmixed(
    num_shards: int,
    sampling_rate: float,
    max_order: int,
    num_tokens: int,
    target_success: float,
    reading: Reading,
    delta: float = DELTA,
) -> PMixedSettings:
    """Settings with the largest radius whose reading stays at or below a target; radius 0 where none does.

    Raises:
        InvalidValueError: a value out of range; a target of ½ or less, or of 1 or more.
    """
    _validate.open_probability("target_success", target_success)
    if not target_success > 0.5:
        raise InvalidValueError(f"target_success must be above 0.5, that of a blind guess, got {target_success!r}")

    def at(beta: float) -> PMixedSettings:
        return PMixedSettings(num_shards, sampling_rate, max_order, beta)

    def is_allowed(beta: float) -> bool:
        return pmixed_success(at(beta), num_tokens, reading, delta) <= target_success

    if not is_allowed(0.0):
        return at(0.0)
    low, high = 0.0, _LARGEST_BETA
    if is_allowed(high):
        return at(high)
    # Radii of interest span many powers of two: find the power first, then halve between.
    while high > 2.0**-120 and not is_allowed(0.5 * high):
        high *= 0.5
    low = 0.5 * high if is_allowed(0.5 * high) else 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if is_allowed(middle):
            low = middle
        else:
            high = middle
    return at(low)
