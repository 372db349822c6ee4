"""Answers in the two shapes of OpenAI's interface, whole and in pieces."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from reticent.ledger.api_keys import ApiKey, Scope
from reticent.ledger.usage import Spending
from reticent.server import schemas
from reticent.server.answers import CUT_SHORT, Answers, Finished
from reticent.server.figures import AnyPrivacy, KeySpending
from reticent.server.jobs import FinishReason, TokenSource
from reticent.server.metering import KeyMeter
from reticent.server.schemas import OpenAIFinishReason, Provenance, Source
from reticent.server.service import Service


@dataclass(frozen=True)
class Envelope:
    """Fields that every answer and chunk of a request repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Shape(Protocol):
    """The form of answers to one kind of request."""

    def whole(self, envelope: Envelope, finished: Sequence[Finished], usage: schemas.Usage) -> BaseModel:
        """The answer that is sent at once."""
        ...

    def openings(self, envelope: Envelope, num_answers: int) -> list[BaseModel]:
        """The chunks that begin a stream."""
        ...

    def piece(self, envelope: Envelope, index: int, text: str, source: TokenSource) -> BaseModel:
        """A chunk of text."""
        ...

    def closing(self, envelope: Envelope, finished: Finished) -> BaseModel:
        """The chunk that ends one answer."""
        ...

    def accounts(self, envelope: Envelope, usage: schemas.Usage) -> BaseModel:
        """The chunk of usage."""
        ...


class CompletionShape:
    """The shape of `/v1/completions`."""

    def whole(self, envelope: Envelope, finished: Sequence[Finished], usage: schemas.Usage) -> BaseModel:
        """The answer that is sent at once."""
        choices = [
            schemas.CompletionChoice(
                index=end.index, text=end.text, finish_reason=_finish_reason(end), reticent=provenance([end])
            )
            for end in finished
        ]
        return schemas.Completion(**vars(envelope), choices=choices, usage=usage)

    def openings(self, _: Envelope, __: int) -> list[BaseModel]:
        """None."""
        return []

    def piece(self, envelope: Envelope, index: int, text: str, source: TokenSource) -> BaseModel:
        """A chunk of text."""
        return self._chunk(envelope, index, text, None, Provenance(source=source.value))

    def closing(self, envelope: Envelope, finished: Finished) -> BaseModel:
        """The chunk that ends one answer."""
        return self._chunk(envelope, finished.index, finished.rest, _finish_reason(finished), provenance([finished]))

    def accounts(self, envelope: Envelope, usage: schemas.Usage) -> BaseModel:
        """The chunk of usage."""
        return schemas.Completion(**vars(envelope), choices=[], usage=usage)

    def _chunk(
        self, envelope: Envelope, index: int, text: str, finish_reason: OpenAIFinishReason | None, origin: Provenance
    ) -> BaseModel:
        choice = schemas.CompletionChoice(index=index, text=text, finish_reason=finish_reason, reticent=origin)
        return schemas.Completion(**vars(envelope), choices=[choice])


class ChatShape:
    """The shape of `/v1/chat/completions`."""

    def whole(self, envelope: Envelope, finished: Sequence[Finished], usage: schemas.Usage) -> BaseModel:
        """The answer that is sent at once."""
        choices = [
            schemas.ChatChoice(
                index=end.index,
                message=schemas.AssistantMessage(role="assistant", content=end.text),
                finish_reason=_finish_reason(end),
                reticent=provenance([end]),
            )
            for end in finished
        ]
        return schemas.ChatCompletion(**vars(envelope), choices=choices, usage=usage)

    def openings(self, envelope: Envelope, num_answers: int) -> list[BaseModel]:
        """One chunk an answer, that says who speaks."""
        speaker = schemas.AssistantMessage(role="assistant", content="")
        origin = Provenance(source=TokenSource.PRIVATE.value)
        return [self._chunk(envelope, index, speaker, None, origin) for index in range(num_answers)]

    def piece(self, envelope: Envelope, index: int, text: str, source: TokenSource) -> BaseModel:
        """A chunk of text."""
        delta = schemas.AssistantMessage(content=text)
        return self._chunk(envelope, index, delta, None, Provenance(source=source.value))

    def closing(self, envelope: Envelope, finished: Finished) -> BaseModel:
        """The chunk that ends one answer."""
        delta = schemas.AssistantMessage(content=finished.rest or None)
        return self._chunk(envelope, finished.index, delta, _finish_reason(finished), provenance([finished]))

    def accounts(self, envelope: Envelope, usage: schemas.Usage) -> BaseModel:
        """The chunk of usage."""
        return schemas.ChatChunk(**vars(envelope), choices=[], usage=usage)

    def _chunk(
        self,
        envelope: Envelope,
        index: int,
        delta: schemas.AssistantMessage,
        finish_reason: OpenAIFinishReason | None,
        origin: Provenance,
    ) -> BaseModel:
        choice = schemas.ChatChunkChoice(index=index, delta=delta, finish_reason=finish_reason, reticent=origin)
        return schemas.ChatChunk(**vars(envelope), choices=[choice])


def server_sent(chunk: BaseModel, with_usage: bool) -> str:
    """A chunk as a server-sent event; `usage` appears, as null, only in streams that end with usage."""
    content = chunk.model_dump(mode="json")
    if not with_usage:
        del content["usage"]
    for choice in content["choices"]:
        if "delta" in choice:
            choice["delta"] = {name: value for name, value in choice["delta"].items() if value is not None}
    return event(content)


def event(content: Any) -> str:
    """A server-sent event with JSON data."""
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"


def provenance(finished: Collection[Finished]) -> Provenance:
    """Name the model that wrote some answers, and say if one was cut because nothing more may be released."""
    private, public = sum(end.num_private for end in finished), sum(end.num_public for end in finished)
    source: Source = "private" if not public else "private, then public" if private else "public"
    cut = next((end.ending.value for end in finished if end.ending in CUT_SHORT), None)
    return Provenance(source=source, ended_by=cut)


def usage_of(service: Service, answers: Answers) -> schemas.Usage:
    """Tokens and their price."""
    finished = answers.finished.values()
    prompt = sum(len(prompt) for prompt in answers.asked.prompts)
    written = sum(end.num_tokens for end in finished)
    return schemas.Usage(
        prompt_tokens=prompt,
        completion_tokens=written,
        total_tokens=prompt + written,
        privacy=_privacy_of(service, answers),
        reticent=provenance(finished),
    )


def _privacy_of(service: Service, answers: Answers) -> AnyPrivacy:
    """The most that a request cost, and the totals that its key may see."""
    key, finished = answers.asked.key, answers.finished.values()
    spending = Spending(sum(end.num_private for end in finished), sum(end.reserve_units for end in finished))
    own = None if key is None else key_spending(answers.meter)
    return service.figures.of_request(spending, own, is_operator(key))


def key_spending(meter: KeyMeter) -> KeySpending:
    """The spending of one key over its life."""
    return KeySpending(meter.spending, meter.tokens_left)


def is_operator(key: ApiKey | None) -> bool:
    """True for whoever may see the deployment's spending, which tells how much others write."""
    return key is None or Scope.ADMIN in key.scopes


def _finish_reason(finished: Finished) -> OpenAIFinishReason:
    return "stop" if finished.ending is FinishReason.STOP else "length"
