"""A vocabulary by kinds of token: which may take which other's place in a text."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reticent.errors import ModelError

_UNUSABLE = -1
_INSIDE, _WORD_START, _PLAIN = 0, 1, 2
_CONTINUATION_MARK = "##"
_SPACE_MARKS = ("Ġ", "▁")
_NOT_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class SwappableTokens:
    """The tokens of a vocabulary that are whole, visible characters.

    Attributes:
        kinds: for each token id its position in a word, int64[V]; -1 for one that is never swapped: a special token,
            blank space, or a part of a character.
        surfaces: the characters of each token, without blank space around them.
    """

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        """Read a tokenizer's vocabulary.

        Args:
            tokenizer: a `transformers` tokenizer that gives the character spans of its tokens.
            vocab_size: entries of the model's logits; ids that the tokenizer does not know are never swapped in.

        Raises:
            ModelError: the tokenizer gives no character spans of tokens.
        """
        if not tokenizer.is_fast:
            raise ModelError("neighbours need a fast tokenizer, which gives the character span of a token in the text")
        known = min(len(tokenizer), vocab_size)
        names = tokenizer.convert_ids_to_tokens(list(range(known)))
        special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        self.kinds: NDArray[np.int64] = np.full(vocab_size, _UNUSABLE, dtype=np.int64)
        self.surfaces: list[str] = [""] * vocab_size
        for token, name in enumerate(names):
            surface = tokenizer.decode([token]).removeprefix(_CONTINUATION_MARK).strip()
            if token in special or not surface or _NOT_A_CHARACTER in surface:
                continue
            self.kinds[token] = _kind(name)
            self.surfaces[token] = surface
        self._of_kind: dict[int, NDArray[np.int64]] = {
            kind: np.flatnonzero(self.kinds == kind) for kind in (_INSIDE, _WORD_START, _PLAIN)
        }

    def alternatives(self, token: int) -> NDArray[np.int64]:
        """Tokens of the same kind, without the token itself, int64[…]."""
        candidates = self._of_kind[int(self.kinds[token])]
        others: NDArray[np.int64] = candidates[candidates != token]
        return others


def _kind(name: str) -> int:
    if name.startswith(_CONTINUATION_MARK):
        return _INSIDE
    return _WORD_START if name.startswith(_SPACE_MARKS) else _PLAIN
