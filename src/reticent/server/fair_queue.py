"""Fair sharing among API keys: of places in the batch, of prefill, and of every other queue.

Each decision is a function of the keys, of the requests in progress and of step counts. Requests without a key count as
one key.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

from reticent.decoding.engines import C
from reticent.server.jobs import Job

STEPS_PER_CHUNK: Final = 8
"""Steps for which an answer keeps its place, per chunk of its prefill, so that repeated prefill stays a small share of
the work."""


class Keyed(Protocol):
    """Something that waits on behalf of an API key."""

    @property
    def key_id(self) -> str | None:
        """The key's identifier, or None."""
        ...


T = TypeVar("T", bound=Keyed)


class QueueFullError(Exception):
    """The line of a key is full."""


class FairQueue(Generic[T]):
    """A queue with one first-in-first-out line for each API key.

    The next item belongs to the key with the fewest places, and among several such keys to the one served longest ago.
    A key with many items delays only its own.
    """

    def __init__(self) -> None:
        self._lines: dict[str | None, deque[T]] = {}
        self._last_served: dict[str | None, int] = {}
        self._num_served = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def length_of(self, key_id: str | None) -> int:
        """The number of items of one key."""
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
        """Select the key to serve next.

        Raises:
            IndexError: nothing waits, or only items of excluded keys.
        """
        waiting = [key for key, line in self._lines.items() if line and key not in excluded]
        if not waiting:
            raise IndexError("nothing waits")
        return min(waiting, key=lambda key: (places.get(key, 0), self._last_served.get(key, 0)))

    def pop(self, key_id: str | None) -> T:
        """Remove and return the first item of a key."""
        self._num_served += 1
        self._last_served[key_id] = self._num_served
        self._length -= 1
        return self._lines[key_id].popleft()

    def remove(self, item: T) -> bool:
        """Remove an item; return True if it was queued."""
        line = self._lines.get(item.key_id)
        if line is None or item not in line:
            return False
        line.remove(item)
        self._length -= 1
        return True

    def drain(self) -> list[T]:
        """Remove and return all items."""
        items = [item for line in self._lines.values() for item in line]
        self._lines.clear()
        self._length = 0
        return items


def select_suspension(active: Sequence[Job[C]], key_id: str | None) -> Job[C] | None:
    """Select the answer to suspend in a full batch, for the key to be served next; None if no answer has to make room.

    It belongs to the key with the most places, if that key has at least two more than the waiting key; suspension then
    brings the shares closer together. A waiting key without any place, because there are more keys than places, also
    replaces an answer that has had its full number of steps. Among several, the one with the most steps since prefill.
    """
    places = Counter(job.key_id for job in active)
    most, held = max(places.values()), places[key_id]
    movable = [job for job in active if places[job.key_id] == most and job.context is not None]
    if most - held < 2:
        movable = [job for job in movable if held == 0 and job.steps_since_prefill >= STEPS_PER_CHUNK * job.num_chunks]
    return max(movable, key=lambda job: job.steps_since_prefill, default=None)
