"""Messages of a conversation, as clients send them: their own words, and answers of this server sent back.

Clients send an answer's message back as they got it, with every field that their library knows. A field that would
carry more than text is taken where it is null or empty.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictStr,
    Tag,
    model_validator,
)

TEXT_TAG, PARTS_TAG = "(text)", "(parts)"
MOST_FIELDS = 200

PromptText = Annotated[StrictStr, Field(max_length=4_000_000)]


def _refuse_content(value: Any) -> None:
    if value not in (None, "", [], {}):
        raise ValueError("must be null or empty, as this server reads and writes plain text only")


Nothing = Annotated[None, BeforeValidator(_refuse_content), Field(description="Null or empty.")]


def _kind_of_part(value: Any) -> Any:
    if value != "text":
        raise ValueError("only parts of type 'text' are read here, no images, sound or files")
    return value


class KnownFields(BaseModel):
    """An object of a request: every field is known, and there are few enough that naming them costs no time."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_flood(cls, data: Any) -> Any:
        if isinstance(data, dict) and len(data) > MOST_FIELDS:
            raise ValueError(f"{len(data)} fields are far more than there are")
        return data


class TextPart(KnownFields):
    """A piece of a message; text is the only kind."""

    type: Annotated[Literal["text"], BeforeValidator(_kind_of_part)]
    text: PromptText


def _text_or_parts(value: Any) -> str | None:
    return TEXT_TAG if isinstance(value, str) else PARTS_TAG if isinstance(value, list) else None


Content = Annotated[
    Annotated[PromptText, Tag(TEXT_TAG)]
    | Annotated[list[TextPart], Field(fail_fast=True, min_length=1), Tag(PARTS_TAG)],
    Discriminator(
        _text_or_parts, custom_error_type="content_type", custom_error_message="Give a string or a list of text parts"
    ),
]


class Message(KnownFields):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: StrictStr | None = None
    refusal: Nothing = None
    annotations: Nothing = None
    audio: Nothing = None
    tool_calls: Nothing = None
    function_call: Nothing = None
    parsed: Nothing = None

    @property
    def text(self) -> str:
        """The message's text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
