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
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypedDict

from sqlalchemy import Row, insert, select, update

from reticent._validate import integer_in_range
from reticent.errors import InvalidValueError, ReticentError, StorageError
from reticent.ledger.database import Database
from reticent.ledger.schema import api_keys, complete_keys, present_columns

_PREFIX: Final = "rtc"
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
_MAX_NAME: Final = 100
_YEAR_10000: Final = 253_402_300_800


class Scope(StrEnum):
    """The scope of a key."""

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
        expires: from then on it is refused; seconds since 1970, or None.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    tokens_per_minute: int | None
    total_tokens: int | None
    created: int
    revoked: int | None
    expires: int | None = None

    def has_expired(self, now: float) -> bool:
        """True if its time is over at `now`, seconds since 1970."""
        return self.expires is not None and not now < self.expires

    def is_live(self, now: float) -> bool:
        """True if it is accepted at `now`, seconds since 1970."""
        return self.revoked is None and not self.has_expired(now)


class KeyChanges(TypedDict, total=False):
    """Changes to a key; see `ApiKey`."""

    name: str
    tokens_per_minute: int | None
    total_tokens: int | None
    expires: int | None


class ExpiredKeyError(ReticentError):
    """The key is right, and its time is over."""


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
        expires: int | None = None,
    ) -> tuple[ApiKey, str]:
        """Make a key; return it and its text, which is shown once and kept nowhere.

        Raises:
            InvalidValueError: no name, no scope, a quota below 1, or an end that is not to come.
            StorageError: it cannot be written.
        """
        if not scopes:
            raise InvalidValueError("a key needs a scope: generate, admin or both")
        identifier, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        created = int(time.time())
        key = ApiKey(identifier, name, frozenset(scopes), tokens_per_minute, total_tokens, created, None, expires)
        _require_possible(key, created)
        salt = secrets.token_bytes(_SALT_BYTES)
        self._database.create_file()
        with self._database.transaction(write=True) as connection:
            complete_keys(connection)
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
                    expires=key.expires,
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
        with self._database.transaction(write=False) as connection:
            columns = present_columns(connection, api_keys)
            if not columns:
                if deployed:
                    raise StorageError(f"{self._database} has lost its table of API keys; put the latest ledger back")
                return []
            return [
                _row_to_key(row)
                for row in connection.execute(select(*columns).order_by(api_keys.c.created, api_keys.c.id))
            ]

    def find(self, text: str) -> ApiKey:
        """The one key whose id begins with a text; a whole id, or a key's own text, names its key.

        Raises:
            InvalidValueError: there is none, or there are several.
            StorageError: they cannot be read.
        """
        # Of a key's own text no more than the id is kept, as messages repeat it.
        begin = text.split("-")[1] if text.startswith(f"{_PREFIX}-") else text
        keys = [stored.key for stored in self.read()]
        matching = [key for key in keys if begin and key.id.startswith(begin)]
        exact = [key for key in matching if key.id == begin]
        if not matching:
            raise InvalidValueError(f"there is no key {begin!r}; `reticent keys list` names them")
        if not exact and len(matching) > 1:
            several = ", ".join(f"{key.id} ({key.name})" for key in matching)
            raise InvalidValueError(
                f"{begin!r} begins the ids of several keys: {several}; give more of the one you mean"
            )
        return (exact or matching)[0]

    def revoke(self, text: str) -> ApiKey:
        """End the key that `find` gives for a text; of no effect where it was revoked before.

        Raises:
            InvalidValueError, StorageError: as for `find`; or it cannot be written.
        """
        found = self.find(text)
        with self._database.transaction(write=True) as connection:
            connection.execute(
                update(api_keys)
                .where(api_keys.c.id == found.id, api_keys.c.revoked.is_(None))
                .values(revoked=int(time.time()))
            )
        return found

    def change(self, text: str, changes: KeyChanges) -> ApiKey:
        """Change the key that `find` gives for a text; return it as it is now. Its secret and scopes stay.

        Raises:
            InvalidValueError: as for `find` and `create`; nothing is changed, or the key was revoked.
            StorageError: it cannot be read or written.
        """
        found = self.find(text)
        if not changes:
            raise InvalidValueError("say what to change: a name, a quota or an expiry")
        changed = replace(found, **changes)
        _require_possible(changed, int(time.time()) if "expires" in changes else 0)
        with self._database.transaction(write=True) as connection:
            complete_keys(connection)
            of_key = update(api_keys).where(api_keys.c.id == found.id, api_keys.c.revoked.is_(None))
            if connection.execute(of_key.values(**changes)).rowcount != 1:
                raise InvalidValueError(f"key {found.id} is revoked, and stays so; make a new one")
        return changed


def authenticate(text: str, keys: Sequence[StoredKey], now: float | None = None) -> ApiKey | None:
    """The live key whose text this is, or None.

    Args:
        text: what a client sent.
        keys: all keys.
        now: seconds since 1970; the system's time unless given.

    Raises:
        ExpiredKeyError: it is the text of a key that has expired.
    """
    key = identify(text, keys)
    if key is None or key.revoked is not None:
        return None
    if key.has_expired(time.time() if now is None else now):
        raise ExpiredKeyError("this API key has expired")
    return key


def identify(text: str, keys: Sequence[StoredKey]) -> ApiKey | None:
    """The key whose text this is, ended or not, or None; digests are compared in constant time."""
    prefix, _, rest = text.partition("-")
    identifier, _, secret = rest.partition("-")
    stored = next((stored for stored in keys if stored.key.id == identifier), None)
    salt, digest = (stored.salt, stored.digest) if stored else (bytes(_SALT_BYTES), bytes(32))
    matches = hmac.compare_digest(_digest(salt, secret), digest)
    return stored.key if matches and stored is not None and prefix == _PREFIX else None


def _require_possible(key: ApiKey, now: int) -> None:
    """Check what an operator may choose; an expiry must come after `now`."""
    if not 1 <= len(key.name) <= _MAX_NAME or not key.name.isprintable():
        raise InvalidValueError(f"a key's name must have 1 to {_MAX_NAME} printable characters, got {key.name!r}")
    for what, quota in (("tokens-per-minute", key.tokens_per_minute), ("total-tokens", key.total_tokens)):
        if quota is not None:
            integer_in_range(what, quota, 1, 2**62)
    if key.expires is not None and not now < key.expires < _YEAR_10000:
        raise InvalidValueError(
            "a key can only expire in the future, before the year 10000; `reticent keys revoke` ends it at once"
        )


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode(errors="surrogatepass")).digest()


def _row_to_key(row: Row[Any]) -> StoredKey:
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    expires = getattr(row, "expires", None)
    key = ApiKey(row.id, row.name, scopes, row.tokens_per_minute, row.total_tokens, row.created, row.revoked, expires)
    return StoredKey(key, bytes(row.salt), bytes(row.hash))
