"""One decode step over all answers in the batch: votes, one release, tokens.

What is guaranteed. All votes of a step are fixed before any of its tokens is seen. Releases follow the order of the
jobs, with one commit; where that fails, no token of the step leaves. Whether votes are cast at all is read from the
account and from keys' quotas, which are public; nothing here sees the realised world.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from reticent.decoding.generate import cast_votes
from reticent.decoding.speculative import public_vote
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError, ReticentError
from reticent.pac.curator import Ballot, Curator
from reticent.protocols import C, Ensemble
from reticent.server.jobs import FinishReason, Job, TokenSource, WrittenToken

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


def decode_step(ensemble: Ensemble[C], curator: Curator, jobs: Sequence[Job[C]], public_fallback: bool) -> Step[C]:
    """Find the next token of every job; a job that was cancelled meanwhile gets neither a token nor a charge."""
    step: Step[C] = Step()
    account = curator.account
    affordable = [job for job in jobs if account.can_afford(job.settings.charging.reserve_units)]
    votes = _cast_all(ensemble, affordable, step)
    refused = [job for job in jobs if job not in affordable]
    refused += _release_all(curator, votes, step)
    for job in refused:
        if public_fallback:
            _continue_in_public(ensemble, job, step)
        else:
            step.ended.append((job, FinishReason.BUDGET))
    return step


def _cast_all(ensemble: Ensemble[C], jobs: Sequence[Job[C]], step: Step[C]) -> list[tuple[Job[C], Ballot]]:
    """The ballots of all jobs whose key may have another token, one token taken from its allowance."""
    cast: list[tuple[Job[C], Ballot]] = []
    for job in jobs:
        if not job.allowance.take():
            step.ended.append((job, FinishReason.QUOTA))
            continue
        try:
            votes_M = cast_votes(ensemble, job.open_context, job.settings, job.coins, job.step)
        except Exception:
            logger.exception("votes could not be cast", extra=job.log_fields)
            job.allowance.put_back()
            step.ended.append((job, FinishReason.FAULT))
            continue
        settings = job.settings
        coin_key = None if settings.decoder is Decoder.GREEDY else job.coins.key
        ballot = Ballot(
            votes_M, settings.charging, job.request, job.step, coin_key, job.key_id, settings.release_mechanism
        )
        cast.append((job, ballot))
    gone = {job for job, _ in cast if job.cancelled}
    for job in gone:
        job.allowance.put_back()
    return [(job, ballot) for job, ballot in cast if job not in gone]


def _release_all(curator: Curator, votes: Sequence[tuple[Job[C], Ballot]], step: Step[C]) -> list[Job[C]]:
    """Release the ballots with one commit; return the jobs that the budget does not cover."""
    if not votes:
        return []
    try:
        released = curator.release_many([ballot for _, ballot in votes])
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
            job.allowance.charge(token.charge_units)
            step.tokens.append((job, WrittenToken(token.token, TokenSource.PRIVATE, token.charge_units)))
            step.num_dissenting += token.num_active > 1
    return refused


def _continue_in_public(ensemble: Ensemble[C], job: Job[C], step: Step[C]) -> None:
    """Let the public model choose a job's next token from its own candidates, with the job's coins; nothing private."""
    try:
        token = public_vote(ensemble.public_logits(job.open_context), job.settings, job.coins, job.step)
    except Exception:
        logger.exception("the public model gave no token", extra=job.log_fields)
        step.ended.append((job, FinishReason.FAULT))
        return
    step.tokens.append((job, WrittenToken(token, TokenSource.PUBLIC)))
