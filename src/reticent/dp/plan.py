"""Budgets of a corpus deployment: any two of tokens, bound and gain give the third.

The bound may be stated as ρ, as (ε, δ) or as a success; all are held as ρ. At a clip and a temperature the gain stands
for w = gc/τ. What is derived is rounded to the private side, and the plan says what is then bounded.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from reticent._validate import integer_in_range, open_probability, positive_finite
from reticent.dp import bounds
from reticent.dp.account import RhoAccount
from reticent.dp.accounting import ROUNDING_ETA, UNIT_BITS, cap_units
from reticent.dp.blocks import BlockReading, block_reading
from reticent.dp.defaults import DEFAULT_CANDIDATES, DEFAULT_CLIP, DEFAULT_TEMPERATURE, LARGEST_DEFAULT_DELTA
from reticent.dp.relations import Relation, relation_for
from reticent.dp.release import MAX_SWAY, CorpusSettings
from reticent.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class CorpusBound:
    """A bound on everything released, in one of three ways.

    Attributes:
        total_rho: ρ over the deployment's life.
        total_epsilon: ε over its life, at the δ of the plan.
        membership_success: largest success in telling whether a unit is in the corpus, in (½, 1).

    Raises:
        InvalidValueError: more than one is given, or one is out of range.
    """

    total_rho: float | None = None
    total_epsilon: float | None = None
    membership_success: float | None = None

    def __post_init__(self) -> None:
        given = (self.total_rho, self.total_epsilon, self.membership_success)
        if sum(value is not None for value in given) > 1:
            raise InvalidValueError("state one bound: total rho, total epsilon or membership success")
        if self.total_rho is not None:
            positive_finite("total rho", self.total_rho)
        if self.total_epsilon is not None:
            positive_finite("total epsilon", self.total_epsilon)
        if self.membership_success is not None:
            bounds.rho_for_success(self.membership_success)

    def rho(self, delta: float) -> float | None:
        """Return the bound as ρ, rounded down; None where none is given."""
        if self.total_epsilon is not None:
            return bounds.rho_for_epsilon(self.total_epsilon, delta)
        if self.membership_success is not None:
            return bounds.rho_for_success(self.membership_success)
        return self.total_rho


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """A budget for a corpus deployment's life.

    Attributes:
        settings: the constants of its deployment.
        tokens: T, the number of tokens that may be released.
        rho: what they cost together.
        epsilon: ε at `delta`.
        delta: δ, below one over the number of places.
        membership_success: bound on telling whether a unit is in the corpus (prior ½).
    """

    settings: CorpusSettings
    tokens: int
    rho: float
    epsilon: float
    delta: float
    membership_success: float

    @property
    def blocks(self) -> BlockReading | None:
        """The tighter reading of the same tokens in blocks, or None where it is not certified; takes half a second."""
        return block_reading(self.tokens, self.settings.exact_eta)


def default_delta(capacity: int) -> float:
    """Return the δ at which ε is stated unless one is given: 1e-6, or half of one over the places if they are many."""
    return min(LARGEST_DEFAULT_DELTA, 0.5 / integer_in_range("capacity", capacity, 1))


def check_delta(delta: float, capacity: int) -> float:
    """Return δ if it is below one over the number of places, occupied or not.

    Raises:
        InvalidValueError: it is not.
    """
    delta = open_probability("delta", delta)
    if not delta * integer_in_range("capacity", capacity, 1) < 1.0:
        raise InvalidValueError(
            f"delta must be below one over the number of places, 1/{capacity}, got {delta!r}: at a larger one a "
            "mechanism may show a unit whole"
        )
    return delta


def plan(
    tokens: int | None = None,
    bound: CorpusBound | None = None,
    gain: float | None = None,
    *,
    num_worlds: int,
    places: int = 1,
    clip: float = DEFAULT_CLIP,
    temperature: float = DEFAULT_TEMPERATURE,
    num_candidates: int = DEFAULT_CANDIDATES,
    delta: float | None = None,
) -> CorpusPlan:
    """Return the plan that any two of tokens, bound and gain determine.

    Args:
        tokens: T, at least 1.
        bound: on everything released.
        gain: g; with the clip and the temperature it gives w.
        num_worlds: m.
        places: places a world, s; they decide the neighbouring relation.
        clip: c, in nats.
        temperature: τ.
        num_candidates: k.
        delta: δ for the (ε, δ) reading, below 1/(m s); `default_delta` unless given.

    Raises:
        InvalidValueError: not exactly two are given, a value is out of range, or nothing fits the bound.
    """
    relation = relation_for(places)
    capacity = integer_in_range("worlds", num_worlds, 1) * places
    delta = default_delta(capacity) if delta is None else check_delta(delta, capacity)
    total_rho = None if bound is None else bound.rho(delta)
    if sum(given is None for given in (tokens, total_rho, gain)) != 1:
        raise InvalidValueError(
            "give exactly two of tokens, a bound (total rho, total epsilon or membership success) and gain; they fix "
            "the third"
        )
    if tokens is not None:
        tokens = integer_in_range("tokens", tokens, 1)
    units = None if total_rho is None else cap_units(total_rho)
    if gain is None:
        assert tokens is not None
        assert units is not None
        gain = _gain_for(units // tokens, num_worlds, clip, temperature, relation)
    settings = CorpusSettings(clip, gain, temperature, num_candidates, num_worlds, relation)
    if tokens is None:
        assert units is not None
        tokens = units // settings.charge_units
        if not tokens:
            raise InvalidValueError("the bound leaves less than one token; raise it, or lower the gain or the clip")
    return make_plan(settings, tokens, delta)


def make_plan(settings: CorpusSettings, tokens: int, delta: float) -> CorpusPlan:
    """Return what a number of tokens under some settings costs and bounds."""
    account = RhoAccount(tokens * settings.charge_units)
    return CorpusPlan(settings, tokens, account.spent_rho, account.epsilon(delta), delta, account.membership_success)


def _gain_for(charge_units: int, num_worlds: int, clip: float, temperature: float, relation: Relation) -> float:
    """The largest gain at which a token costs at most a number of units."""
    positive_finite("clip", clip)
    positive_finite("temperature", temperature)
    # ρ = η²/8 and η = f w/m, solved for w with what the arithmetic adds; an integer square root rounds down.
    eta = Fraction(math.isqrt(8 * charge_units << UNIT_BITS), 1 << UNIT_BITS) - ROUNDING_ETA
    factor = 2 if relation is Relation.ADD_REMOVE else 4
    w = min(eta * num_worlds / factor, Fraction(MAX_SWAY))
    gain = _round_down(w * Fraction(temperature) / Fraction(clip)) if w > 0 else 0.0
    if not gain > 0.0:
        raise InvalidValueError(
            "the bound leaves no gain for that number of tokens; raise it, or plan for fewer tokens"
        )
    return gain


def _round_down(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
