"""API keys: who may ask a deployment, for what, and how much.

Formal guarantee: the database never holds a key, only SHA-256 of it behind a salt. A key is 256 random bits, so no one
can search for it, and a slow hash, which makes guessable passwords costly to guess, would buy nothing and cost every
request. Whoever reads the table can impersonate nobody; whoever can write it can, as with any table of keys.

A key reads `rtc-ID-SECRET`. The id is public: the ledger counts tokens by it, and it outlives a revocation. Keys are
never deleted, so that an id in the ledger always has a name, and so that a deployment whose keys were all revoked is
not taken for one that never had any.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Row, insert, inspect, select, update

from reticent._validate import integer_in_range
from reticent.errors import InvalidValueError, StorageError
from reticent.ledger.database import Database
from reticent.ledger.schema import api_keys

_PREFIX: Final = "rtc"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
_MAX_NAME: Final = 100


class Scope(StrEnum):
    """What a key is for."""

    GENERATE = "generate"
    ADMIN = "admin"
    """Metrics and the dashboard."""


@dataclass(frozen=True)
class ApiKey:
    """A key as others may see it.

    Attributes:
        id: what the ledger counts by.
        name: who holds it, in the operator's words.
        scopes: what it is for.
        tokens_per_minute: rate quota, or None.
        total_tokens: quota over the key's life, or None.
        created: seconds since 1970.
        revoked: seconds since 1970, or None.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    tokens_per_minute: int | None
    total_tokens: int | None
    created: int
    revoked: int | None


@dataclass(frozen=True, repr=False)
class StoredKey:
    """A key and what its secret is compared with."""

    key: ApiKey
    salt: bytes
    digest: bytes


class KeyTable:
    """The table of keys of one deployment's database. Needs no deployment's lock: keys are not part of the chain."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        name: str,
        scopes: Collection[Scope],
        tokens_per_minute: int | None = None,
        total_tokens: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; return it and its text, which is shown once and kept nowhere.

        Raises:
            InvalidValueError: no name, no scope, or a quota below 1.
            StorageError: it cannot be written.
        """
        if not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
            raise InvalidValueError(f"a key's name must have 1 to {_MAX_NAME} printable characters, got {name!r}")
        if not scopes:
            raise InvalidValueError("a key needs a scope: generate, admin or both")
        for what, quota in (("tokens-per-minute", tokens_per_minute), ("total-tokens", total_tokens)):
            if quota is not None:
                integer_in_range(what, quota, 1, 2**62)
        identifier, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        key = ApiKey(identifier, name, frozenset(scopes), tokens_per_minute, total_tokens, int(time.time()), None)
        salt = secrets.token_bytes(_SALT_BYTES)
        self._database.create_file()
        with self._database.errors(), self._database.engine(write=True).begin() as connection:
            api_keys.create(connection, checkfirst=True)
            connection.execute(
                insert(api_keys).values(
                    id=key.id,
                    name=key.name,
                    salt=salt,
                    hash=_digest(salt, secret),
                    scopes=" ".join(sorted(key.scopes)),
                    tokens_per_minute=key.tokens_per_minute,
                    total_tokens=key.total_tokens,
                    created=key.created,
                )
            )
        return key, f"{_PREFIX}-{identifier}-{secret}"

    def read(self, *, deployed: bool = False) -> list[StoredKey]:
        """All keys, revoked ones included, oldest first.

        Args:
            deployed: the deployment is known to exist, so that a ledger or table that is not there is an error; else
                there are no keys yet.

        Raises:
            StorageError: they cannot be read.
        """
        if self._database.missing and not deployed:
            return []
        with self._database.errors(), self._database.engine(write=False).begin() as connection:
            if not inspect(connection).has_table(api_keys.name):
                if deployed:
                    raise StorageError(f"{self._database} has lost its table of API keys; put the latest ledger back")
                return []
            return [_stored(row) for row in connection.execute(select(api_keys).order_by(api_keys.c.created))]

    def revoke(self, identifier: str) -> ApiKey:
        """End a key; of no effect where it was revoked before.

        Raises:
            InvalidValueError: there is no such key.
            StorageError: it cannot be written.
        """
        found = next((stored.key for stored in self.read() if stored.key.id == identifier), None)
        if found is None:
            raise InvalidValueError(f"there is no key {identifier!r}; `reticent keys list` names them")
        with self._database.errors(), self._database.engine(write=True).begin() as connection:
            connection.execute(
                update(api_keys)
                .where(api_keys.c.id == identifier, api_keys.c.revoked.is_(None))
                .values(revoked=int(time.time()))
            )
        return found


def authenticate(text: str, keys: Sequence[StoredKey]) -> ApiKey | None:
    """The live key whose text this is, or None; digests are compared in constant time."""
    prefix, _, rest = text.partition("-")
    identifier, _, secret = rest.partition("-")
    stored = next((stored for stored in keys if stored.key.id == identifier), None)
    salt, digest = (stored.salt, stored.digest) if stored else (bytes(_SALT_BYTES), bytes(32))
    matches = hmac.compare_digest(_digest(salt, secret), digest)
    if not matches or stored is None or prefix != _PREFIX or stored.key.revoked is not None:
        return None
    return stored.key


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode(errors="surrogatepass")).digest()


def _stored(row: Row[Any]) -> StoredKey:
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    key = ApiKey(row.id, row.name, scopes, row.tokens_per_minute, row.total_tokens, row.created, row.revoked)
    return StoredKey(key, bytes(row.salt), bytes(row.hash))
