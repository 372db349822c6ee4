"""The release of one token under the corpus guarantee: integer votes of all worlds, their sum, and one draw.

With p the public model's log-probabilities over its top k tokens and q_j world j's over the same tokens,

    v_j(y) = clip(rint((q_j(y) − p(y))·2^24), ±⌊c·2^24⌋), all zero for an empty world or a row that is not finite,
    s(y)   = p(y)/τ + κ Σ_j v_j(y), κ = g/(m τ 2^24), and the token is drawn from softmax(s).

Guarantee. If neighbouring corpora move one world's votes alone, the log-ratio of the token's probabilities on both
ranges over at most η + 2^-42 nats, η = 4w/m under replacement and 2w/m where those votes are zero on one side, with
w = gc/τ: the release has that bounded range, whatever the history. docs/corpus-guarantee.md has the proof.

Arithmetic. The sum is an exact integer. With a(y) = (p(y) − max p)/τ, a weight exp(a + κD − w) lies in [e^-74, 1],
since candidates with −a + 2w > 74 are left out, a rule that looks at public numbers alone. Times 2^160 it is an integer
exactly, and its logarithm is within 2^-44 of the real one up to what all corpora share. One draw of 256 bits picks
among the integers; each then has its probability to a relative 2^-130. No loop depends on what is drawn.

The draw is the noise: it comes from a secure source, never from public coins or a seed. A client's temperature may
divide p alone, which changes neither w nor the charge. Nothing else may act on s.

Shape suffixes: M worlds, K candidates.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reticent._validate import integer_in_range, positive_finite
from reticent.dp.accounting import charge_units, rho_of_range
from reticent.dp.relations import Relation
from reticent.errors import InvalidValueError
from reticent.randomness import BitSource

VOTE_BITS: Final = 24
VOTES_PER_NAT: Final = 1 << VOTE_BITS
MAX_EXPONENT: Final = 74.0
"""The largest 2w - a of a candidate that may be drawn: e^-74 times 2^160 still has all bits of a double."""
MAX_SWAY: Final = MAX_EXPONENT / 2.0
"""The largest w at which the public model's best token may always be drawn."""
MAX_VOTE_SUM: Final = 1 << 53
"""Sums of votes up to here are exact in float64."""

_WEIGHT_BITS: Final = 160
_DRAW_BITS: Final = 256
_MAX_CANDIDATES: Final = 1 << 20


@dataclass(frozen=True)
class CorpusSettings:
    """Constants of a corpus deployment, chosen once for its whole life.

    Attributes:
        clip: c, the most by which one world's log-probability counts as other than the public one, in nats; at least
            2^-24.
        gain: g, multiplies the mean of the clipped votes.
        temperature: τ, divides the scores.
        num_candidates: k, the public model's most likely tokens, among which a token is drawn; at least 2.
        num_worlds: m, public and declared: it never follows the corpus.
        relation: the difference between neighbouring corpora that the charge is for.

    Raises:
        InvalidValueError: a value is out of range, or w = gc/τ is above 37 nats.
    """

    clip: float
    gain: float
    temperature: float
    num_candidates: int
    num_worlds: int
    relation: Relation

    def __post_init__(self) -> None:
        positive_finite("clip", self.clip)
        positive_finite("gain", self.gain)
        positive_finite("temperature", self.temperature)
        integer_in_range("num_candidates", self.num_candidates, 2, _MAX_CANDIDATES)
        integer_in_range("num_worlds", self.num_worlds, 1)
        if not isinstance(self.relation, Relation):
            names = ", ".join(relation.value for relation in Relation)
            raise InvalidValueError(f"relation must be one of {names}, got {self.relation!r}")
        if not self.clip * VOTES_PER_NAT >= 1.0:
            raise InvalidValueError(f"clip must be at least 2^-{VOTE_BITS} nats, got {self.clip!r}")
        if not self.num_worlds * Fraction(self.clip) * VOTES_PER_NAT <= MAX_VOTE_SUM:
            raise InvalidValueError(
                f"clip {self.clip!r} nats times {self.num_worlds} worlds is more than a sum of votes holds exactly; "
                "lower the clip"
            )
        if not self.exact_sway <= MAX_SWAY:
            raise InvalidValueError(
                f"gain times clip over temperature is {float(self.exact_sway):.6g} nats, more than the {MAX_SWAY:g} "
                "that the arithmetic of a release holds; lower the gain or the clip, or raise the temperature"
            )

    @property
    def exact_sway(self) -> Fraction:
        """The exact value of `w`."""
        return Fraction(self.gain) * Fraction(self.clip) / Fraction(self.temperature)

    @property
    def exact_eta(self) -> Fraction:
        """The exact value of `eta`."""
        return (2 if self.relation is Relation.ADD_REMOVE else 4) * self.exact_sway / self.num_worlds

    @property
    def w(self) -> float:
        """The most that all worlds together move a token's score, w = gc/τ, in nats."""
        return float(self.exact_sway)

    @property
    def eta(self) -> float:
        """η, the range of one release in nats, before what its arithmetic adds: 4w/m, or 2w/m by add-remove."""
        return float(self.exact_eta)

    @property
    def rho(self) -> float:
        """ρ = η²/8 of one release, before what its arithmetic adds; what is charged is `charge_units`."""
        return float(rho_of_range(self.exact_eta))

    @cached_property
    def charge_units(self) -> int:
        """The charge for every token, whatever the history, in units of 2^-64 of ρ."""
        return charge_units(self.exact_eta)

    @cached_property
    def kappa(self) -> float:
        """κ = g/(m τ 2^24), the weight of one unit of the sum of votes in a score, correctly rounded."""
        return float(Fraction(self.gain) / (self.num_worlds * Fraction(self.temperature) * VOTES_PER_NAT))

    @property
    def vote_limit(self) -> int:
        """⌊c·2^24⌋, the largest vote."""
        return vote_limit(self.clip)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """All that the worlds say of one token, added up: the only thing about them that a release sees.

    Attributes:
        candidates_K: token ids, public, int64[K].
        public_logp_K: p, the public model's log-probabilities over the candidates alone, in nats, float64[K].
        sum_K: D, the sum of all worlds' integer votes, int64[K]. Private: never shown or logged.

    Raises:
        InvalidValueError: shapes or types disagree, or the public row is not finite.
    """

    candidates_K: NDArray[np.int64]
    public_logp_K: NDArray[np.float64]
    sum_K: NDArray[np.int64] = field(repr=False)

    def __post_init__(self) -> None:
        count = self.candidates_K.size
        if not count or {array.shape for array in (self.candidates_K, self.public_logp_K, self.sum_K)} != {(count,)}:
            raise InvalidValueError("candidates, public log-probabilities and sums of votes must be rows of one length")
        if self.candidates_K.dtype != np.int64 or self.sum_K.dtype != np.int64:
            raise InvalidValueError("candidates and sums of votes must be int64")
        require_finite_row(self.public_logp_K)

    @property
    def num_candidates(self) -> int:
        """K, the number of candidates."""
        return self.candidates_K.size


def require_finite_row(public_K: NDArray[np.floating]) -> None:
    """Check the public model's row: the only failure of a step that may be shown.

    Raises:
        InvalidValueError: a number in it is not finite.
    """
    if not np.isfinite(public_K).all():
        raise InvalidValueError("the public model's logits at the candidates are not finite; no token can be released")


def vote_limit(clip: float) -> int:
    """Return ⌊c·2^24⌋ for a clip in nats, the largest vote."""
    return math.floor(Fraction(clip) * VOTES_PER_NAT)


def public_log_probabilities(public_logits_K: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the public model's log-probabilities over its candidates alone, float64[K].

    Raises:
        InvalidValueError: the row is not finite.
    """
    require_finite_row(public_logits_K)
    logits_K = public_logits_K.astype(np.float64)
    logits_K -= logits_K.max()
    log_probabilities_K: NDArray[np.float64] = logits_K - math.log(float(np.exp(logits_K).sum()))
    return log_probabilities_K


def integer_votes(
    public_logp_K: NDArray[np.float64],
    world_logits_MK: NDArray[np.floating],
    occupied_M: NDArray[np.bool_],
    clip: float,
) -> NDArray[np.int64]:
    """Return every world's votes, int64[M, K]: a function of its own row, the public one and whether it is occupied.

    Args:
        public_logp_K: p, from `public_log_probabilities`.
        world_logits_MK: every world's logits at the candidates; the row of an empty world may hold anything.
        occupied_M: whether any place of the world is taken.
        clip: c, in nats.

    Raises:
        InvalidValueError: shapes disagree, or the public row is not finite. No value of a world raises.
    """
    require_finite_row(public_logp_K)
    if world_logits_MK.shape != (occupied_M.size, public_logp_K.size) or occupied_M.dtype != np.bool_:
        raise InvalidValueError(
            f"world logits must be [worlds, candidates] with one flag a world, got shape {world_logits_MK.shape} for "
            f"{occupied_M.size} worlds and {public_logp_K.size} candidates"
        )
    limit = vote_limit(clip)
    counts_M = occupied_M & np.isfinite(world_logits_MK).all(axis=1)
    # Every world passes through the same operations; rows that do not count go as the public row, and vote zero.
    logits_MK = np.where(counts_M[:, None], world_logits_MK.astype(np.float64), public_logp_K)
    with np.errstate(over="ignore"):
        logits_MK -= logits_MK.max(axis=1, keepdims=True)
        # What a processor may round by its own taste, it does for one row at a time: no row feels another.
        logits_MK -= np.array([[math.log(float(np.exp(row_K).sum()))] for row_K in logits_MK])
        logits_MK -= public_logp_K
        logits_MK *= VOTES_PER_NAT
    votes_MK = np.clip(np.rint(logits_MK), -limit, limit).astype(np.int64)
    votes_MK[~counts_M] = 0
    return votes_MK


def release(aggregate: Aggregate, settings: CorpusSettings, bits: BitSource, temperature: float | None = None) -> int:
    """Draw a token and return its index among the candidates. The caller has charged for it, durably.

    Args:
        aggregate: what the public model and the worlds say.
        settings: the deployment's constants.
        bits: a secure source; its draw is the noise that the guarantee rests on.
        temperature: divides p alone, for this token; the deployment's unless given. Votes, w and charge stay.

    Raises:
        InvalidValueError: the aggregate was not made under these settings, or the temperature is out of range.
    """
    weights = integer_weights(aggregate, settings, temperature)
    position = bits.secret_bits(_DRAW_BITS) * sum(weights) >> _DRAW_BITS
    index = 0
    for weight in weights:
        position -= weight
        index += position >= 0
    return index


def integer_weights(aggregate: Aggregate, settings: CorpusSettings, temperature: float | None = None) -> list[int]:
    """Return W, the whole numbers in proportion to which the candidates are drawn; 0 for one that is left out.

    Raises:
        InvalidValueError: as for `release`.
    """
    require_settings(aggregate, settings)
    tau = settings.temperature if temperature is None else positive_finite("temperature", temperature)
    w = settings.w
    with np.errstate(over="ignore"):
        public_K = (aggregate.public_logp_K - aggregate.public_logp_K.max()) / tau
    kept_K = 2.0 * w - public_K <= MAX_EXPONENT
    exponents_K = np.where(kept_K, public_K, 0.0) + settings.kappa * aggregate.sum_K - w
    weights_K = np.where(kept_K, np.ldexp(np.exp(exponents_K), _WEIGHT_BITS), 0.0)
    return [int(weight) for weight in weights_K]


def require_settings(aggregate: Aggregate, settings: CorpusSettings) -> None:
    """Check that an aggregate can come from as many worlds, candidates and such a clip as the settings say.

    Raises:
        InvalidValueError: it cannot. Sums of `integer_votes` always can.
    """
    if aggregate.num_candidates != settings.num_candidates:
        raise InvalidValueError(
            f"this deployment draws among {settings.num_candidates} candidates, a token came with "
            f"{aggregate.num_candidates}"
        )
    if not np.abs(aggregate.sum_K).max() <= settings.num_worlds * settings.vote_limit:
        raise InvalidValueError("the votes add up to more than all worlds together can cast under this clip")
