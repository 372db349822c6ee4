"""Ends the running answers of keys that were revoked or have expired, and applies changed quotas to the others.

Contract: an answer gets its last token within a second of the revocation, or at the end of the step that is then
running. The database is queried only while answers of keys are running, and never on the engine's thread.
"""

import asyncio
import logging
import time
import weakref
from typing import Final, Protocol

from reticent.errors import ReticentError, StorageError
from reticent.ledger.api_keys import ApiKey
from reticent.server.auth import KeyDirectory
from reticent.server.metering import Meters

CHECK_SECONDS: Final = 0.25

logger = logging.getLogger("reticent.server")


class KeyedAnswers(Protocol):
    """The answers to one request, as far as their key is concerned."""

    @property
    def key(self) -> ApiKey | None:
        """The asking key, as it was when it asked."""
        ...

    def end_with_key(self) -> None:
        """Stop all of them, since the key is not accepted any more."""
        ...


class KeyWatch:
    """A periodic check of running answers; for the event loop alone.

    Args:
        directory: the deployment's keys.
        meters: take the quotas that keys have now.
    """

    def __init__(self, directory: KeyDirectory, meters: Meters) -> None:
        self._directory = directory
        self._meters = meters
        self._answers: weakref.WeakSet[KeyedAnswers] = weakref.WeakSet()

    def add(self, answers: KeyedAnswers) -> None:
        """Register a request's answers; of no effect without a key."""
        if answers.key is not None:
            self._answers.add(answers)

    def discard(self, answers: KeyedAnswers) -> None:
        """Forget answers that have ended."""
        self._answers.discard(answers)

    async def run(self) -> None:
        """Check a few times a second, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.check()
            except Exception:
                # Without this loop no revocation would reach an answer under way.
                logger.exception("keys of answers under way could not be checked")

    async def check(self) -> None:
        """End the answers whose key is not live now.

        While the ledger cannot be reached its keys are unknown, and no private token can be released, so answers
        stay as they are. Where it can be read and has lost its keys, all answers end.
        """
        if not self._answers:
            return
        try:
            keys = [stored.key for stored in await self._directory.read()]
        except StorageError:
            return
        except ReticentError:
            keys = []
        now = time.time()
        live = {key.id for key in keys if key.is_live(now)}
        for key in keys:
            self._meters.of(key)
        for answers in [answers for answers in self._answers if answers.key is None or answers.key.id not in live]:
            self._answers.discard(answers)
            answers.end_with_key()
