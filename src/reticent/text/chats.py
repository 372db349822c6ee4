"""Conversations as records, and as the text that a model's chat template makes of them.

A record of a conversation has a field for each message, named by its role. The same rendering serves training, scoring
and the server: only the words of the template stand between messages, and an answer begins where the template says that
a model begins to write.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from reticent.errors import CorpusError, InvalidValueError
from reticent.text.fields import Fields, join_fields, split_fields

MESSAGES_COLUMN = "messages"
ASSISTANT = "assistant"
_USER = "user"
_ROLES = ("system", "developer", _USER, ASSISTANT)
_TOOL_ROLES = ("tool", "function")

Span = tuple[int, int]


def read_messages(source: str, value: object) -> tuple[Fields, int]:
    """The messages of a row as fields, and how many were ignored: a tool's, and those without text that call one.

    Raises:
        CorpusError: the value is no list of messages as OpenAI writes them.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise CorpusError(f"{source}: {MESSAGES_COLUMN!r} must be a list of messages, found {type(value).__name__}")
    fields: list[tuple[str, str]] = []
    num_ignored = 0
    for number, message in enumerate(value, start=1):
        place = f"{source}: message {number}"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role in _TOOL_ROLES:
            num_ignored += 1
            continue
        if role not in _ROLES:
            raise CorpusError(f"{place} must have a role of {', '.join((*_ROLES, *_TOOL_ROLES))}")
        text = _text_of(place, message.get("content"))
        if role == ASSISTANT and not text.strip():
            num_ignored += 1
            continue
        fields.append((str(role), text))
    return tuple(fields), num_ignored


def conversation_record(fields: Fields) -> str:
    """One string of a conversation; empty where no assistant says anything, and the answer alone to nothing asked."""
    if not any(role == ASSISTANT for role, _ in fields):
        return ""
    if len(fields) == 1 or (len(fields) == 2 and fields[0] == (_USER, "") and fields[1][0] == ASSISTANT):
        return fields[-1][1]
    return join_fields(fields)


def chat_text(tokenizer: Any, messages: Sequence[Mapping[str, str]], *, begins_answer: bool) -> str:
    """A conversation through the model's chat template.

    Args:
        tokenizer: the model's.
        messages: role and content of each.
        begins_answer: whether to end where the assistant's answer begins.

    Raises:
        InvalidValueError: the model has no chat template.
        Exception: it refuses these messages; a template is foreign code, whose message may quote them.
    """
    if not tokenizer.chat_template:
        raise InvalidValueError(
            "this model has no chat template, so it cannot take messages: use one tuned for chats, or give --template "
            "with the columns of prompt and answer"
        )
    text: str = tokenizer.apply_chat_template(
        [dict(message) for message in messages], add_generation_prompt=begins_answer, tokenize=False
    )
    return text


def render_chat(tokenizer: Any, record: str) -> tuple[str, tuple[Span, ...], Span]:
    """A record as the chat template renders it: the text, the spans of the assistant's turns, the last turn's content.

    A turn reaches from where a model begins to write to the end of what closes it, without white space behind.

    Raises:
        InvalidValueError: there is no chat template, it refuses the record, or it changes what an assistant said.
    """
    try:
        return _render_chat(tokenizer, split_fields(record) or ((_USER, ""), (ASSISTANT, record)))
    except InvalidValueError:
        raise
    except Exception as error:  # noqa: BLE001 - foreign code, and its message may quote the conversation
        raise InvalidValueError(
            f"the model's chat template refuses a conversation of the corpus ({type(error).__name__}); many ask for a "
            "user's and an assistant's message in turn"
        ) from None


def _render_chat(tokenizer: Any, fields: Fields) -> tuple[str, tuple[Span, ...], Span]:
    messages = [{"role": role, "content": content} for role, content in fields]
    text = chat_text(tokenizer, messages, begins_answer=False).rstrip()
    spans: list[Span] = []
    content, end = (0, 0), 0
    for number, (role, said) in enumerate(fields):
        if role != ASSISTANT:
            continue
        head = chat_text(tokenizer, messages[:number], begins_answer=True) if number else ""
        start = text.find(said.strip(), max(end, len(head.rstrip()) if text.startswith(head.rstrip()) else end))
        if start < 0:
            raise InvalidValueError("the model's chat template does not repeat what the assistant says; use --template")
        content = (start, start + len(said.strip()))
        whole = chat_text(tokenizer, messages[: number + 1], begins_answer=False).rstrip()
        end = len(whole) if text.startswith(whole) else content[1]
        spans.append((len(head) if text.startswith(head) and head else start, end))
    return text, tuple(spans), content


def _text_of(place: str, content: object) -> str:
    """A message's text: a string, parts of which those of type text count, or nothing."""
    if content is None:
        return ""
    if isinstance(content, Sequence) and not isinstance(content, str | bytes):
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str):
        raise CorpusError(f"{place} must have text as its content, found {type(content).__name__}")
    return content
