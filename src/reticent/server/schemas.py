"""Requests and responses of OpenAI's interface, as far as this server honours it.

Every field a client may send is named here. What changes an answer and cannot be honoured is refused with the reason;
what only keeps the client's books is accepted and ignored; anything else is not recognised.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from reticent.guarantees import Guarantee
from reticent.pac.wording import HALF_MEANING, HALF_QUESTION, NOT_BOUNDED, WORLD_MEANING, WORLD_QUESTION
from reticent.server.corpus_schemas import CorpusPrivacy
from reticent.server.messages import PARTS_TAG, TEXT_TAG, KnownFields, Message, PromptText

SCORES = "it would show scores, and only released tokens may leave"
SAMPLING = "the worlds vote on whole distributions, so this cannot be honoured"
PLAIN_TEXT = "this server writes plain text only"

NOT_HONOURED: dict[str, tuple[tuple[Any, ...], str]] = {
    "logprobs": ((False,), SCORES),
    "top_logprobs": ((), SCORES),
    "echo": ((False,), "the prompt is not repeated, and its scores are not shown"),
    "logit_bias": (({},), SAMPLING),
    "top_p": ((1, 1.0), SAMPLING),
    "presence_penalty": ((0, 0.0), SAMPLING),
    "frequency_penalty": ((0, 0.0), SAMPLING),
    "best_of": ((1,), "choosing among answers needs their scores, and every discarded token would be charged"),
    "suffix": (("",), PLAIN_TEXT),
    "tools": (([],), PLAIN_TEXT),
    "tool_choice": (("none",), PLAIN_TEXT),
    "functions": (([],), PLAIN_TEXT),
    "function_call": (("none",), PLAIN_TEXT),
    "response_format": (({"type": "text"},), PLAIN_TEXT),
    "modalities": ((["text"],), PLAIN_TEXT),
    "audio": ((), PLAIN_TEXT),
    "prediction": ((), PLAIN_TEXT),
    "web_search_options": ((), PLAIN_TEXT),
    "reasoning_effort": (("none",), PLAIN_TEXT),
    "verbosity": (("medium",), "only max_tokens sets how long an answer may be"),
    "moderation": ((), PLAIN_TEXT),
}
"""Field: the values that ask for nothing, and why any other is refused. Null always asks for nothing."""

StopText = Annotated[StrictStr, Field(min_length=1, max_length=256)]
TokenId = Annotated[StrictInt, Field(ge=0)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
Count = Annotated[StrictInt, Field(ge=1, le=1 << 31)]


_ONE, _SEVERAL, _TOKENS, _TOKEN_LISTS = "(one)", "(several)", "(tokens)", "(token lists)"
UNION_TAGS = frozenset({_ONE, _SEVERAL, _TOKENS, _TOKEN_LISTS, TEXT_TAG, PARTS_TAG})
"""Labels within the place of an error, for the form that a value was taken to have; no field has such a name."""


def _form_of_stop(value: Any) -> str | None:
    return _ONE if isinstance(value, str) else _SEVERAL if isinstance(value, list) else None


def _form_of_prompt(value: Any) -> str | None:
    """The form of a prompt by its first element, so that an error is about the element that does not fit."""
    if isinstance(value, str):
        return _ONE
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    return _SEVERAL if isinstance(first, str) else _TOKEN_LISTS if isinstance(first, list) else _TOKENS


Stop = Annotated[
    Annotated[StopText, Tag(_ONE)] | Annotated[list[StopText], Field(max_length=4), Tag(_SEVERAL)],
    Discriminator(
        _form_of_stop, custom_error_type="stop_type", custom_error_message="Give a string or a list of strings"
    ),
]
Prompt = Annotated[
    Annotated[PromptText, Tag(_ONE)]
    | Annotated[TokenIds, Tag(_TOKENS)]
    | Annotated[list[PromptText], Field(fail_fast=True, min_length=1, max_length=128), Tag(_SEVERAL)]
    | Annotated[list[TokenIds], Field(fail_fast=True, min_length=1, max_length=128), Tag(_TOKEN_LISTS)],
    Discriminator(
        _form_of_prompt,
        custom_error_type="prompt_type",
        custom_error_message="Give a string, a list of token ids, or a list of either",
    ),
]


class StreamOptions(KnownFields):
    """Options of a stream."""

    include_usage: StrictBool | None = None
    include_obfuscation: StrictBool | None = None


class _Refusals(KnownFields):
    """Fields that are refused unless they ask for nothing, and fields that are ignored."""

    logprobs: Any = None
    logit_bias: dict[str, float] | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    user: Annotated[StrictStr | None, Field(description="Accepted and ignored.")] = None
    metadata: Annotated[dict[str, Any] | None, Field(description="Accepted and ignored.")] = None
    service_tier: Annotated[StrictStr | None, Field(description="Accepted and ignored.")] = None
    safety_identifier: Annotated[StrictStr | None, Field(description="Accepted and ignored.")] = None
    prompt_cache_key: Annotated[StrictStr | None, Field(description="Accepted and ignored.")] = None
    store: Annotated[StrictBool | None, Field(description="Accepted and ignored: nothing is stored.")] = None

    @field_validator(*NOT_HONOURED, check_fields=False)
    @classmethod
    def _refuse(cls, value: Any, info: ValidationInfo) -> Any:
        neutral, reason = NOT_HONOURED[str(info.field_name)]
        # `0 == False` in Python, but `logprobs: 0` asks for a score.
        if value is not None and not any(type(value) is type(other) and value == other for other in neutral):
            raise ValueError(f"refused, as {reason}")
        return value


class SamplingRequest(_Refusals):
    """Fields that both kinds of request share."""

    model: StrictStr
    n: Annotated[StrictInt, Field(ge=1, le=128)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | None = None
    max_tokens: Count | None = None
    temperature: Annotated[
        float | None, Field(ge=0, le=2, allow_inf_nan=False, description="0 takes each world's most likely token.")
    ] = None
    seed: Annotated[
        StrictInt | None,
        Field(ge=-(1 << 63), lt=1 << 63, description="Fixes the public coins only, never the secret or the noise."),
    ] = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed with stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(SamplingRequest):
    """Continue one prompt or several."""

    prompt: Prompt
    best_of: StrictInt | None = None
    echo: StrictBool | None = None
    suffix: StrictStr | None = None


class ChatCompletionRequest(SamplingRequest):
    """Answer a conversation through the model's chat template."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=2048)]
    max_completion_tokens: Count | None = None
    top_logprobs: StrictInt | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Annotated[StrictBool | None, Field(description="Accepted and ignored.")] = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None
    modalities: list[StrictStr] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    reasoning_effort: StrictStr | None = None
    verbosity: StrictStr | None = None
    moderation: Any = None
    prompt_cache_options: Annotated[dict[str, Any] | None, Field(description="Accepted and ignored.")] = None
    prompt_cache_retention: Annotated[StrictStr | None, Field(description="Accepted and ignored.")] = None

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens disagree; give one of them")
        return self


Source = Literal["private", "public", "private, then public"]
OpenAIFinishReason = Literal["stop", "length"]


class Provenance(BaseModel):
    """The model that wrote a text: `private` is the released vote of the worlds, `public` the public model alone."""

    source: Source
    ended_by: Annotated[
        str | None,
        Field(description="`budget` or `quota` where an answer was cut because nothing more may be released."),
    ] = None


_WORST_CASE = (
    "The most that these tokens could cost. Where a deployment charges only tokens on which the worlds' votes differ, "
    "less was charged; how much would tell where they differ, and so what the corpus holds."
)


class KeyPrivacy(BaseModel):
    """The asking key's spending over its life. No bound follows from it: noise is calibrated to all releases."""

    tokens_charged: int
    nats_charged: Annotated[float, Field(description=_WORST_CASE)]
    tokens_left: Annotated[int | None, Field(description="Null where the key has no total quota.")]


class DeploymentPrivacy(BaseModel):
    """The cost of all releases of the deployment so far, to everyone together, and the bounds they leave."""

    tokens_charged: int
    nats_charged: Annotated[
        float, Field(description="What was charged, the latest tokens, up to 1,000, at the most they could cost.")
    ]
    nats_left: Annotated[float | None, Field(description="Null where the deployment has no cap.")]
    half_bound: Annotated[
        float, Field(description=f"{HALF_QUESTION} Bound on the {HALF_MEANING}. Not bounded: {NOT_BOUNDED}.")
    ]
    world_bound: Annotated[float, Field(description=f"{WORLD_QUESTION} Bound on the {WORLD_MEANING}.")]


class Privacy(BaseModel):
    """The privacy cost of a request, its key's spending, and, for operators, the deployment's."""

    guarantee: Literal[Guarantee.REALISED_WORLD] = Guarantee.REALISED_WORLD
    tokens_charged: int
    nats_charged: Annotated[float, Field(description=_WORST_CASE)]
    key: Annotated[KeyPrivacy | None, Field(description="Null on a server without keys.")]
    deployment: Annotated[
        DeploymentPrivacy | None,
        Field(description="Null unless the key has the scope `admin`, or the server has no keys."),
    ]


class Usage(BaseModel):
    """Tokens, and their price in privacy."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    privacy: Privacy | CorpusPrivacy
    reticent: Provenance


class CompletionChoice(BaseModel):
    """One continuation, or a piece of it."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: OpenAIFinishReason | None
    reticent: Provenance


class Completion(BaseModel):
    """The answer to a `CompletionRequest`; also each chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class AssistantMessage(BaseModel):
    """The model's message, or a piece of it."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: None = None
    finish_reason: OpenAIFinishReason
    reticent: Provenance


class ChatCompletion(BaseModel):
    """The answer to a `ChatCompletionRequest`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class ChatChunkChoice(BaseModel):
    """A piece of one answer."""

    index: int
    delta: AssistantMessage
    logprobs: None = None
    finish_reason: OpenAIFinishReason | None
    reticent: Provenance


class ChatChunk(BaseModel):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class Model(BaseModel):
    """A model that can be asked."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All models that can be asked."""

    object: Literal["list"] = "list"
    data: list[Model]


class ErrorDetail(BaseModel):
    """The description of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """An error, as every route shapes it."""

    error: ErrorDetail
