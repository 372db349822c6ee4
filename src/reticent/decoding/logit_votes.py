"""Votes from logits: the part of an engine that is the same for every one that computes logits itself.

The public model fixes the candidates first; the coins of a step belong to its candidates in ascending id order, so a
third party with the coin key and the same logits can cast every vote again.

Shape suffixes: M worlds, K candidates, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reticent.decoding.engines import VoteRequest
from reticent.decoding.votes import Decoder, Logits, TokenSettings, greedy_votes, gumbel_votes, top_candidates
from reticent.dp.release import Aggregate, CorpusSettings, integer_votes, public_log_probabilities
from reticent.randomness import PublicCoins

T = TypeVar("T")
ContextT = TypeVar("ContextT", contravariant=True)


class LogitSource(Protocol[ContextT]):
    """A source of next-token logits, float32, on the host."""

    def public_logits(self, context: ContextT) -> NDArray[np.float32]:
        """The public model's next-token logits, float32[V]."""
        ...

    def world_logits(self, context: ContextT, candidates_K: NDArray[np.int64]) -> NDArray[np.float32]:
        """Every world's next-token logits at the candidates, float32[M, K]."""
        ...


def cast_votes(
    source: LogitSource[ContextT], context: ContextT, settings: TokenSettings, coins: PublicCoins, step: int
) -> NDArray[np.int64]:
    """Cast every world's vote for the token after `context`, int64[M].

    Raises:
        InvalidValueError: the public model or a world gives no distribution.
    """
    candidates_K = top_candidates(source.public_logits(context), settings.num_candidates)
    return _votes(source.world_logits(context, candidates_K), candidates_K, VoteRequest(settings, coins, step))


def public_vote(public_logits_V: Logits, request: VoteRequest) -> int:
    """Cast the public model's own vote, from its own candidates and with the request's coins.

    Raises:
        InvalidValueError: the logits are no distribution.
    """
    candidates_K = top_candidates(public_logits_V, request.settings.num_candidates)
    return int(_votes(public_logits_V[candidates_K][None], candidates_K, request)[0])


def votes_from_logits(
    source: LogitSource[ContextT], contexts: Sequence[ContextT], requests: Sequence[VoteRequest]
) -> list[NDArray[np.int64] | Exception]:
    """Cast the votes of a step, context by context; see `VoteEngine.votes`."""
    return [
        _or_error(lambda context=context, to=to: cast_votes(source, context, to.settings, to.coins, to.step))  # type: ignore[misc]
        for context, to in zip(contexts, requests, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class IntegerVotes:
    """Candidates for a token, and every world's integer votes on them.

    Attributes:
        candidates_K: token ids, int64[K].
        public_logp_K: the public model's log-probabilities over them alone, float64[K].
        votes_MK: int64[M, K]. Private.
    """

    candidates_K: NDArray[np.int64]
    public_logp_K: NDArray[np.float64]
    votes_MK: NDArray[np.int64] = field(repr=False)


def cast_integer_votes(
    source: LogitSource[ContextT], context: ContextT, num_candidates: int, clip: float, occupied_M: NDArray[np.bool_]
) -> IntegerVotes:
    """Cast every world's integer votes for the token after `context`. No value of a world raises.

    Raises:
        InvalidValueError: the public model gives no distribution.
    """
    public_logits_V = source.public_logits(context)
    candidates_K = top_candidates(public_logits_V, num_candidates)
    public_logp_K = public_log_probabilities(public_logits_V[candidates_K])
    votes_MK = integer_votes(public_logp_K, source.world_logits(context, candidates_K), occupied_M, clip)
    return IntegerVotes(candidates_K, public_logp_K, votes_MK)


def add_up_votes(
    source: LogitSource[ContextT], context: ContextT, settings: CorpusSettings, occupied_M: NDArray[np.bool_]
) -> Aggregate:
    """Add up the worlds' integer votes for the token after `context`. No value of a world raises.

    Raises:
        InvalidValueError: the public model gives no distribution.
    """
    cast = cast_integer_votes(source, context, settings.num_candidates, settings.clip, occupied_M)
    return Aggregate(cast.candidates_K, cast.public_logp_K, cast.votes_MK.sum(axis=0))


def aggregates_from_logits(
    source: LogitSource[ContextT],
    contexts: Sequence[ContextT],
    settings: CorpusSettings,
    occupied_M: NDArray[np.bool_],
) -> list[Aggregate | Exception]:
    """Add up the votes of a step, context by context; see `AggregateEngine.aggregates`."""
    return [
        _or_error(lambda context=context: add_up_votes(source, context, settings, occupied_M))  # type: ignore[misc]
        for context in contexts
    ]


def public_votes_from_logits(
    source: LogitSource[ContextT], contexts: Sequence[ContextT], requests: Sequence[VoteRequest]
) -> list[int | Exception]:
    """Cast the public model's votes of a step, context by context; see `VoteEngine.public_votes`."""
    return [
        _or_error(lambda context=context, to=to: public_vote(source.public_logits(context), to))  # type: ignore[misc]
        for context, to in zip(contexts, requests, strict=True)
    ]


def _votes(logits_MK: Logits, candidates_K: NDArray[np.int64], request: VoteRequest) -> NDArray[np.int64]:
    if request.settings.decoder is Decoder.GREEDY:
        return greedy_votes(logits_MK, candidates_K)
    coins_K = request.coins.gumbel(request.step, candidates_K.size)
    return gumbel_votes(logits_MK, candidates_K, coins_K, request.settings.temperature)


def _or_error(compute: Callable[[], T]) -> T | Exception:
    try:
        return compute()
    except Exception as error:  # noqa: BLE001 - the error of one context; the caller says whose it is
        return error
