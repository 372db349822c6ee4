"""Candidates and votes: what the public model proposes and what each world would say.

Everything here is a pure function of public things (the public model's logits, the settings, the coins) and of all the
worlds' logits, taken in one fixed order. The realised world is not among the arguments, so no vote, no error and no
running time can depend on it (arXiv 2609.05676; the vote is the query whose answer the mechanism releases).

| case | what happens |
|---|---|
| equal logits at the edge of the candidate set | the lower token ids enter |
| equal scores within a world | the vote is the lowest token id, in whatever order the candidates stand |
| worlds with the same logits | always the same vote, as all worlds share one coin vector |
| a world gives -inf to some candidates | it never votes for them |
| a row that is NaN, +inf, or -inf throughout | `InvalidValueError`: it is no distribution |

Shape suffixes: M worlds, K candidates, V vocabulary.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent.errors import InvalidValueError
from reticent.pac.charging import DEFAULT_CHARGING_RULE, Charging, ChargingRule
from reticent.pac.mechanism import DEFAULT_RELEASE, ReleaseMechanism

Logits = NDArray[np.floating]

_BEYOND_EVERY_ID = np.iinfo(np.int64).max


class Decoder(StrEnum):
    """A rule that turns a world's logits into its vote. The guarantee holds for either, so the set is closed."""

    GREEDY = "greedy"
    GUMBEL = "gumbel"


class TokenSettings(Protocol):
    """Settings of how tokens are proposed and what one of them costs at most, under either guarantee."""

    @property
    def decoder(self) -> Decoder:
        """The rule that turns logits into a vote."""
        ...

    @property
    def temperature(self) -> float:
        """Divides the logits of the Gumbel decoder."""
        ...

    @property
    def num_candidates(self) -> int:
        """Size k of the public model's candidate set."""
        ...

    @property
    def reserve_units(self) -> int:
        """The most that one token can cost, in units of the deployment's account."""
        ...


@dataclass(frozen=True)
class DecodingSettings:
    """Settings of how tokens are proposed, voted on and charged.

    Attributes:
        decoder: greedy votes, or samples coupled through shared Gumbel noise.
        step_budget: mutual information to which each release is held, b, in nats; see `check_step_budget`.
        temperature: divides the logits of the Gumbel decoder; positive and finite. Greedy votes do not depend on it.
        num_candidates: size k of the public model's candidate set; at least 1, and at most the vocabulary (checked
            when the engine is known).
        release_mechanism: turns the realised world's vote into a token.
        charging_rule: says what a released token costs at that budget.

    Raises:
        InvalidValueError: a value is outside its range.
    """

    decoder: Decoder
    step_budget: float
    temperature: float = 1.0
    num_candidates: int = 200
    release_mechanism: ReleaseMechanism = DEFAULT_RELEASE
    charging_rule: ChargingRule = DEFAULT_CHARGING_RULE

    def __post_init__(self) -> None:
        if not isinstance(self.decoder, Decoder):
            names = ", ".join(decoder.value for decoder in Decoder)
            raise InvalidValueError(f"decoder must be one of {names}, got {self.decoder!r}")
        if not isinstance(self.release_mechanism, ReleaseMechanism):
            names = ", ".join(mechanism.value for mechanism in ReleaseMechanism)
            raise InvalidValueError(f"release_mechanism must be one of {names}, got {self.release_mechanism!r}")
        Charging(self.step_budget, self.charging_rule)
        _validate.positive_finite("temperature", self.temperature)
        _validate.integer_in_range("num_candidates", self.num_candidates, 1)

    @property
    def charging(self) -> Charging:
        """The cost of a released token."""
        return Charging(self.step_budget, self.charging_rule)

    @property
    def reserve_units(self) -> int:
        """The most that one token can cost, in units of 2^-64 nat."""
        return self.charging.reserve_units


def require_candidates(settings: TokenSettings, vocab_size: int) -> None:
    """Check that the public model can nominate as many tokens as are asked for.

    Raises:
        InvalidValueError: the vocabulary is smaller.
    """
    if settings.num_candidates > vocab_size:
        raise InvalidValueError(
            f"candidates must not exceed the vocabulary size {vocab_size}, got {settings.num_candidates}"
        )


def top_candidates(public_logits_V: Logits, k: int) -> NDArray[np.int64]:
    """The k most likely tokens of the public model, int64[k] in ascending id order.

    Raises:
        InvalidValueError: k is not in [1, V], or the logits are no distribution.
    """
    vocab_size = public_logits_V.shape[0]
    if not 1 <= k <= vocab_size:
        raise InvalidValueError(
            f"the number of candidates must lie between 1 and the vocabulary size {vocab_size}, got {k}"
        )
    if not np.isfinite(public_logits_V.max()):
        raise InvalidValueError("the public model's logits contain NaN or +inf, or are -inf throughout")
    cut = np.partition(public_logits_V, vocab_size - k)[vocab_size - k]
    above = np.flatnonzero(public_logits_V > cut)
    at_the_cut = np.flatnonzero(public_logits_V == cut)[: k - above.size]
    return np.sort(np.concatenate([above, at_the_cut])).astype(np.int64, copy=False)


def greedy_votes(world_logits_MK: Logits, candidates_K: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each world's most likely candidate, int64[M]; the lowest token id among equals.

    Raises:
        InvalidValueError: shapes disagree, or a world's logits are no distribution.
    """
    _require_distributions(world_logits_MK, candidates_K)
    return _winners(world_logits_MK, candidates_K)


def gumbel_votes(
    world_logits_MK: Logits, candidates_K: NDArray[np.int64], coins_K: NDArray[np.float64], temperature: float
) -> NDArray[np.int64]:
    """Each world's sample from its softmax over the candidates, int64[M], coupled by one coin vector for all worlds.

    By the Gumbel-max identity, argmax over c of (logits_c / temperature + U_c) with U_c ~ Gumbel(0, 1) is an exact
    sample of softmax(logits / temperature). Worlds that agree in distribution agree in sample.

    Args:
        world_logits_MK: every world's logits at the candidates.
        candidates_K: token ids.
        coins_K: standard Gumbel variates, one for each candidate.
        temperature: positive and finite.

    Raises:
        InvalidValueError: shapes disagree, the temperature is out of range, or a world's logits are no distribution.
    """
    _validate.positive_finite("temperature", temperature)
    _require_distributions(world_logits_MK, candidates_K)
    if coins_K.shape != candidates_K.shape:
        raise InvalidValueError(f"{candidates_K.size} candidates need as many coins, got shape {coins_K.shape}")
    scores_MK = world_logits_MK.astype(np.float64)
    # Measured from each world's best candidate, a tiny temperature overflows to -inf, never to inf - inf.
    scores_MK -= scores_MK.max(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        scores_MK /= temperature
    scores_MK += coins_K
    return _winners(scores_MK, candidates_K)


def _winners(scores_MK: Logits, candidates_K: NDArray[np.int64]) -> NDArray[np.int64]:
    """The candidate of highest score in each row; the lowest token id among equals, however the columns are ordered."""
    tied_MK = scores_MK == scores_MK.max(axis=1, keepdims=True)
    votes_M: NDArray[np.int64] = np.where(tied_MK, candidates_K, _BEYOND_EVERY_ID).min(axis=1)
    return votes_M


def _require_distributions(world_logits_MK: Logits, candidates_K: NDArray[np.int64]) -> None:
    if world_logits_MK.ndim != 2 or candidates_K.shape != world_logits_MK.shape[1:] or candidates_K.size == 0:
        raise InvalidValueError(
            f"world logits must be [worlds, candidates] with at least one candidate, got shape {world_logits_MK.shape} "
            f"for candidates of shape {candidates_K.shape}"
        )
    # A row's maximum is NaN if any entry is, +inf if any entry is, and -inf only if all entries are.
    unusable = np.flatnonzero(~np.isfinite(world_logits_MK.max(axis=1)))
    if unusable.size:
        raise InvalidValueError(
            f"the logits of world {unusable[0]} contain NaN or +inf, or are -inf throughout; "
            "check its adapter with `reticent worlds verify`"
        )
