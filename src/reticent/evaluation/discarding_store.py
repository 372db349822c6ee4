"""A store for simulated deployments, whose state nothing outlives."""

from collections.abc import Sequence

from reticent.pac.curator import CuratorState, ReleaseRecord


class DiscardingStore:
    """A `pac.curator.ReleaseStore` that keeps nothing: for measurements with a seeded secret and seeded noise."""

    def commit(self, state: CuratorState, records: Sequence[ReleaseRecord]) -> None:
        """Keep nothing."""

    def reconcile(self, state: CuratorState) -> CuratorState:
        """Return the state as it is: a commit cannot fail."""
        return state
