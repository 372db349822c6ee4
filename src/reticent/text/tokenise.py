"""Texts as token sequences: encoded once, the same way for training, auditing and prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

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
        is_scored: the tokens that are predicted, bool[total]: of each text all but the first, unless only an answer is.
    """

    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]
    num_truncated: int
    is_scored: NDArray[np.bool_]

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

    @property
    def num_scored(self) -> NDArray[np.int64]:
        """Predicted tokens of each text, int64[n]."""
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.is_scored, dtype=np.int64)])
        return np.diff(ends[self.offsets])

    @classmethod
    def of(
        cls, sequences: Sequence[NDArray[np.int64]], is_scored: Sequence[NDArray[np.bool_]] | None, num_truncated: int
    ) -> Self:
        """Put texts end to end; all but the first token of each is predicted, unless `is_scored` says which are."""
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
        tokens = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
        if is_scored is None:
            scored = np.ones(len(tokens), dtype=np.bool_)
            scored[offsets[:-1]] = False
        else:
            scored = np.concatenate(is_scored)
        return cls(tokens, offsets, num_truncated, scored)


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
    sequences: list[NDArray[np.int64]] = []
    num_truncated = 0
    for whole in whole_documents(tokenizer, texts):
        num_truncated += len(whole) > max_tokens
        sequences.append(np.asarray(whole[:max_tokens], dtype=np.int64))
    short = next((i for i, sequence in enumerate(sequences) if len(sequence) < 2), None)
    if short is not None:
        name = f"record {short + 1}" if sources is None else sources[short]
        raise CorpusError(f"{name}: the text has fewer than two tokens, so there is nothing to predict; remove it")
    return EncodedTexts.of(sequences, None, num_truncated)


def whole_documents(tokenizer: Any, texts: Sequence[str], *, add_end: bool = True) -> Iterator[list[int]]:
    """Yield the token ids of each text, uncut, with the tokenizer's own special tokens around them.

    A beginning-of-text token occurs once, also where the text spells out another. The end-of-text token occurs
    once if `add_end`, and otherwise only where the text itself ends with it.
    """
    for document in tokenise_documents(tokenizer, texts, add_end=add_end):
        yield document.ids


@dataclass(frozen=True)
class Document:
    """The tokens of a whole text.

    Attributes:
        ids: its token ids.
        spans: the characters that each token stands for, (start, stop), white space before it included; the end-of-text
            token that is put after the text stands behind its last character. Empty unless asked for.
    """

    ids: list[int]
    spans: list[tuple[int, int]]


def tokenise_documents(
    tokenizer: Any, texts: Sequence[str], *, add_end: bool = True, add_begin: bool = True, with_spans: bool = False
) -> Iterator[Document]:
    """Yield the tokens of each text as `whole_documents` does, with their places in the text where asked for.

    Args:
        tokenizer: a `transformers` tokenizer; a fast one where places are asked for.
        texts: the texts.
        add_end: whether the end-of-text token closes a text.
        add_begin: whether the tokenizer puts its own special tokens before a text.
        with_spans: whether to yield the places.
    """
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    has_end = add_begin and _is_end_added(tokenizer)
    for start in range(0, len(texts), _ENCODE_AT_ONCE):
        some = list(texts[start : start + _ENCODE_AT_ONCE])
        # verbose: callers count the texts that they cut, so the tokenizer need not warn of long ones.
        found = tokenizer(some, verbose=False, add_special_tokens=add_begin, return_offsets_mapping=with_spans)
        for number, (text, ids) in enumerate(zip(some, found["input_ids"], strict=True)):
            spans = _spans(found["offset_mapping"][number]) if with_spans else []
            last = len(ids) - has_end
            first = next((i for i, token in enumerate(ids[:last]) if token != begin), last) if begin is not None else 0
            kept = slice(max(0, first - 1), last)
            ids, spans = ids[kept], spans[kept]
            if add_end and end is not None and ids[-1:] != [end]:
                ids, spans = [*ids, end], [*spans, (len(text), len(text) + 1)] if with_spans else []
            yield Document(ids, spans)


def _spans(offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Close the gaps that tokenizers leave at white space: a token stands for all since the one before it."""
    spans: list[tuple[int, int]] = []
    end = 0
    for start, stop in offsets:
        spans.append((min(start, end), stop))
        end = max(end, stop)
    return spans


def decode_texts(tokenizer: Any, sequences: Sequence[NDArray[np.int64]]) -> list[str]:
    """Decode training sequences without special tokens: the text that is left once it is cut."""
    return [tokenizer.decode(sequence.tolist(), skip_special_tokens=True) for sequence in sequences]


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
