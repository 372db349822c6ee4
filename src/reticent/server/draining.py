"""Graceful shutdown: the server keeps listening while it finishes answers in progress, and refuses new requests.

| when | what happens |
|---|---|
| SIGTERM, SIGINT or SIGHUP | new requests get 503 `shutting_down`, on new connections too; answers under way continue |
| the last answer has ended | the server stops listening and ends |
| the grace is over | answers that are left end with 503 `shutting_down`, streams with an event that says so |
| a second signal | the grace is over at once |
| a request is still not answered some seconds later | it is cancelled, and gets 503 too (`middleware.AccessLog`) |
"""

import signal
import time
from types import FrameType
from typing import Final, Protocol

import uvicorn

from reticent.server.connections import ListeningServer

FLUSH_SECONDS: Final = 5
"""Time for a last step to end, and again for the last answers to be read."""


class Draining(Protocol):
    """The grace in which answers under way are finished."""

    def begin_closing(self, drain_seconds: float) -> None:
        """Refuse further work and end within the given seconds; a later call can bring the end forward."""
        ...

    @property
    def has_stopped(self) -> bool:
        """True if every answer has ended."""
        ...


class DrainingServer(ListeningServer):
    """uvicorn, with a grace before it stops listening.

    Args:
        config: of uvicorn.
        engine: finishes the answers in progress.
        drain_seconds: the grace.
    """

    def __init__(self, config: uvicorn.Config, engine: Draining, drain_seconds: float) -> None:
        super().__init__(config)
        self._engine = engine
        self._drain_seconds = drain_seconds
        self._num_signals = 0
        self._stuck_at = float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note a signal; no lock may be taken here."""
        self._num_signals += 1
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """True if it is time to stop listening; asked ten times a second."""
        if not await super().on_tick(counter):
            return False
        grace = self._drain_seconds if self._num_signals < 2 else 0.0
        self._engine.begin_closing(grace)
        self._stuck_at = min(self._stuck_at, time.monotonic() + grace + FLUSH_SECONDS)
        return self._engine.has_stopped or time.monotonic() >= self._stuck_at

    def listen_to_hangup(self) -> None:
        """Treat SIGHUP as SIGTERM, unless whoever started this process had it ignored (`nohup`)."""
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self.handle_exit)
