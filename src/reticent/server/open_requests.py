"""The requests that are being answered, so that a client can stop one of its own and still receive its `usage`.

Closing the connection stops the answers as well, but the client then never receives the `usage` at their end.
"""

import weakref
from typing import Protocol


class StoppableAnswers(Protocol):
    """The answers to one request."""

    @property
    def key_id(self) -> str | None:
        """The asking key's identifier, or None."""
        ...

    @property
    def request_id(self) -> str:
        """The request's identifier."""
        ...

    def stop(self) -> None:
        """End them with the tokens they have."""
        ...


class OpenRequests:
    """Every request with answers under way; for the event loop alone."""

    def __init__(self) -> None:
        self._answers: weakref.WeakSet[StoppableAnswers] = weakref.WeakSet()

    def add(self, answers: StoppableAnswers) -> None:
        """Take the answers to a request that have started."""
        self._answers.add(answers)

    def discard(self, answers: StoppableAnswers) -> None:
        """Forget answers that have ended."""
        self._answers.discard(answers)

    def stop(self, key_id: str | None, request_id: str) -> bool:
        """Stop the requests of one key with one identifier; return True if there was any.

        Args:
            key_id: of the key that asks for the stop; it can stop its own requests only.
            request_id: the request's identifier.
        """
        found = [one for one in self._answers if one.key_id == key_id and one.request_id == request_id]
        for answers in found:
            answers.stop()
        return bool(found)
