"""One decode step over all answers in the batch: votes, one release, tokens.

What is guaranteed. All votes of a step are fixed before any of its tokens is seen. Releases follow the order of the
jobs, with one commit; where that fails, no token of the step leaves. Whether votes are cast at all is read from the
account and from keys' quotas, which are public; nothing here sees the realised world.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from reticent.decoding.engines import C, VoteEngine, cast_public_step
from reticent.errors import InvalidValueError, ReticentError
from reticent.server.jobs import FinishReason, Job, TokenSource, WrittenToken
from reticent.server.releasing import AnyCurator, B, Releaser, releaser_of

logger = logging.getLogger("reticent.server")


@dataclass
class Step(Generic[C]):
    """The outcome of a step.

    Attributes:
        tokens: the jobs that have a token, in order, each with it.
        ended: the jobs that get no further token, and why.
        num_dissenting: released tokens on which the worlds' votes differed.
        commit_failed: whether the ledger could not be written; None where nothing was to be written.
    """

    tokens: list[tuple[Job[C], WrittenToken]] = field(default_factory=list)
    ended: list[tuple[Job[C], FinishReason]] = field(default_factory=list)
    num_dissenting: int = 0
    commit_failed: bool | None = None


def decode_step(engine: VoteEngine[C], curator: AnyCurator, jobs: Sequence[Job[C]], public_fallback: bool) -> Step[C]:
    """Find the next token of every job; a job that was cancelled meanwhile gets neither a token nor a charge."""
    step: Step[C] = Step()
    account, releaser = curator.account, releaser_of(curator)
    affordable = [job for job in jobs if account.can_afford(job.settings.reserve_units)]
    votes = _cast_all(engine, releaser, affordable, step)
    refused = [job for job in jobs if job not in affordable]
    refused += _release_all(releaser, votes, step)
    if public_fallback:
        _continue_in_public(engine, refused, step)
    else:
        step.ended += [(job, FinishReason.BUDGET) for job in refused]
    return step


def _cast_all(
    engine: VoteEngine[C], releaser: Releaser[B], jobs: Sequence[Job[C]], step: Step[C]
) -> list[tuple[Job[C], B]]:
    """The ballots of all jobs whose key may have another token, one token taken from its allowance."""
    votes: list[tuple[Job[C], B]] = []
    for job, ballot in zip(jobs, releaser.cast(engine, jobs), strict=True):
        if isinstance(ballot, Exception):
            logger.error("votes could not be cast", exc_info=ballot, extra=job.log_fields)
            step.ended.append((job, FinishReason.FAULT))
        elif job.cancelled:
            continue
        elif not job.allowance.take():
            step.ended.append((job, FinishReason.QUOTA))
        else:
            votes.append((job, ballot))
    return votes


def _release_all(releaser: Releaser[B], votes: Sequence[tuple[Job[C], B]], step: Step[C]) -> list[Job[C]]:
    """Release the ballots with one commit; return the jobs that the budget does not cover."""
    if not votes:
        return []
    try:
        released = releaser.release_many([ballot for _, ballot in votes])
    except Exception as error:
        step.commit_failed = not isinstance(error, InvalidValueError)
        # What we raise ourselves is a state of affairs; anything else is a defect and its traceback is wanted.
        logger.error(
            "nothing was released: %s",
            error,
            exc_info=not isinstance(error, ReticentError),
            extra={"request_ids": sorted({job.request_id for job, _ in votes})},
        )
        for job, _ in votes:
            job.allowance.put_back()
            step.ended.append((job, FinishReason.STORAGE if step.commit_failed else FinishReason.FAULT))
        return []
    step.commit_failed = False
    refused = []
    for (job, _), token in zip(votes, released, strict=True):
        if token is None:
            job.allowance.put_back()
            refused.append(job)
        else:
            job.allowance.charge(token.reserve_units)
            step.tokens.append((job, WrittenToken(token.token, TokenSource.PRIVATE, token.reserve_units)))
            step.num_dissenting += token.is_dissenting
    return refused


def _continue_in_public(engine: VoteEngine[C], jobs: Sequence[Job[C]], step: Step[C]) -> None:
    """Let the public model choose the jobs' next tokens from its own candidates, with their coins; nothing private."""
    found = cast_public_step(engine, [job.open_context for job in jobs], [job.vote_request for job in jobs])
    for job, token in zip(jobs, found, strict=True):
        if isinstance(token, Exception):
            logger.error("the public model gave no token", exc_info=token, extra=job.log_fields)
            step.ended.append((job, FinishReason.FAULT))
        else:
            step.tokens.append((job, WrittenToken(token, TokenSource.PUBLIC)))
