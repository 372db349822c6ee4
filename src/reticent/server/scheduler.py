"""The engine thread: continuous batching of answers over one engine and one curator.

Contract. One thread computes and releases; it alone touches the curator. Each step it casts the votes of every
answer whose prefill is complete, releases them in the order of admission with one commit, delivers the tokens, and
extends the contexts of the unfinished answers. All votes of a step are fixed before any of its tokens is seen, and no
token is delivered before its charge is durable. Prefill is chunked: between two steps the thread runs one chunk of one
prompt, so that a long prompt delays the other answers but does not stop them. Keys take turns, each with one prompt
in prefill at a time.

Places in the batch are shared among the API keys that want any. Where a key waits that has fewer than its share, an
answer of the key that has the most is suspended between two steps: its place and caches are freed, it is queued at the
head of its key's line, and its prompt and tokens so far are prefilled again when it is readmitted. So there are never
more contexts than places. A suspended answer loses no token and is charged for none twice.

The work, its order and its amount are a function of requests, limits, released tokens and the account: never of
the realised world.

| case | what happens |
|---|---|
| the budget does not cover an answer's next token | it ends with `BUDGET`, or the public model continues it |
| the key's quota is used up | the answer ends with `QUOTA` |
| the ledger cannot be written | every answer in the batch ends with `STORAGE`; the next ones try again |
| prefill, votes or delivery of a token fail | that answer ends with `FAULT`, the others continue |
| contexts cannot be extended | every unfinished answer of the step ends with `FAULT` |
| an answer is cancelled | it leaves before the next step, or at once while it waits; released tokens stay charged |
| a suspended answer cannot be prefilled again | that answer ends with `FAULT`; its tokens stay charged |
| the line of a key is full | further requests of the key are refused whole; other keys are not affected |
| the server stops | no new answers; those in progress or suspended are finished, or end with `SHUTDOWN` at a deadline |
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from reticent.decoding.engines import C, VoteEngine
from reticent.decoding.speculative import Continuation, extend_with_drafts
from reticent.server.fair_queue import FairQueue, QueueFullError, select_suspension
from reticent.server.jobs import FinishReason, Job, WrittenToken
from reticent.server.releasing import AnyCurator
from reticent.server.stepping import Step, decode_step

logger = logging.getLogger("reticent.server")


class Observer(Protocol):
    """An observer of the engine. Called on the engine's thread; must return at once."""

    def count_prefill(self, seconds: float) -> None:
        """Count one complete prefill."""
        ...

    def count_step(self, seconds: float, step: Step[Any]) -> None:
        """Count one decode step."""
        ...


class ClosingError(Exception):
    """The server is stopping."""


@dataclass
class _Prefill(Generic[C]):
    """The prefill in progress of one answer: its remaining chunks, and the number of chunks and seconds so far."""

    job: Job[C]
    chunks: Generator[None, None, C]
    num_chunks: int = 0
    seconds: float = 0.0


class Batcher(Generic[C]):
    """Runs jobs on a thread of its own.

    Args:
        engine: the public model and all worlds.
        curator: of the deployment; used on the engine thread only, except for its immutable account.
        observer: called at every prefill and step.
        max_concurrent: answers in the batch.
        max_queue: answers of one key that may wait.
        public_fallback: True to continue answers from the public model once the budget is spent.
    """

    def __init__(
        self,
        engine: VoteEngine[C],
        curator: AnyCurator,
        observer: Observer,
        *,
        max_concurrent: int,
        max_queue: int,
        public_fallback: bool = False,
    ) -> None:
        self._engine = engine
        self._curator = curator
        self._observer = observer
        self._max_concurrent = max_concurrent
        self._max_queue = max_queue
        self._public_fallback = public_fallback
        self._waiting: FairQueue[Job[C]] = FairQueue()
        self._active: list[Job[C]] = []
        self._prefills: list[_Prefill[C]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._deadline = float("inf")
        self._commit_failed = False
        self._thread = threading.Thread(target=self._run, name="reticent-engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job[C]]) -> None:
        """Queue all jobs of a request, which are of one key, or none.

        Raises:
            QueueFullError: the line of their key has no room for all of them.
            ClosingError: the server is stopping.
        """
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise ClosingError
            free = max(0, self._max_concurrent - len(self._active))
            if self._waiting.length_of(jobs[0].key_id) + len(jobs) > self._max_queue + free:
                raise QueueFullError
            for job in jobs:
                self._waiting.push(job)
            self._changed.notify()

    def cancel(self, job: Job[C]) -> None:
        """Cancel a job; of no effect once it has ended."""
        with self._changed:
            job.cancelled = True
            was_waiting = self._waiting.remove(job)
        if was_waiting:
            job.sink.end(FinishReason.CANCELLED)

    def close(self, drain_seconds: float) -> None:
        """Refuse further jobs, finish those in progress within `drain_seconds`, and end the thread."""
        self.begin_closing(drain_seconds)
        if self._thread.is_alive():
            self._thread.join()

    def begin_closing(self, drain_seconds: float) -> None:
        """Start `close` without waiting for the thread; a later call can only bring the deadline forward."""
        with self._changed:
            self._closing = True
            self._deadline = min(self._deadline, time.monotonic() + drain_seconds)
            self._changed.notify()

    @property
    def num_active(self) -> int:
        """Answers in the batch."""
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        """Answers that wait."""
        return len(self._waiting)

    @property
    def is_running(self) -> bool:
        """True if jobs are taken."""
        return self._thread.is_alive() and not self._closing

    @property
    def is_alive(self) -> bool:
        """True if the thread runs, even if only to finish answers in progress."""
        return self._thread.is_alive()

    @property
    def has_stopped(self) -> bool:
        """True if every answer has ended and the thread with them."""
        return self._closing and not self._thread.is_alive()

    @property
    def commit_failed(self) -> bool:
        """True if the last attempt to write the ledger failed."""
        return self._commit_failed

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._drop_cancelled()
                self._admit()
                self._prefill_chunk()
                if ready := [job for job in self._active if job.context is not None]:
                    self._step(ready)
        finally:
            with self._changed:
                self._closing = True
                left = [*self._active, *self._waiting.drain()]
                self._active.clear()
            for job in left:
                _deliver_end(job, FinishReason.SHUTDOWN)

    def _wait_for_work(self) -> bool:
        """Sleep until there is work; return False when the thread should end."""
        with self._changed:
            while not self._active and not len(self._waiting):
                if self._closing:
                    return False
                self._changed.wait()
            return time.monotonic() < self._deadline

    def _end(self, job: Job[C], ending: FinishReason) -> None:
        with self._changed:
            self._active.remove(job)
        self._prefills = [prefill for prefill in self._prefills if prefill.job is not job]
        job.context = None
        _deliver_end(job, ending)

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._active if job.cancelled]:
            self._end(job, FinishReason.CANCELLED)

    def _admit(self) -> None:
        """Admit the next answer if a place is free or can be freed, and start its prefill."""
        with self._changed:
            places = Counter(job.key_id for job in self._active)
            try:
                key_id = self._waiting.next_key(places, {prefill.job.key_id for prefill in self._prefills})
            except IndexError:
                return
            if len(self._active) >= self._max_concurrent:
                if (suspended := select_suspension(self._active, key_id)) is None:
                    return
                self._suspend(suspended)
            job = self._waiting.pop(key_id)
            self._active.append(job)
        if job.admitted is None:
            job.admitted = time.perf_counter()
        self._prefills.append(_Prefill(job, self._engine.prefill_in_chunks([*job.prompt, *job.written])))

    def _suspend(self, job: Job[C]) -> None:
        """Remove an answer from the batch and queue it for another prefill; the caller holds the lock."""
        self._active.remove(job)
        job.context, job.steps_since_prefill = None, 0
        self._waiting.push_first(job)

    def _prefill_chunk(self) -> None:
        """Run one chunk of one prefill; keys take turns."""
        if not self._prefills:
            return
        prefill = self._prefills.pop(0)
        started = time.perf_counter()
        try:
            next(prefill.chunks)
        except StopIteration as end:
            prefill.job.context, prefill.job.num_chunks = end.value, prefill.num_chunks + 1
            self._observer.count_prefill(prefill.seconds + time.perf_counter() - started)
        except Exception:
            logger.exception("a prompt could not be read", extra=prefill.job.log_fields)
            self._end(prefill.job, FinishReason.FAULT)
        else:
            prefill.num_chunks += 1
            prefill.seconds += time.perf_counter() - started
            self._prefills.append(prefill)

    def _step(self, jobs: Sequence[Job[C]]) -> None:
        started = time.perf_counter()
        step = decode_step(self._engine, self._curator, jobs, self._public_fallback)
        continuing = [(job, written.token) for job, written in step.tokens if self._deliver(job, written)]
        for job, ending in step.ended:
            self._end(job, ending)
        if continuing:
            self._extend(continuing)
        if step.commit_failed is not None:
            self._commit_failed = step.commit_failed
        self._observer.count_step(time.perf_counter() - started, step)

    def _deliver(self, job: Job[C], written: WrittenToken) -> bool:
        """Deliver a token to its answer; return True if the answer needs another."""
        job.written.append(written.token)
        job.steps_since_prefill += 1
        is_stop = written.token in job.stop_tokens
        try:
            wants_more = job.sink.push(written, is_stop)
        except Exception as error:  # noqa: BLE001 - the kind alone is logged: the rest could quote the answer
            _log_kind("a token could not be delivered", job, error)
            self._end(job, FinishReason.FAULT)
            return False
        if is_stop or not wants_more:
            self._end(job, FinishReason.STOP)
        elif job.step >= job.max_tokens:
            self._end(job, FinishReason.LENGTH)
        elif job.cancelled:
            self._end(job, FinishReason.CANCELLED)
        else:
            return True
        return False

    def _extend(self, continuing: Sequence[tuple[Job[C], int]]) -> None:
        continuations = [
            Continuation(token, job.vote_request, job.max_tokens - job.step, job.draft_length)
            for job, token in continuing
        ]
        try:
            extend_with_drafts(self._engine, [job.open_context for job, _ in continuing], continuations)
        except Exception:
            logger.exception(
                "contexts could not be extended",
                extra={"request_ids": sorted({job.request_id for job, _ in continuing})},
            )
            for job, _ in continuing:
                self._end(job, FinishReason.FAULT)


def _deliver_end(job: Job[Any], ending: FinishReason) -> None:
    try:
        job.sink.end(ending)
    except Exception as error:  # noqa: BLE001 - as above
        _log_kind("an answer's end could not be delivered", job, error)


def _log_kind(what: str, job: Job[Any], error: Exception) -> None:
    logger.error("%s (%s)", what, type(error).__name__, extra=job.log_fields)
