"""One thread for tokenising prompts, so that long ones delay nothing else.

Contract. Key checks and probes run on other threads. The number of waiting prompts is bounded for each API key, and
keys take turns, so that a key with many prompts delays only its own.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from reticent.server.fair_queue import FairQueue, QueueFullError

Tokens = list[int]


@dataclass(eq=False)
class _PendingPrompt:
    """A prompt that waits to be tokenised."""

    key_id: str | None
    encode: Callable[[], Tokens]
    outcome: "Future[Tokens]"


class Tokenising:
    """Runs the encoding of prompts on one thread.

    Args:
        max_waiting: prompts of one key that may wait.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: FairQueue[_PendingPrompt] = FairQueue()
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="reticent-tokeniser")

    async def run(self, key_id: str | None, encode: Callable[[], Tokens]) -> Tokens:
        """Run `encode` in fair order among keys; returns or raises as it does.

        Raises:
            QueueFullError: too many prompts of this key wait.
        """
        order = _PendingPrompt(key_id, encode, Future())
        with self._lock:
            if self._waiting.length_of(key_id) >= self._max_waiting:
                raise QueueFullError
            self._waiting.push(order)
        self._worker.submit(self._encode_next)
        return await asyncio.wrap_future(order.outcome)

    @property
    def num_waiting(self) -> int:
        """Prompts that wait."""
        return len(self._waiting)

    def close(self) -> None:
        """End the worker once it is idle."""
        self._worker.shutdown(wait=False)

    def _encode_next(self) -> None:
        with self._lock:
            order = self._waiting.pop(self._waiting.next_key({}))
        if not order.outcome.set_running_or_notify_cancel():
            return
        try:
            order.outcome.set_result(order.encode())
        except BaseException as error:  # noqa: BLE001 - it belongs to who asked
            order.outcome.set_exception(error)
