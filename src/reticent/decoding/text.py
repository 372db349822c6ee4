"""From released tokens to text, as it comes."""

from collections.abc import Callable, Sequence

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Turns tokens into text piece by piece: the pieces join to the text of the whole, and none splits a character.

    Tokenizers may decode a token differently behind another one, so each piece is what a token adds to the text of the
    few tokens before it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._window_start = 0
        self._shown_stop = 0

    def push(self, token: int) -> str:
        """Add a token; return the text that is certain now, which may be empty."""
        self._tokens.append(token)
        added = self._added()
        if not added or added.endswith(_INCOMPLETE):
            return ""
        self._window_start, self._shown_stop = self._shown_stop, len(self._tokens)
        return added

    def finish(self) -> str:
        """The rest, with a replacement character where the last character never became whole."""
        added = self._added()
        self._window_start = self._shown_stop = len(self._tokens)
        return added

    def _added(self) -> str:
        shown = self._decode(self._tokens[self._window_start : self._shown_stop])
        return self._decode(self._tokens[self._window_start :])[len(shown) :]
