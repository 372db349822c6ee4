"""Texts as token sequences: encoded once, the same way for training, auditing and prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.errors import CorpusError, InvalidValueError

_ENCODE_AT_ONCE = 256


@dataclass(frozen=True)
class EncodedTexts:
    """Token sequences of many texts, stored end to end.

    Attributes:
        tokens: all token ids, int64[total].
        offsets: text i is tokens[offsets[i]:offsets[i + 1]], int64[n + 1].
        num_truncated: how many texts were cut to fit.
    """

    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    num_truncated: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sequences(self) -> list[NDArray[np.int64]]:
        """Each text's token ids, views of `tokens`."""
        return np.split(self.tokens, self.offsets[1:-1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens in each text, int64[n]."""
        return np.diff(self.offsets)


def encode_texts(
    tokenizer: Any, texts: Sequence[str], max_tokens: int, *, sources: Sequence[str] | None = None
) -> EncodedTexts:
    """Encode whole documents: the tokenizer's own special tokens, the text, and an end-of-text token.

    A text longer than `max_tokens` is cut, gets no end token, and is counted.

    Args:
        tokenizer: the base model's.
        texts: the documents.
        max_tokens: the most tokens of a text.
        sources: what to call each text in a message; its number unless given.

    Raises:
        CorpusError: a text has fewer than two tokens, so there is nothing to predict.
    """
    sequences: list[list[int]] = []
    num_truncated = 0
    for whole in whole_documents(tokenizer, texts):
        num_truncated += len(whole) > max_tokens
        sequences.append(whole[:max_tokens])
    short = next((i for i, sequence in enumerate(sequences) if len(sequence) < 2), None)
    if short is not None:
        name = f"record {short + 1}" if sources is None else sources[short]
        raise CorpusError(f"{name}: the text has fewer than two tokens, so there is nothing to predict; remove it")
    offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
    np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
    tokens = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    return EncodedTexts(tokens, offsets, num_truncated)


def whole_documents(tokenizer: Any, texts: Sequence[str], *, add_end: bool = True) -> Iterator[list[int]]:
    """Yield the token ids of each text, uncut, with the tokenizer's own special tokens around them.

    A beginning-of-text token occurs once, also where the text spells out another. The end-of-text token occurs
    once if `add_end`, and otherwise only where the text itself ends with it.
    """
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    has_end = _is_end_added(tokenizer)
    for start in range(0, len(texts), _ENCODE_AT_ONCE):
        # verbose: callers count the texts that they cut, so the tokenizer need not warn of long ones.
        for ids in tokenizer(list(texts[start : start + _ENCODE_AT_ONCE]), verbose=False)["input_ids"]:
            own = ids[:-1] if has_end else ids
            first = next((i for i, token in enumerate(own) if token != begin), len(own)) if begin is not None else 0
            content = own[max(0, first - 1) :]
            yield [*content, end] if add_end and end is not None and content[-1:] != [end] else content


def decode_texts(tokenizer: Any, sequences: Sequence[NDArray[np.int64]]) -> list[str]:
    """Decode training sequences without special tokens: the text that is left once it is cut."""
    return [tokenizer.decode(sequence.tolist(), skip_special_tokens=True) for sequence in sequences]


def cut_texts(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[str]:
    """Cut whole texts to `max_tokens` and decode what is left."""
    return decode_texts(tokenizer, [np.asarray(ids[:max_tokens]) for ids in whole_documents(tokenizer, texts)])


def encode_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """Encode the beginning of a text, as `whole_documents` begins one: the tokenizer's own special tokens, the text.

    Raises:
        InvalidValueError: the prompt is empty, and texts begin with no special token that an answer could start from.
    """
    ids = next(whole_documents(tokenizer, [prompt], add_end=False))
    if not ids:
        raise InvalidValueError(
            "the prompt is empty, and this model has no token to start from: its tokenizer puts no beginning-of-text "
            "token before a text, so the worlds were trained on none; give the first words"
        )
    return ids


def _is_end_added(tokenizer: Any) -> bool:
    """True if the tokenizer itself closes a text with the end-of-text token."""
    closed, bare = (tokenizer("a", add_special_tokens=special, verbose=False)["input_ids"] for special in (True, False))
    return bool(closed[-1:] == [tokenizer.eos_token_id] != bare[-1:])
