"""Turns of API keys: they share places in the batch, the reading of prompts, and everything else they queue for.

A turn is a function of the keys that ask, of what they have in the batch and of steps counted. No keys at all count as
one.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from reticent.decoding.engines import C
from reticent.server.jobs import Job

STEPS_PER_PART: Final = 8
"""Steps that an answer may keep its place for each part in which it was read, so that reading again stays a small
share of the work."""


class Keyed(Protocol):
    """Something that waits on behalf of an API key."""

    @property
    def key_id(self) -> str | None:
        """The key's identifier, or None."""
        ...


T = TypeVar("T", bound=Keyed)


class QueueFullError(Exception):
    """More of one key wait than may."""


class FairQueue(Generic[T]):
    """A queue with one line for each API key.

    The next is of the key with the fewest places already; among such keys, of the one that was served longest ago. A
    key that asks for much waits for its own, not others for it.
    """

    def __init__(self) -> None:
        self._lines: dict[str | None, deque[T]] = {}
        self._last_served: dict[str | None, int] = {}
        self._num_served = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def length_of(self, key_id: str | None) -> int:
        """Count what waits for one key."""
        return len(self._lines.get(key_id, ()))

    def push(self, item: T) -> None:
        """Put an item at the end of its key's line."""
        self._lines.setdefault(item.key_id, deque()).append(item)
        self._length += 1

    def push_first(self, item: T) -> None:
        """Put an item at the head of its key's line."""
        self._lines.setdefault(item.key_id, deque()).appendleft(item)
        self._length += 1

    def next_key(self, places: Mapping[str | None, int], excluded: Collection[str | None] = ()) -> str | None:
        """The key whose turn it is, given how many places each key has; some keys may have to sit out.

        Raises:
            IndexError: nobody waits, or only those who sit out.
        """
        waiting = [key for key, line in self._lines.items() if line and key not in excluded]
        if not waiting:
            raise IndexError("nobody waits")
        return min(waiting, key=lambda key: (places.get(key, 0), self._last_served.get(key, 0)))

    def pop(self, key_id: str | None) -> T:
        """Take the first of a key's line."""
        self._num_served += 1
        self._last_served[key_id] = self._num_served
        self._length -= 1
        return self._lines[key_id].popleft()

    def remove(self, item: T) -> bool:
        """Take an item out of its line; return whether it was there."""
        line = self._lines.get(item.key_id)
        if line is None or item not in line:
            return False
        line.remove(item)
        self._length -= 1
        return True

    def drain(self) -> list[T]:
        """Take out everything."""
        items = [item for line in self._lines.values() for item in line]
        self._lines.clear()
        self._length = 0
        return items


def answer_to_suspend(active: Sequence[Job[C]], key_id: str | None) -> Job[C] | None:
    """The answer that makes place for one of the key that is due, where the batch is full; None if none need.

    It is one of the key that has the most places, if that is two more than the key that is due has: then sharing moves
    towards equal parts. A key that has no place at all, because there are more keys than places, also gets that of an
    answer whose turn is over. Of several, the answer that has kept its place for the most steps.
    """
    places = Counter(job.key_id for job in active)
    most, held = max(places.values()), places[key_id]
    movable = [job for job in active if places[job.key_id] == most and job.context is not None]
    if most - held < 2:
        movable = [job for job in movable if held == 0 and job.turn >= STEPS_PER_PART * job.num_parts]
    return max(movable, key=lambda job: job.turn, default=None)
