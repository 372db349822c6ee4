"""The answers to one request: tokens on the engine's thread become events on the event loop."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from reticent.decoding.aggregates import CorpusDecoding
from reticent.decoding.speculative import DraftLength
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.ledger.api_keys import ApiKey
from reticent.randomness import PublicCoins
from reticent.server import errors
from reticent.server.admission import Admission
from reticent.server.errors import ApiError
from reticent.server.fair_queue import QueueFullError
from reticent.server.jobs import FinishReason, Job, TokenSource, WrittenToken
from reticent.server.metering import KeyMeter
from reticent.server.request_trace import current_trace
from reticent.server.scheduler import ClosingError
from reticent.server.service import Service
from reticent.server.streaming import AnswerText

logger = logging.getLogger("reticent.server")

_ERRORS: dict[FinishReason, Callable[[], ApiError]] = {
    FinishReason.BUDGET: errors.budget_exhausted,
    FinishReason.QUOTA: errors.quota_exhausted,
    FinishReason.KEY_ENDED: errors.key_ended,
    FinishReason.STORAGE: errors.storage_failed,
    FinishReason.SHUTDOWN: errors.shutting_down,
    FinishReason.CANCELLED: errors.client_left,
    FinishReason.FAULT: errors.internal_error,
}
CUT_SHORT = (FinishReason.BUDGET, FinishReason.QUOTA)
"""Endings that leave the tokens written so far as an answer."""


def error_of(ending: FinishReason) -> ApiError | None:
    """Make the client's error for a finish reason; None where the answer is whole."""
    make = _ERRORS.get(ending)
    return None if make is None else make()


@dataclass(frozen=True)
class Piece:
    """Text of answer `index` that may be shown."""

    index: int
    text: str
    source: TokenSource


@dataclass(frozen=True)
class Finished:
    """The end of answer `index`: the rest of its text, the whole of it, why it ended, tokens and most cost."""

    index: int
    rest: str
    text: str
    ending: FinishReason
    num_private: int
    num_public: int
    reserve_units: int

    @property
    def num_tokens(self) -> int:
        """Tokens of both sources."""
        return self.num_private + self.num_public


Event = Piece | Finished


class ChoiceSink:
    """Takes one answer's tokens on the engine's thread and posts events; implements `jobs.Sink`."""

    def __init__(self, index: int, request_id: str, text: AnswerText, post: Callable[[Event], None]) -> None:
        self._index = index
        self._request_id = request_id
        self._text = text
        self._post = post
        self._shown: list[str] = []
        self._counts = dict.fromkeys(TokenSource, 0)
        self._reserve_units = 0
        self.first_token_at: float | None = None
        self.ended_at: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens so far, of both sources."""
        return sum(self._counts.values())

    def push(self, written: WrittenToken, is_stop_token: bool) -> bool:
        """Take a token; a stop token has no text."""
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()
        self._counts[written.source] += 1
        self._reserve_units += written.reserve_units
        piece = "" if is_stop_token else self._text.push(written.token)
        if piece:
            self._shown.append(piece)
            self._post(Piece(self._index, piece, written.source))
        return not self._text.is_stopped

    def end(self, ending: FinishReason) -> None:
        """Take the end."""
        self.ended_at = time.perf_counter()
        try:
            rest = self._text.finish()
        except Exception as error:  # noqa: BLE001 - the kind alone is logged: the rest could quote the answer
            logger.error(
                "an answer's last text could not be decoded (%s)",
                type(error).__name__,
                extra={"request_id": self._request_id},
            )
            rest, ending = "", FinishReason.FAULT
        if ending is FinishReason.LENGTH and self._text.is_stopped:
            ending = FinishReason.STOP
        private, public = self._counts[TokenSource.PRIVATE], self._counts[TokenSource.PUBLIC]
        text = "".join([*self._shown, rest])
        self._post(Finished(self._index, rest, text, ending, private, public, self._reserve_units))


@dataclass(frozen=True)
class GenerationRequest:
    """A request in tokens.

    Attributes:
        answer_id: names the request's answers in the response, the ledger and the log; public.
        admission: the admitted key, and the tokens reserved from its rate.
        prompts: one or several.
        num_choices: answers for each prompt.
        max_tokens: largest number of tokens in an answer, for each prompt.
    """

    answer_id: str
    admission: Admission
    prompts: Sequence[list[int]]
    num_choices: int
    max_tokens: Sequence[int]
    settings: DecodingSettings | CorpusDecoding
    stops: Sequence[str]
    seed: int | None

    @property
    def key(self) -> ApiKey | None:
        """The asking key, or None."""
        return self.admission.key


def decoding_for(service: Service, temperature: float | None) -> DecodingSettings | CorpusDecoding:
    """The server's settings at a request's temperature; 0 means greedy votes where those protect.

    Raises:
        ApiError: the server decodes greedily only, or never.
    """
    decoding = service.settings.decoding
    if temperature is None:
        return decoding
    if isinstance(decoding, CorpusDecoding):
        if temperature == 0:
            raise ApiError(
                400,
                "temperature 0 is refused: the draw itself is the noise that hides who is in the corpus. Leave "
                "temperature out or give one above 0.",
                param="temperature",
            )
        return replace(decoding, temperature=temperature)
    if temperature == 0:
        return replace(decoding, decoder=Decoder.GREEDY)
    if decoding.decoder is Decoder.GREEDY:
        raise ApiError(400, "This server decodes greedily; leave temperature out or set it to 0.", param="temperature")
    return replace(decoding, temperature=temperature)


class Answers:
    """The answers to one request, running; make them with `start`."""

    def __init__(self, service: Service, asked: GenerationRequest) -> None:
        self._service = service
        self.asked = asked
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._sinks: list[ChoiceSink] = []
        self._trace = current_trace()
        self._jobs = self._make_jobs(asyncio.get_running_loop())
        self._key_has_ended = False
        self._stop_requested = False
        self.finished: dict[int, Finished] = {}

    @classmethod
    def start(cls, service: Service, asked: GenerationRequest) -> "Answers":
        """Start all answers of a request, or none.

        Raises:
            ApiError: the queue is full, or the server is stopping.
        """
        answers = cls(service, asked)
        try:
            service.batcher.submit(answers._jobs)
        except (QueueFullError, ClosingError) as error:
            asked.admission.give_back()
            raise (errors.queue_full() if isinstance(error, QueueFullError) else errors.shutting_down()) from None
        service.key_watch.add(answers)
        service.open_requests.add(answers)
        return answers

    @property
    def num_answers(self) -> int:
        """The number of answers."""
        return len(self._jobs)

    @property
    def num_tokens(self) -> int:
        """Tokens in all answers so far."""
        return sum(sink.num_tokens for sink in self._sinks)

    @property
    def key(self) -> ApiKey | None:
        """The asking key, as it was when it asked."""
        return self.asked.key

    @property
    def key_id(self) -> str | None:
        """The asking key's identifier, or None."""
        return self.asked.admission.key_id

    @property
    def request_id(self) -> str:
        """The identifier of the request."""
        return self._trace.id

    @property
    def meter(self) -> KeyMeter:
        """The meter of the asking key: what it has used, and may still have."""
        return self.asked.admission.meter

    async def events(self) -> AsyncGenerator[Event]:
        """Pieces and ends in order of arrival, until every answer has ended; closing the generator cancels the rest."""
        try:
            while len(self.finished) < len(self._jobs):
                event = await self._queue.get()
                if isinstance(event, Finished):
                    if event.ending is FinishReason.CANCELLED:
                        event = replace(event, ending=self._cause_of_cancelling())
                    self.finished[event.index] = event
                yield event
        finally:
            self._service.key_watch.discard(self)
            self._service.open_requests.discard(self)
            self.cancel()
            self.asked.admission.give_back(self.num_tokens)
            self._count()

    def durations(self) -> dict[str, float]:
        """Milliseconds from the request's arrival to the start and to the first token of an answer, for the log."""
        moments = {
            "queue_milliseconds": [job.admitted for job in self._jobs],
            "first_token_milliseconds": [sink.first_token_at for sink in self._sinks],
        }
        known = {name: [at for at in found if at is not None] for name, found in moments.items()}
        return {name: round(1000 * (min(at) - self._trace.arrived), 1) for name, at in known.items() if at}

    def _count(self) -> None:
        """Report all answers to the metrics, at the end of the request."""
        metrics = self._service.metrics
        for index, (job, sink) in enumerate(zip(self._jobs, self._sinks, strict=True)):
            end = self.finished.get(index)
            metrics.count_answer(FinishReason.CANCELLED if end is None else end.ending)
            for timing, moment in (
                (metrics.times.queue, job.admitted),
                (metrics.times.first_token, sink.first_token_at),
                (metrics.times.whole, None if end is None else sink.ended_at),
            ):
                if moment is not None:
                    timing.observe(moment - self._trace.arrived)

    def cancel(self) -> None:
        """Stop all answers that have not ended."""
        for job in self._jobs:
            if not job.cancelled:
                self._service.batcher.cancel(job)

    def end_with_key(self) -> None:
        """Stop all answers that have not ended, as their key is no longer valid."""
        self._key_has_ended = True
        self.cancel()

    def stop(self) -> None:
        """Stop all answers that have not ended, at their client's request; they end as complete answers."""
        self._stop_requested = True
        self.cancel()

    def _cause_of_cancelling(self) -> FinishReason:
        """The finish reason of an answer that was cancelled."""
        if self._key_has_ended:
            return FinishReason.KEY_ENDED
        return FinishReason.STOP if self._stop_requested else FinishReason.CANCELLED

    async def cancel_on_disconnect(self, request: Request) -> None:
        """Stop the answers once the client disconnects."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.cancel()

    def _make_jobs(self, loop: asyncio.AbstractEventLoop) -> list[Job[Any]]:
        def post(event: Event) -> None:
            # A loop that has closed has no reader left.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._queue.put_nowait, event)

        asked, prompts = self.asked, self._service.prompts
        jobs: list[Job[Any]] = []
        for prompt, max_tokens in zip(asked.prompts, asked.max_tokens, strict=True):
            for _ in range(asked.num_choices):
                index = len(jobs)
                text = AnswerText(prompts.decode, asked.stops, prompts.decode.stray_byte)
                sink = ChoiceSink(index, self._trace.id, text, post)
                self._sinks.append(sink)
                coins = PublicCoins.fresh() if asked.seed is None else PublicCoins.from_seed(asked.seed % 2**64, index)
                jobs.append(
                    Job(
                        answer_id=f"{asked.answer_id}-{index}",
                        key_id=asked.admission.key_id,
                        prompt=prompt,
                        settings=asked.settings,
                        coins=coins,
                        max_tokens=max_tokens,
                        stop_tokens=prompts.stop_tokens,
                        sink=sink,
                        allowance=asked.admission.meter,
                        draft_length=DraftLength(self._service.settings.num_drafts),
                        request_id=self._trace.id,
                    )
                )
        return jobs
