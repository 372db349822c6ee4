"""The routes of OpenAI's interface."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from reticent.decoding.aggregates import CorpusDecoding
from reticent.ledger.api_keys import ApiKey
from reticent.server import errors, schemas
from reticent.server.admission import Extent, admit
from reticent.server.answers import (
    CUT_SHORT,
    Answers,
    Event,
    Finished,
    GenerationRequest,
    Piece,
    decoding_for,
    error_of,
)
from reticent.server.auth import Generating
from reticent.server.errors import ApiError, name_refusal
from reticent.server.fair_queue import QueueFullError
from reticent.server.jobs import FinishReason
from reticent.server.rendering import (
    ChatShape,
    CompletionShape,
    Envelope,
    Shape,
    event,
    server_sent,
    usage_of,
)
from reticent.server.request_trace import make_identifier
from reticent.server.schemas import ChatCompletionRequest, CompletionRequest, ErrorResponse, SamplingRequest
from reticent.server.service import Service

COMPLETION_TOKENS = 16
"""Length of a completion whose request names none, as in OpenAI's interface."""

REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request is malformed, or asks for what is refused."},
    401: {"model": ErrorResponse, "description": "No API key, or one that is not valid."},
    403: {"model": ErrorResponse, "description": "The API key lacks the scope."},
    404: {"model": ErrorResponse, "description": "There is no such model or address."},
    408: {"model": ErrorResponse, "description": "The request came too slowly."},
    413: {"model": ErrorResponse, "description": "The body is too large."},
    429: {"model": ErrorResponse, "description": "The budget, a quota or the queue does not allow it."},
    500: {"model": ErrorResponse, "description": "A defect."},
    503: {"model": ErrorResponse, "description": "The ledger cannot be written, or the server is stopping."},
}
_EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk or an error as JSON, or [DONE]."}},
    "required": ["data"],
}
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}}}

router = APIRouter(prefix="/v1", responses=REFUSALS)


@router.get("/models", response_model=schemas.ModelList)
async def list_models(request: Request, _: Generating) -> schemas.ModelList:
    """The one model that is served."""
    return schemas.ModelList(data=[_model(request.app.state.service)])


@router.get("/models/{model:path}", response_model=schemas.Model)
async def get_model(model: str, request: Request, _: Generating) -> schemas.Model:
    """The model, by its name."""
    service: Service = request.app.state.service
    _require_model(service, model)
    return _model(service)


@router.post("/completions", response_model=schemas.Completion, responses=_STREAM)
async def complete(body: CompletionRequest, request: Request, key: Generating) -> Response:
    """Continue a prompt, or several."""
    service: Service = request.app.state.service
    prompts = _prompts(body)
    extent = Extent(body.n or 1, len(prompts), body.max_tokens, COMPLETION_TOKENS)
    encoders = [partial(service.prompts.encode, prompt) for prompt in prompts]
    asked = await _make_request(service, body, key, "cmpl", extent, encoders)
    return await _answer(request, service, body, asked, CompletionShape())


@router.post("/chat/completions", response_model=schemas.ChatCompletion, responses=_STREAM)
async def chat(body: ChatCompletionRequest, request: Request, key: Generating) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    extent = Extent(
        body.n or 1,
        1,
        body.max_completion_tokens or body.max_tokens,
        service.settings.limits.default_max_tokens,
        "max_completion_tokens" if body.max_completion_tokens else "max_tokens",
    )
    asked = await _make_request(
        service, body, key, "chatcmpl", extent, [partial(service.prompts.encode_chat, body.messages)]
    )
    return await _answer(request, service, body, asked, ChatShape())


def _model(service: Service) -> schemas.Model:
    return schemas.Model(id=service.settings.model_name, created=service.started, owned_by="reticent")


def _require_served(service: Service, body: SamplingRequest) -> None:
    """Refuse another model's name, and a seed where seeds are refused."""
    _require_model(service, body.model)
    if body.seed is not None and isinstance(service.settings.decoding, CorpusDecoding):
        raise ApiError(
            400,
            "seed is refused: tokens are drawn from the operating system's randomness, which is the noise that hides "
            "who is in the corpus, and can never be repeated. Leave seed out.",
            param="seed",
            code="seed_refused",
        )
    if body.seed is not None and service.settings.refuse_seeds:
        raise ApiError(
            400,
            "seed is refused by this server's operator: with one seed the worlds vote alike each time, so repeating a "
            "prompt would show whether they differ. Leave seed out.",
            param="seed",
            code="seed_refused",
        )


def _require_model(service: Service, name: str) -> None:
    served = service.settings.model_name
    if name != served:
        raise ApiError(
            404, f"There is no such model here; this server has {served!r}.", param="model", code="model_not_found"
        )


def _prompts(body: CompletionRequest) -> Sequence[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token for token in prompt if isinstance(token, int)]]
    return [one for one in prompt if not isinstance(one, int)]


async def _make_request(
    service: Service,
    body: SamplingRequest,
    key: ApiKey | None,
    prefix: str,
    extent: Extent,
    encoders: Sequence[Callable[[], list[int]]],
) -> GenerationRequest:
    """The request in tokens; prompts are encoded only once it has been admitted."""
    _require_served(service, body)
    settings = decoding_for(service, body.temperature)
    admission = admit(service, key, extent, settings.reserve_units)
    try:
        prompts = [await service.tokenising.run(admission.key_id, encode) for encode in encoders]
    except QueueFullError:
        admission.give_back()
        raise errors.queue_full() from None
    default = extent.default_within(service.settings.limits)
    return GenerationRequest(
        answer_id=make_identifier(prefix),
        admission=admission,
        prompts=prompts,
        num_choices=extent.num_choices,
        max_tokens=[service.prompts.answer_length(len(prompt), extent.max_tokens, default) for prompt in prompts],
        settings=settings,
        stops=body.stops,
        seed=body.seed,
    )


async def _answer(
    request: Request, service: Service, body: SamplingRequest, asked: GenerationRequest, shape: Shape
) -> Response:
    answers = Answers.start(service, asked)
    envelope = Envelope(asked.answer_id, int(time.time()), service.settings.model_name, service.fingerprint)
    watcher = asyncio.create_task(answers.cancel_on_disconnect(request))
    events = answers.events()
    try:
        if body.stream:
            # Nothing is sent before the first token or the end, so that a refusal can still be a status.
            first = await anext(events)
            _refuse_unanswered([first] if isinstance(first, Finished) else [])
            stream = _stream(request, service, body, answers, shape, envelope, first, events)
            return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        async for _ in events:
            pass
    except BaseException:
        await events.aclose()
        raise
    finally:
        watcher.cancel()
        _log(request, service, answers)
    finished = [answers.finished[index] for index in sorted(answers.finished)]
    _refuse_unanswered(finished)
    return JSONResponse(shape.whole(envelope, finished, usage_of(service, answers)).model_dump(mode="json"))


def _refuse_unanswered(finished: Sequence[Finished]) -> None:
    """Raise the error that stands in the place of an answer, if one does.

    Answers that the budget or a quota has cut are shown, as they were charged; a failure of the ledger hides all.
    """
    for end in finished:
        if end.ending not in CUT_SHORT and (error := error_of(end.ending)) is not None:
            raise error
    if finished and all(end.ending in CUT_SHORT and end.num_tokens == 0 for end in finished):
        error = error_of(finished[0].ending)
        assert error is not None
        raise error


async def _stream(
    request: Request,
    service: Service,
    body: SamplingRequest,
    answers: Answers,
    shape: Shape,
    envelope: Envelope,
    first: Event,
    events: AsyncGenerator[Event],
) -> AsyncIterator[str]:
    """All events of a stream; one that is abandoned stops its answers."""
    with_usage = body.include_usage
    try:
        for chunk in shape.openings(envelope, answers.num_answers):
            yield server_sent(chunk, with_usage)
        error: ApiError | None = None
        happened: Event | None = first
        while happened is not None:
            if isinstance(happened, Piece):
                chunk = shape.piece(envelope, happened.index, happened.text, happened.source)
            else:
                error = error_of(happened.ending) or error
                if happened.ending not in (*CUT_SHORT, FinishReason.STOP, FinishReason.LENGTH):
                    break
                chunk = shape.closing(envelope, happened)
            yield server_sent(chunk, with_usage)
            happened = await anext(events, None)
        if with_usage:
            yield server_sent(shape.accounts(envelope, usage_of(service, answers)), with_usage)
        if error is not None:
            name_refusal(request.scope, error)
            yield event(error.body)
        yield "data: [DONE]\n\n"
    finally:
        await events.aclose()
        _log(request, service, answers)


def _log(request: Request, service: Service, answers: Answers) -> None:
    """Add the outcome of the request to its log line; texts only with `--log-texts`."""
    asked, finished = answers.asked, answers.finished.values()
    fields = request.scope["state"]["log"]
    fields |= {
        "answer_id": asked.answer_id,
        "key_id": asked.admission.key_id,
        "prompt_tokens": sum(len(prompt) for prompt in asked.prompts),
        "completion_tokens": answers.num_tokens,
        "ended_by": sorted({end.ending.value for end in finished}),
        **answers.durations(),
    }
    if service.settings.log_texts:
        fields["prompts"] = [service.prompts.decode(prompt) for prompt in asked.prompts]
        fields["answers"] = [end.text for end in finished]
