"""The tokeniser's own worker: prompts become tokens there, one after another, and keep nothing else waiting.

What is guaranteed. Key checks and probes run on other threads. Of one API key a bounded number of prompts may wait, and
keys take turns, so that one that sends many waits for its own.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from reticent.server.turns import FairQueue, QueueFullError

Tokens = list[int]


@dataclass(eq=False)
class _Order:
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
        self._waiting: FairQueue[_Order] = FairQueue()
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="reticent-tokeniser")

    async def run(self, key_id: str | None, encode: Callable[[], Tokens]) -> Tokens:
        """Run `encode` when its key's turn has come; returns or raises as it does.

        Raises:
            QueueFullError: too many prompts of this key wait.
        """
        order = _Order(key_id, encode, Future())
        with self._lock:
            if self._waiting.length_of(key_id) >= self._max_waiting:
                raise QueueFullError
            self._waiting.push(order)
        self._worker.submit(self._work_off_one)
        return await asyncio.wrap_future(order.outcome)

    @property
    def num_waiting(self) -> int:
        """Prompts that wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Let the worker go once it is idle."""
        self._worker.shutdown(wait=False)

    def _work_off_one(self) -> None:
        with self._lock:
            order = self._waiting.pop(self._waiting.next_key({}))
        if not order.outcome.set_running_or_notify_cancel():
            return
        try:
            order.outcome.set_result(order.encode())
        except BaseException as error:  # noqa: BLE001 - it belongs to who asked
            order.outcome.set_exception(error)
