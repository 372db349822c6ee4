"""The answers to one request: from tokens on the engine's thread to events on the event loop."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from reticent.decoding.drafts import Pace
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.ledger.api_keys import ApiKey
from reticent.pac.accounting import charge_units
from reticent.randomness import PublicCoins
from reticent.server import errors
from reticent.server.batching import ClosingError, QueueFullError
from reticent.server.errors import ApiError
from reticent.server.jobs import Ending, Job, TokenSource
from reticent.server.metering import KeyMeter
from reticent.server.service import Service
from reticent.server.settings import OnExhausted
from reticent.server.streaming import AnswerText

logger = logging.getLogger("reticent.server")

_RETRY_QUEUE_SECONDS = 2

_ERRORS: dict[Ending, Callable[[], ApiError]] = {
    Ending.BUDGET: errors.budget_exhausted,
    Ending.QUOTA: errors.quota_exhausted,
    Ending.KEY_ENDED: errors.key_ended,
    Ending.STORAGE: errors.storage_failed,
    Ending.SHUTDOWN: errors.shutting_down,
    Ending.CANCELLED: errors.client_left,
    Ending.FAULT: errors.internal_error,
}
CUT_SHORT = (Ending.BUDGET, Ending.QUOTA)
"""Endings after which the tokens before them are still an answer."""


def error_of(ending: Ending) -> ApiError | None:
    """What a client is told of an ending; None where the answer is whole."""
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
    """The end of answer `index`: the rest of its text, the whole of it, why it ended, and how many tokens it has."""

    index: int
    rest: str
    text: str
    ending: Ending
    num_private: int
    num_public: int

    @property
    def num_tokens(self) -> int:
        """Tokens of both sources."""
        return self.num_private + self.num_public


Event = Piece | Finished


class ChoiceSink:
    """Takes one answer's tokens on the engine's thread and posts events; implements `jobs.Sink`."""

    def __init__(self, index: int, text: AnswerText, post: Callable[[Event], None]) -> None:
        self._index = index
        self._text = text
        self._post = post
        self._shown: list[str] = []
        self._counts = dict.fromkeys(TokenSource, 0)

    @property
    def num_tokens(self) -> int:
        """Tokens so far, of both sources."""
        return sum(self._counts.values())

    def push(self, token: int, source: TokenSource, is_stop_token: bool) -> bool:
        """Take a token; a stop token has no text."""
        self._counts[source] += 1
        piece = "" if is_stop_token else self._text.push(token)
        if piece:
            self._shown.append(piece)
            self._post(Piece(self._index, piece, source))
        return not self._text.stopped

    def end(self, ending: Ending) -> None:
        """Take the end."""
        try:
            rest = self._text.finish()
        except Exception as error:  # noqa: BLE001 - the kind alone is logged: the rest could quote the answer
            logger.error("an answer's last text could not be decoded (%s)", type(error).__name__)
            rest, ending = "", Ending.FAULT
        if ending is Ending.LENGTH and self._text.stopped:
            ending = Ending.STOP
        private, public = self._counts[TokenSource.PRIVATE], self._counts[TokenSource.PUBLIC]
        self._post(Finished(self._index, rest, "".join([*self._shown, rest]), ending, private, public))


@dataclass(frozen=True)
class Asked:
    """A request in tokens.

    Attributes:
        identifier: of the request; public.
        key: the asking key, or None.
        prompts: one or several.
        num_choices: answers for each prompt.
        max_tokens: for each prompt, at most so many tokens in an answer.
    """

    identifier: str
    key: ApiKey | None
    prompts: Sequence[list[int]]
    num_choices: int
    max_tokens: Sequence[int]
    settings: DecodingSettings
    stops: Sequence[str]
    seed: int | None


def decoding_for(service: Service, temperature: float | None) -> DecodingSettings:
    """The server's settings at a request's temperature; 0 means greedy votes.

    Raises:
        ApiError: the server decodes greedily only.
    """
    decoding = service.settings.decoding
    if temperature is None:
        return decoding
    if temperature == 0:
        return replace(decoding, decoder=Decoder.GREEDY)
    if decoding.decoder is Decoder.GREEDY:
        raise ApiError(400, "This server decodes greedily; leave temperature out or set it to 0.", param="temperature")
    return replace(decoding, temperature=temperature)


class Answers:
    """The answers to one request, running; make them with `start`."""

    def __init__(self, service: Service, asked: Asked) -> None:
        self._service = service
        self.asked = asked
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._meter = service.meters.of(asked.key)
        self._sinks: list[ChoiceSink] = []
        self._jobs = self._make_jobs(asyncio.get_running_loop())
        self._reserved = asked.num_choices * sum(asked.max_tokens)
        self._key_has_ended = False
        self.finished: dict[int, Finished] = {}

    @classmethod
    def start(cls, service: Service, asked: Asked) -> "Answers":
        """Check budget, quotas and queue, and start all answers of a request, or none.

        Raises:
            ApiError: status 429 or 503.
        """
        charge = charge_units(asked.settings.step_budget)
        if service.settings.on_exhausted is OnExhausted.REFUSE and not service.curator.account.can_afford(charge):
            raise errors.budget_exhausted()
        limits = service.settings.limits
        if asked.num_choices * len(asked.prompts) > limits.max_queue + limits.max_concurrent:
            raise ApiError(
                400, f"One request may have {limits.max_queue + limits.max_concurrent} answers here.", param="n"
            )
        answers = cls(service, asked)
        answers._reserve()
        try:
            service.batcher.submit(answers._jobs)
        except (QueueFullError, ClosingError) as error:
            answers._meter.give_back(answers._reserved)
            raise _not_queued(error) from None
        service.key_watch.add(answers)
        return answers

    @property
    def num_answers(self) -> int:
        """How many answers there are."""
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
    def meter(self) -> KeyMeter:
        """What the asking key has used, and may still have."""
        return self._meter

    async def events(self) -> AsyncGenerator[Event]:
        """Pieces and ends as they come, until every answer has ended; leaving early stops the answers."""
        try:
            while len(self.finished) < len(self._jobs):
                event = await self._queue.get()
                if isinstance(event, Finished):
                    if self._key_has_ended and event.ending is Ending.CANCELLED:
                        event = replace(event, ending=Ending.KEY_ENDED)
                    self.finished[event.index] = event
                yield event
        finally:
            self._service.key_watch.discard(self)
            self.cancel()
            self._meter.give_back(self._reserved - self.num_tokens)

    def cancel(self) -> None:
        """Stop all answers that have not ended."""
        for job in self._jobs:
            if not job.cancelled:
                self._service.batcher.cancel(job)

    def end_with_key(self) -> None:
        """Stop all answers that have not ended, since their key is not accepted any more."""
        self._key_has_ended = True
        self.cancel()

    async def until_gone(self, request: Request) -> None:
        """Wait until the client leaves, then stop the answers."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.cancel()

    def _reserve(self) -> None:
        if self._meter.exhausted:
            raise errors.quota_exhausted()
        wait = self._meter.reserve(self._reserved)
        if wait == math.inf:
            raise ApiError(
                429,
                f"This request may write {self._reserved} tokens, more than its API key may have in a minute. "
                "Lower max_tokens or n.",
                kind="rate_limit_error",
                param="max_tokens",
                code="rate_limit_exceeded",
            )
        if wait > 0:
            raise ApiError(
                429,
                "This API key has used its tokens of the last minute. Try again later.",
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=math.ceil(wait),
            )

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
                sink = ChoiceSink(index, AnswerText(prompts.decode, asked.stops, prompts.decode.stray_byte), post)
                self._sinks.append(sink)
                coins = PublicCoins.fresh() if asked.seed is None else PublicCoins.from_seed(asked.seed % 2**64, index)
                jobs.append(
                    Job(
                        request=f"{asked.identifier}-{index}",
                        key_id=None if asked.key is None else asked.key.id,
                        prompt=prompt,
                        settings=asked.settings,
                        coins=coins,
                        max_tokens=max_tokens,
                        stop_tokens=prompts.stop_tokens,
                        sink=sink,
                        allowance=self._meter,
                        pace=Pace(self._service.settings.num_drafts),
                    )
                )
        return jobs


def _not_queued(error: QueueFullError | ClosingError) -> ApiError:
    if isinstance(error, ClosingError):
        return errors.shutting_down()
    return ApiError(
        429,
        "Too many requests wait already. Try again later.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=_RETRY_QUEUE_SECONDS,
    )
