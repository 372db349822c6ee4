"""Allowances of API keys: a number of tokens in all, and a number a minute.

Contract: a key's total is exact, also under concurrency, as it is taken token by token on the engine's thread and
starts from the ledger's counts. Its rate is a token bucket with a capacity of one minute; a request reserves the most
it can release before it queues, and returns the unused part at its end.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from reticent.ledger.api_keys import ApiKey
from reticent.ledger.usage import Spending

METER: Final = "meter"
"""Key in a request's state: the meter of the key that asks."""


@dataclass(frozen=True)
class Rate:
    """A key's rate: tokens a minute, tokens it may have now, and seconds until it may have a minute's worth again."""

    per_minute: int
    left: int
    seconds_to_full: float

    def headers(self) -> dict[str, str]:
        """The rate-limit headers of OpenAI's interface for tokens; there is no limit on requests."""
        return {
            "x-ratelimit-limit-tokens": str(self.per_minute),
            "x-ratelimit-remaining-tokens": str(self.left),
            "x-ratelimit-reset-tokens": _duration(self.seconds_to_full),
        }


def _duration(seconds: float) -> str:
    """A duration in the form 1m30s, 12s or 250ms, rounded up."""
    if seconds < 1:
        return f"{math.ceil(1000 * seconds)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class KeyMeter:
    """The consumption of one API key; safe to use from several threads.

    Args:
        spent: what was released for it so far.
        clock: seconds, monotonic.
    """

    def __init__(self, spent: Spending, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._spending = spent
        self._used = spent.tokens
        self._total: int | None = None
        self._per_minute: int | None = None
        self._bucket = 0.0
        self._filled_at = clock()

    def set_quotas(self, total: int | None, per_minute: int | None) -> None:
        """Set the key's current quotas; None is no quota."""
        with self._lock:
            self._total = total
            if per_minute != self._per_minute:
                self._per_minute, self._bucket, self._filled_at = per_minute, float(per_minute or 0), self._clock()

    @property
    def used(self) -> int:
        """Tokens taken for the key; those of the step under way are counted."""
        return self._used

    @property
    def spending(self) -> Spending:
        """Tokens released for the key, and the most that they could cost."""
        return self._spending

    @property
    def tokens_left(self) -> int | None:
        """The tokens left of the total; None where there is no total."""
        total = self._total
        return None if total is None else max(0, total - self._used)

    @property
    def is_exhausted(self) -> bool:
        """True if the total is used up."""
        return self._total is not None and self._used >= self._total

    def take(self) -> bool:
        """Count one token if the total allows it."""
        with self._lock:
            if self.is_exhausted:
                return False
            self._used += 1
            return True

    def put_back(self) -> None:
        """Uncount a token that was not released."""
        with self._lock:
            self._used -= 1

    def charge(self, units: int) -> None:
        """Add the most that a token could cost which was taken and released, in units of the account."""
        with self._lock:
            self._spending = Spending(self._spending.tokens + 1, self._spending.units + units)

    def reserve(self, tokens: int) -> float:
        """Take `tokens` from the minute's bucket; return 0, or the seconds after which they will be there.

        Infinite where they exceed a whole minute's worth.
        """
        with self._lock:
            if self._per_minute is None:
                return 0.0
            self._fill(self._per_minute)
            if tokens > self._per_minute:
                return math.inf
            if tokens > self._bucket:
                return (tokens - self._bucket) * 60 / self._per_minute
            self._bucket -= tokens
            return 0.0

    def rate(self) -> "Rate | None":
        """The tokens left in the minute's bucket now; None where the key has no rate."""
        with self._lock:
            if self._per_minute is None:
                return None
            self._fill(self._per_minute)
            missing = self._per_minute - self._bucket
            return Rate(self._per_minute, max(0, math.floor(self._bucket)), missing * 60 / self._per_minute)

    def _fill(self, per_minute: int) -> None:
        now = self._clock()
        filled = self._bucket + (now - self._filled_at) * per_minute / 60
        self._bucket, self._filled_at = min(filled, float(per_minute)), now

    def give_back(self, tokens: int) -> None:
        """Return reserved tokens that were not released."""
        with self._lock:
            if self._per_minute is not None:
                self._bucket = min(self._bucket + tokens, float(self._per_minute))


class Meters:
    """One meter for each key, made when the key is first seen.

    Args:
        spent: tokens released so far by key and the most that they could cost, as the ledger holds them.
    """

    def __init__(self, spent: Mapping[str, Spending]) -> None:
        self._spent = dict(spent)
        self._meters: dict[str | None, KeyMeter] = {}
        self._lock = threading.Lock()

    def of(self, key: ApiKey | None) -> KeyMeter:
        """The meter of a key, with the quotas it has now; without a key, one that allows everything."""
        key_id = None if key is None else key.id
        with self._lock:
            meter = self._meters.get(key_id)
            if meter is None:
                meter = self._meters[key_id] = KeyMeter(self._spent.get(key_id or "", Spending()))
        if key is not None:
            meter.set_quotas(key.total_tokens, key.tokens_per_minute)
        return meter

    def used(self) -> dict[str, int]:
        """Tokens released by key."""
        with self._lock:
            before = {key: spending.tokens for key, spending in self._spent.items()}
            return before | {key: meter.used for key, meter in self._meters.items() if key is not None}
