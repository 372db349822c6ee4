"""Texts as token sequences: encoded once, the same way for training, auditing and prompts."""

from collections.abc import Sequence
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
    def lengths(self) -> NDArray[np.int64]:
        """Tokens in each text, int64[n]."""
        return np.diff(self.offsets)


def encode_texts(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> EncodedTexts:
    """Encode whole documents: the tokenizer's own special tokens, the text, and an end-of-text token.

    A text longer than `max_tokens` is cut, gets no end token, and is counted.

    Raises:
        CorpusError: a text has fewer than two tokens, so there is nothing to predict.
    """
    end = tokenizer.eos_token_id
    sequences: list[list[int]] = []
    num_truncated = 0
    for start in range(0, len(texts), _ENCODE_AT_ONCE):
        # verbose: texts beyond the tokenizer's own limit are cut and counted here, so it need not warn of them.
        for ids in tokenizer(list(texts[start : start + _ENCODE_AT_ONCE]), verbose=False)["input_ids"]:
            whole = ids if end is None or ids[-1:] == [end] else [*ids, end]
            num_truncated += len(whole) > max_tokens
            sequences.append(whole[:max_tokens])
    short = next((i for i, sequence in enumerate(sequences) if len(sequence) < 2), None)
    if short is not None:
        raise CorpusError(f"record {short + 1} has fewer than two tokens; remove it, there is nothing to learn from it")
    offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
    np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
    tokens = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in sequences])
    return EncodedTexts(tokens, offsets, num_truncated)


def encode_prompt(tokenizer: Any, prompt: str) -> list[int]:
    """Encode the beginning of a text. An empty prompt becomes the beginning-of-text token.

    Raises:
        InvalidValueError: the prompt is empty and the model has no beginning-of-text token.
    """
    ids: list[int] = tokenizer(prompt, verbose=False)["input_ids"]
    if ids and ids[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id:
        ids = ids[:-1]
    if ids:
        return ids
    if tokenizer.bos_token_id is None:
        raise InvalidValueError("the prompt is empty and this model has no beginning-of-text token; give some text")
    return [tokenizer.bos_token_id]
