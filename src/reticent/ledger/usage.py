"""Usage counts: tokens released, for whom and when, read from the releases of a ledger that may be in use.

Takes no lock and no key; counts only, so nothing secret is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row, Select, func, select

from reticent.ledger.database import Database
from reticent.ledger.schema import column_names, releases

SECONDS_AN_HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class Spending:
    """Releases for one API key: tokens, and the most that they could cost, in whole units of 2^-64 nat."""

    tokens: int = 0
    units: int = 0


class UsageTable:
    """Counts over the releases of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def spending_by_key(self) -> dict[str, Spending]:
        """Tokens released for each API key over the deployment's life, and the most that they could cost.

        A key's holder may see these figures, so they do not depend on the votes.

        Raises:
            StorageError: they cannot be read.
        """
        if not (present := self._present()):
            return {}
        # A ledger that does not keep the reserve charged as much.
        key, has_reserve = releases.c.key_id, releases.c.reserve_units.name in present
        reserve = releases.c.reserve_units if has_reserve else releases.c.charge_units
        # Amounts pass 64 bits, so they are added here; a deployment has few different ones.
        counted = select(key, reserve.label("reserve"), func.count().label("tokens"))
        spent: dict[str, Spending] = {}
        for row in self._rows(counted.where(key.is_not(None)).group_by(key, reserve)):
            before = spent.get(row.key_id, Spending())
            units = before.units + int(row.tokens) * int(row.reserve, 16)
            spent[row.key_id] = Spending(before.tokens + int(row.tokens), units)
        return spent

    def tokens_by_key(self) -> dict[str, int]:
        """Tokens released for each API key over the deployment's life.

        Raises:
            StorageError: they cannot be read.
        """
        return {key: spending.tokens for key, spending in self.spending_by_key().items()}

    def tokens_by_hour(self, since: int) -> list[tuple[int, int]]:
        """(start of the hour in seconds since 1970, tokens released in it), for hours that had any.

        Args:
            since: releases before it are left out; seconds since 1970.

        Raises:
            StorageError: they cannot be read.
        """
        hour = (releases.c.time - releases.c.time % SECONDS_AN_HOUR).label("hour")
        query = select(hour, func.count().label("tokens")).where(releases.c.time >= since).group_by(hour).order_by(hour)
        return [(int(row.hour), int(row.tokens)) for row in self._rows(query)] if self._present() else []

    def _present(self) -> set[str]:
        """Names of the columns of the table of releases; none where there is no such table."""
        if self._database.missing:
            return set()
        with self._database.transaction(write=False) as connection:
            return column_names(connection, releases)

    def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        with self._database.transaction(write=False) as connection:
            return connection.execute(query).all()
