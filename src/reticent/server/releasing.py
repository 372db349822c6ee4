"""Ballots for answers, and tokens for ballots, under either guarantee: the one place where a server tells them apart.

Contract. Ballots of a step are fixed before any of its tokens is seen. What a caster gives in place of a ballot follows
from public things alone, but for votes of a realised-world deployment that could not be cast at all. Both curators
commit the charges of a step before a token of it leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from reticent.decoding.aggregates import AggregateEngine, aggregate_step
from reticent.decoding.engines import C, VoteEngine, cast_step
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.dp.curator import CorpusBallot, CorpusCurator
from reticent.pac.curator import Ballot, Curator
from reticent.server.jobs import Job

AnyCurator = Curator | CorpusCurator
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Released:
    """A released token.

    Attributes:
        token: its id.
        reserve_units: the most that it could cost, in units of the deployment's account.
        is_dissenting: whether the worlds' votes differed; always False where that is not counted.
    """

    token: int
    reserve_units: int
    is_dissenting: bool = False


class Releaser(Protocol[B]):
    """Casts ballots and releases tokens for the answers of a step."""

    def cast(self, engine: VoteEngine[C], jobs: Sequence[Job[C]]) -> Sequence[B | Exception]:
        """Cast the ballot of each answer, or say why there is none; never raises."""
        ...

    def release_many(self, ballots: Sequence[B]) -> list[Released | None]:
        """Release a token for each ballot with one commit; None for those that the budget does not cover."""
        ...


class RealisedWorldReleaser:
    """Releases votes of the realised world.

    Args:
        curator: of the deployment.
    """

    def __init__(self, curator: Curator) -> None:
        self._curator = curator

    def cast(self, engine: VoteEngine[C], jobs: Sequence[Job[C]]) -> list[Ballot | Exception]:
        """Cast the ballot of each answer, or say why there is none; never raises."""
        found = cast_step(engine, [job.open_context for job in jobs], [job.vote_request for job in jobs])
        return [
            votes_M if isinstance(votes_M, Exception) else _ballot(votes_M, job)
            for job, votes_M in zip(jobs, found, strict=True)
        ]

    def release_many(self, ballots: Sequence[Ballot]) -> list[Released | None]:
        """Release a token for each ballot with one commit; None for those that the budget does not cover."""
        return [
            None if each is None else Released(each.token, each.reserve_units, each.num_active > 1)
            for each in self._curator.release_many(ballots)
        ]


class CorpusReleaser:
    """Draws tokens from what all worlds say together.

    Args:
        curator: of the deployment.
    """

    def __init__(self, curator: CorpusCurator) -> None:
        self._curator = curator

    def cast(self, engine: VoteEngine[C], jobs: Sequence[Job[C]]) -> list[CorpusBallot | Exception]:
        """Cast the ballot of each answer, or say why there is none; never raises."""
        # A service of a corpus deployment is assembled with an engine that aggregates.
        aggregating = cast(AggregateEngine[C], engine)
        found = aggregate_step(aggregating, [job.open_context for job in jobs], self._curator.settings)
        return [
            each
            if isinstance(each, Exception)
            else CorpusBallot(each, job.answer_id, job.step, job.key_id, job.settings.temperature)
            for job, each in zip(jobs, found, strict=True)
        ]

    def release_many(self, ballots: Sequence[CorpusBallot]) -> list[Released | None]:
        """Release a token for each ballot with one commit; None for those that the budget does not cover."""
        return [
            None if each is None else Released(each.token, each.charge_units)
            for each in self._curator.release_many(ballots)
        ]


def releaser_of(curator: AnyCurator) -> Releaser[Any]:
    """Return the releaser for a deployment's curator."""
    return CorpusReleaser(curator) if isinstance(curator, CorpusCurator) else RealisedWorldReleaser(curator)


def num_worlds_of(curator: AnyCurator) -> int:
    """Return m, which is public."""
    return curator.settings.num_worlds if isinstance(curator, CorpusCurator) else curator.num_worlds


def _ballot(votes_M: Any, job: Job[Any]) -> Ballot:
    settings = job.settings
    assert isinstance(settings, DecodingSettings), "an answer of a realised-world deployment has a step budget"
    coin_key = None if settings.decoder is Decoder.GREEDY else job.coins.key
    return Ballot(votes_M, settings.charging, job.answer_id, job.step, coin_key, job.key_id, settings.release_mechanism)
