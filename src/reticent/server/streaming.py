"""Incremental text of an answer: whole characters only, and never a part of a stop string.

Formal guarantee: the pieces of an answer join to the text of its tokens, cut before the stop string that is complete
first; no piece holds a character of a stop string that is found, however tokens and pieces divide it.
"""

from collections.abc import Callable, Sequence

from reticent.decoding.detokenise import TextStream


class StopFilter:
    """Emits text up to a stop string, and buffers any ending that could begin one.

    | case | what happens |
    |---|---|
    | two stop strings overlap | the one that ends first counts; of two that end together, the one that began first |
    | the text ends in the beginning of a stop string | it is buffered until decided, and returned by `finish` |

    Args:
        stops: non-empty strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._buffer = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """Add text; return the part that can be shown."""
        if self.is_stopped:
            return ""
        text = self._buffer + text
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.is_stopped, self._buffer = True, ""
            return text[: min(ends)[1]]
        kept = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._buffer = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """Return the buffered text, as no more can complete a stop string."""
        rest, self._buffer = self._buffer, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that begins `stop` without completing it."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if stop.startswith(text[-length:])), 0)


class AnswerText:
    """The text of one answer, token by token.

    Args:
        decode: tokens to text, without special tokens.
        stops: strings that end the answer and are not shown.
        stray_byte: see `decoding.detokenise.TextStream`.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str], stray_byte: int | None = None
    ) -> None:
        self._stream = TextStream(decode, stray_byte)
        self._filter = StopFilter(stops)

    @property
    def is_stopped(self) -> bool:
        """True if a stop string is complete."""
        return self._filter.is_stopped

    def push(self, token: int) -> str:
        """Add a token; return the text that can be shown."""
        return self._filter.push(self._stream.push(token))

    def finish(self) -> str:
        """Return the rest, which may still contain a stop string and is then cut before it."""
        if self.is_stopped:
            return ""
        return self._filter.push(self._stream.finish()) + self._filter.finish()
