"""Tokens that end an answer: the end of a text, those a model declares, and the one that ends its turn in a chat."""

from collections.abc import Collection
from typing import Any

_QUESTION = "question"
_ANSWER = "reticent-answer"


def end_tokens(tokenizer: Any, declared: Collection[int] = ()) -> frozenset[int]:
    """The ids of all tokens after which nothing more is written.

    Args:
        tokenizer: as `transformers` builds it.
        declared: what the model's generation configuration lists; see `models.BaseModel.declared_ends`.
    """
    return frozenset({tokenizer.eos_token_id, turn_end(tokenizer), *declared} - {None})


def turn_end(tokenizer: Any) -> int | None:
    """The token that the chat template puts after an assistant's message, such as `<|im_end|>`.

    None where there is no template, it does not take a question and an answer, or no single token ends the answer.
    Words and line breaks end a turn in some templates, and are part of ordinary text: only added tokens count.
    """
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # noqa: BLE001 - a template is foreign code; one that refuses this conversation names no end
        return None
    _, found, after = text.rpartition(_ANSWER)
    after = after.lstrip()
    added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
    standing = [content for content in added if content.strip() and after.startswith(content)]
    return added[max(standing, key=len)] if found and standing else None
