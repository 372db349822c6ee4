"""Figures that depend on dissent, as operators see them: totals over many tokens, renewed once in many.

Where the worlds' votes differ tells nothing of the realised world to someone who knows all worlds, and something of the
corpus to someone who does not: that some record bears on the text. So no figure here lets a reader tell whether one
token was a dissenting one. Safe to use from several threads.
"""

import threading

from reticent.pac.account import Account
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator

RENEWED_EVERY_TOKENS = 1000


class CoarseDissent:
    """The share of released tokens on which the worlds' votes differed, renewed once in many tokens."""

    def __init__(self, curator: Curator) -> None:
        self._curator = curator
        self._seen_at = -RENEWED_EVERY_TOKENS
        self._share: float | None = None

    @property
    def share(self) -> float | None:
        """To the nearest percent; None before the first 1,000 tokens."""
        state = self._curator.state
        current = state.tokens_released // RENEWED_EVERY_TOKENS * RENEWED_EVERY_TOKENS
        if current and current > self._seen_at:
            self._share = round(state.dissenting_steps / state.tokens_released, 2)
            self._seen_at = current
        return self._share


class CoarseAccount:
    """The account with the latest tokens, up to 1,000, at the most they could cost: never below what was spent.

    Where every token costs the same, that is the account itself.

    Args:
        curator: of the deployment.
        charging: what this process's tokens cost.
    """

    def __init__(self, curator: Curator, charging: Charging) -> None:
        self._curator = curator
        self._reserve_units = charging.reserve_units
        self._lock = threading.Lock()
        self._seen = curator.state

    @property
    def account(self) -> Account:
        """The account as it may be shown now."""
        state = self._curator.state
        with self._lock:
            # Counted from the last renewal, so that two of them never lie a single token apart.
            if state.tokens_released - self._seen.tokens_released >= RENEWED_EVERY_TOKENS:
                self._seen = state
            seen = self._seen
        since = max(0, state.tokens_released - seen.tokens_released)
        spent, cap = seen.spent_units + since * self._reserve_units, seen.cap_units
        return Account(spent if cap is None else min(spent, cap), cap)
