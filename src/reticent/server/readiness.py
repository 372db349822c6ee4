"""Readiness: whether requests would be answered now, and why not."""

import asyncio
from dataclasses import dataclass
from typing import Final

from reticent.errors import ReticentError
from reticent.server.service import Service
from reticent.server.settings import OnExhausted

BUDGET_SPENT: Final = "the privacy budget of this deployment is spent"


@dataclass(frozen=True)
class Readiness:
    """The outcome of a check.

    Attributes:
        reason: what keeps the server from answering, or None.
        budget_spent: whether the budget does not cover another token. This is a reason by itself, unless the public
            model continues.
    """

    reason: str | None
    budget_spent: bool


class ReadinessCheck:
    """Checks a server; for the event loop.

    Everyone who asks during a check gets its result, so that many probes cost the database no more than one.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._running: asyncio.Task[Readiness] | None = None

    async def run(self) -> Readiness:
        """The state of the server now."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(check_readiness, self._service))
        # A prober that leaves must not take the others' result with it.
        return await asyncio.shield(self._running)


def check_readiness(service: Service) -> Readiness:
    """The state of a server now. Asks the database and the disk: call it off the event loop."""
    budget_spent = not service.curator.account.can_afford(service.settings.decoding.reserve_units)
    reason = _failure(service)
    if reason is None and budget_spent and service.settings.on_exhausted is OnExhausted.REFUSE:
        reason = BUDGET_SPENT
    return Readiness(reason, budget_spent)


def _failure(service: Service) -> str | None:
    if not service.batcher.is_running:
        return "the engine has stopped, or the server is shutting down"
    if not service.deployment.healthy():
        return "the ledger cannot be written"
    try:
        service.keys.current()
    except ReticentError:
        return "the API keys cannot be read"
    return None
