"""From released tokens to text, as it comes.

Formal guarantee: the pieces join to what decoding all tokens at once gives, no piece splits a character, and no piece
is taken back, for every tokenizer whose text of some tokens begins with that of fewer, but for an unfinished character
at their end or a run of byte tokens that a stray byte behind it spoils.
"""

from collections.abc import Callable, Sequence
from typing import Any

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_CONTINUATION_BYTE = "<0x80>"


class TextDecoder:
    """Tokens to text without special tokens, the same way for whole answers and for streams.

    Args:
        tokenizer: as `transformers` builds it.

    Attributes:
        stray_byte: a byte token that begins no character, of a tokenizer with byte fallback; None for any other.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        token = tokenizer.get_vocab().get(_CONTINUATION_BYTE)
        self.stray_byte: int | None = token if token is not None and self([token]) == _INCOMPLETE else None

    def __call__(self, tokens: Sequence[int]) -> str:
        """The text of all tokens at once."""
        # No tidying of spaces before punctuation: it would take back a space that is already shown.
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class TextStream:
    """Turns tokens into text piece by piece: the pieces join to the text of the whole, and none splits a character.

    Tokenizers may decode a token differently behind another one, so each piece is what a token adds to the text of the
    few tokens before it. Tokenizers with byte fallback decode a run of byte tokens to characters only if all of the run
    is valid, and otherwise to one replacement character a byte: a run is shown once a token of another kind ends it.

    Args:
        decode: tokens to text, as a `TextDecoder` does.
        stray_byte: a token that spoils a run of bytes, as `TextDecoder.stray_byte`. Where none is known, the first
            token of the text that stands for an incomplete character serves.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stray_byte: int | None = None) -> None:
        self._decode = decode
        self._stray_byte = stray_byte
        self._tokens: list[int] = []
        self._window_start = 0
        self._shown_stop = 0

    def push(self, token: int) -> str:
        """Add a token; return the text that is certain now, which may be empty."""
        self._tokens.append(token)
        window = self._tokens[self._window_start :]
        text = self._decode(window)
        added = text[len(self._visible_text()) :]
        if text.endswith(_INCOMPLETE) and self._stray_byte is None and self._decode([token]) == _INCOMPLETE:
            self._stray_byte = token
        if not added or text.endswith(_INCOMPLETE) or self._may_be_spoiled(window, text):
            return ""
        self._window_start, self._shown_stop = self._shown_stop, len(self._tokens)
        return added

    def finish(self) -> str:
        """The rest, with replacement characters where the last character never became whole."""
        added = self._decode(self._tokens[self._window_start :])[len(self._visible_text()) :]
        self._window_start = self._shown_stop = len(self._tokens)
        return added

    def _visible_text(self) -> str:
        return self._decode(self._tokens[self._window_start : self._shown_stop])

    def _may_be_spoiled(self, window: list[int], text: str) -> bool:
        """True if another byte could change characters that stand in `text`."""
        return self._stray_byte is not None and not self._decode([*window, self._stray_byte]).startswith(text)
