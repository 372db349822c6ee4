"""Composition: whole deployments of many queries against one S, and what the curator's own posterior then knows.

A deployment answers `num_queries` queries of `tokens_per_query` charged tokens, each a window of a test text with the
text itself as context. The curator's posterior is the strongest attacker the theorem allows: it has seen the noisy
vectors, not the tokens alone. It calls a record a member of the realised world if more than half of the posterior lies
on worlds that hold it, and names the world of the largest posterior. Ties are decided by a fair coin.

Shape suffixes: N positions, T tokens of a session, R sessions, M worlds, U privacy units.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.evaluation.session_batch import SessionBatch, secret_indices
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success
from reticent.pac.charging import Charging
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.randomness import SeededNoise
from reticent.stats.estimate import Estimate
from reticent.stats.intervals import clopper_pearson
from reticent.stats.means import CONFIDENCE, Mean, TextSpans, sample_mean

_TIE = 1e-12
"""Posterior masses and log-weights that differ by less are ties: their rounding is of this order."""


@dataclass(frozen=True)
class SessionSettings:
    """Settings of a simulated deployment, and the number of simulations.

    Attributes:
        num_queries, tokens_per_query: T is their product.
        num_sessions: R, each with its own S and noise.
        num_streams: number of independent choices of queries that the sessions are split over.
        seed: of secrets, noise and queries.
    """

    num_queries: int = 64
    tokens_per_query: int = 64
    num_sessions: int = 1024
    num_streams: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_queries", "tokens_per_query", "num_sessions"):
            _validate.integer_in_range(name, getattr(self, name), 1)
        _validate.integer_in_range("num_streams", self.num_streams, 1, self.num_sessions)
        _validate.integer_in_range("seed", self.seed, 0)

    @property
    def num_tokens(self) -> int:
        """T, charged tokens of one deployment."""
        return self.num_queries * self.tokens_per_query


@dataclass(frozen=True)
class SessionOutcomes:
    """States of R deployments after T tokens each.

    Attributes:
        step_budget: b, in nats.
        num_tokens: T.
        secrets_R: S of each, int64[R].
        log_weights_RM: each curator's posterior as log-weights, float64[R, M].
        dissent_R: share of the T steps on which worlds differed, float64[R].
    """

    step_budget: float
    num_tokens: int
    secrets_R: NDArray[np.int64]
    log_weights_RM: NDArray[np.float64]
    dissent_R: NDArray[np.float64]

    @property
    def charge_nats(self) -> float:
        """The charge of one deployment, bT, in nats."""
        return Charging(self.step_budget).most_nats(self.num_tokens)

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return int(self.log_weights_RM.shape[1])


class Composition(FiniteModel):
    """Leakage through the curator's posterior after whole deployments, beside the bound and the prior.

    Attributes:
        membership: success in calling records members or not, mean over units and sessions; None without membership.
        world: success in naming the realised world, with its exact (Clopper–Pearson) interval.
        membership_bound, world_bound: the most that any attack may reach for bT nats.
        membership_prior, membership_bound: None without membership: no prior is known.
    """

    decoder: Decoder
    mechanism: ReleaseMechanism
    step_budget: float
    num_tokens: int
    num_sessions: int
    charge_nats: float
    dissent: Mean
    membership: Mean | None
    membership_prior: float | None
    membership_bound: float | None
    world: Estimate
    world_prior: float
    world_bound: float


def simulate_sessions(
    tensor: VoteTensor, decoder: Decoder, mechanism: ReleaseMechanism, step_budget: float, settings: SessionSettings
) -> SessionOutcomes:
    """Run deployments on a vote tensor, many at once.

    Raises:
        InvalidValueError: no text is as long as a query, or the budget is out of range.
    """
    votes = tensor.votes(decoder)
    streams = np.array_split(np.arange(settings.num_sessions), settings.num_streams)
    parts = []
    for stream, sessions in enumerate(streams):
        generator = np.random.default_rng([settings.seed, stream])
        positions_T = query_positions(tensor.spans, settings.num_queries, settings.tokens_per_query, generator)
        noise = SeededNoise(int(generator.integers(2**62)))
        secrets_R = secret_indices(len(sessions), tensor.num_worlds, noise)
        batch = SessionBatch(mechanism_for(mechanism, step_budget), secrets_R, tensor.num_worlds, noise)
        dissenting_T = positions_T[votes.dissent[positions_T]]
        for position in dissenting_T:
            batch.release(votes.worlds_NM[position].astype(np.int64))
        share = np.full(len(sessions), dissenting_T.size / positions_T.size)
        parts.append(SessionOutcomes(step_budget, settings.num_tokens, secrets_R, batch.log_weights, share))
    return join_outcomes(parts)


def join_outcomes(parts: Sequence[SessionOutcomes]) -> SessionOutcomes:
    """The sessions of several outcomes of the same budget and length."""
    if len({(part.step_budget, part.num_tokens) for part in parts}) != 1:
        raise InvalidValueError("sessions of different budgets or lengths cannot be joined")
    return SessionOutcomes(
        parts[0].step_budget,
        parts[0].num_tokens,
        np.concatenate([part.secrets_R for part in parts]),
        np.concatenate([part.log_weights_RM for part in parts]),
        np.concatenate([part.dissent_R for part in parts]),
    )


def query_positions(
    spans: TextSpans, num_queries: int, tokens_per_query: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """The positions of a session's tokens, query after query, int64[T].

    Each query is a window at a random place of a random text; no text comes again before all long enough had their
    turn.

    Raises:
        InvalidValueError: no text is long enough.
    """
    lengths = np.diff(spans.offsets)
    usable = np.flatnonzero(lengths >= tokens_per_query)
    if not usable.size:
        raise InvalidValueError(
            f"no test text has the {tokens_per_query} positions of a query, the longest has {lengths.max()}; "
            "use longer texts or fewer tokens a query"
        )
    rounds = [generator.permutation(usable) for _ in range(-(-num_queries // usable.size))]
    texts = np.concatenate(rounds)[:num_queries]
    starts = spans.offsets[texts] + generator.integers(lengths[texts] - tokens_per_query + 1)
    positions: NDArray[np.int64] = (starts[:, None] + np.arange(tokens_per_query)).ravel()
    return positions


def composition(
    outcomes: SessionOutcomes,
    decoder: Decoder,
    mechanism: ReleaseMechanism,
    members_UM: NDArray[np.bool_] | None,
    seed: int = 0,
) -> Composition:
    """Measure what the posteriors give away.

    Args:
        outcomes: of the sessions.
        decoder: how worlds voted.
        mechanism: how tokens were released.
        members_UM: which unit is in which world, or None where it is not known.
        seed: of the coins that decide ties between worlds.
    """
    num_sessions, num_worlds = outcomes.log_weights_RM.shape
    membership = None if members_UM is None else sample_mean(measured_half_success(outcomes, members_UM))
    named = int(is_world_named(outcomes, np.random.default_rng(seed)).sum())
    low, high = clopper_pearson(named, num_sessions, CONFIDENCE)
    charge = outcomes.charge_nats
    return Composition(
        decoder=decoder,
        mechanism=mechanism,
        step_budget=outcomes.step_budget,
        num_tokens=outcomes.num_tokens,
        num_sessions=num_sessions,
        charge_nats=charge,
        dissent=sample_mean(outcomes.dissent_R),
        membership=membership,
        membership_prior=None if members_UM is None else MEMBERSHIP_PRIOR,
        membership_bound=None if members_UM is None else attack_success(charge, MEMBERSHIP_PRIOR),
        world=Estimate(value=named / num_sessions, low=low, high=high, confidence=CONFIDENCE),
        world_prior=1.0 / num_worlds,
        world_bound=attack_success(charge, 1.0 / num_worlds),
    )


def measured_half_success(outcomes: SessionOutcomes, members_UM: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Share of units on whose membership each session's posterior decides rightly, float64[R]; a tie counts one half.

    Raises:
        InvalidValueError: the membership is of another number of worlds.
    """
    if members_UM.ndim != 2 or members_UM.shape[1] != outcomes.num_worlds:
        raise InvalidValueError(
            f"the membership must have a column for each of {outcomes.num_worlds} worlds, got shape {members_UM.shape}"
        )
    lean_RU = np.exp(outcomes.log_weights_RM) @ members_UM.T.astype(np.float64) - 0.5
    right_RU = np.where(np.abs(lean_RU) <= _TIE, 0.5, (lean_RU > 0.0) == members_UM.T[outcomes.secrets_R])
    success: NDArray[np.float64] = right_RU.mean(axis=1)
    return success


def is_world_named(outcomes: SessionOutcomes, generator: np.random.Generator) -> NDArray[np.bool_]:
    """True if the world of the largest posterior is the realised one, bool[R]; ties are drawn."""
    weights_RM = outcomes.log_weights_RM
    tied_RM = weights_RM >= weights_RM.max(axis=1, keepdims=True) - _TIE
    guess_R = np.where(tied_RM, generator.random(weights_RM.shape), -1.0).argmax(axis=1)
    named: NDArray[np.bool_] = guess_R == outcomes.secrets_R
    return named
