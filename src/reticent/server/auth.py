"""Authentication and authorisation: bearer keys with scopes.

Contract. A deployment that has, or ever had, a key serves only requests with a live one; where its keys cannot be read,
or are gone, it serves nobody. A deployment that never had a key serves everyone, which is why the server then binds to
loopback alone; names of other hosts are refused there, so that no web page can reach it through a name it controls, and
so is whatever a proxy says it forwards. A revocation is in force within a second.
"""

import asyncio
import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from reticent.errors import DeploymentStateError, ReticentError
from reticent.ledger.api_keys import ApiKey, ExpiredKeyError, KeyTable, Scope, StoredKey, authenticate, identify
from reticent.server.errors import ApiError
from reticent.server.metering import METER

_FRESH_SECONDS: Final = 0.5
_FORWARDING: Final = frozenset(
    ("forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip")
)

logger = logging.getLogger("reticent.server")

bearer = HTTPBearer(auto_error=False, description="A key made by `reticent keys create`.")


class KeyDirectory:
    """The deployment's keys, read again when they are older than half a second; safe to use from several threads.

    Args:
        table: the keys.
        had_keys: True if the deployment is known to have had a key, so that an empty table is an error; set once
            a key is read.
        clock: seconds, monotonic.
    """

    def __init__(self, table: KeyTable, had_keys: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._had_keys = had_keys
        self._is_readable = True
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Sequence[StoredKey] = ()
        self._read_at = -float("inf")

    def current(self) -> Sequence[StoredKey]:
        """All keys, revoked ones included.

        Raises:
            DeploymentStateError: there were keys, and there are none.
            StorageError: they cannot be read.
        """
        with self._lock:
            if not self._clock() - self._read_at < _FRESH_SECONDS:
                self._keys = self._read()
                self._read_at = self._clock()
            return self._keys

    def _read(self) -> Sequence[StoredKey]:
        try:
            keys = self._table.read(deployed=True)
            if not keys and self._had_keys:
                raise DeploymentStateError(
                    "this deployment has had API keys, and its ledger holds none: another ledger was put in its place, "
                    "or keys were deleted. Put the latest ledger back"
                )
        except ReticentError as error:
            if self._is_readable:
                logger.error("API keys cannot be read; requests are refused meanwhile: %s", error)
            self._is_readable = False
            raise
        self._had_keys = self._had_keys or bool(keys)
        self._is_readable = True
        return keys

    async def read(self) -> Sequence[StoredKey]:
        """The same for the event loop, which does not wait for the database.

        Raises:
            DeploymentStateError, StorageError: as for `current`.
        """
        is_fresh = self._clock() - self._read_at < _FRESH_SECONDS
        return self.current() if is_fresh else await asyncio.to_thread(self.current)


def is_loopback(host: str) -> bool:
    """True if a name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host_name(request: Request) -> str:
    """The host of the request's Host header, without a port."""
    host = request.headers.get("host", "")
    return host if host.endswith("]") else host.partition(":")[0] if host.count(":") < 2 else host.rpartition(":")[0]


def _is_forwarded(request: Request) -> bool:
    """True if a proxy says that it passes this request on for somebody else."""
    return any(name in _FORWARDING or name.startswith("x-forwarded-") for name in request.headers)


def _require_local(request: Request) -> None:
    """Refuse what may not come from this machine, where there are no keys."""
    if not is_loopback(_host_name(request)):
        raise ApiError(
            403,
            "Without API keys this server answers to loopback names only.",
            kind="permission_error",
            reason="foreign_host",
        )
    if _is_forwarded(request):
        raise ApiError(
            403,
            "Without API keys this server answers nothing that a proxy forwards. Make a key with "
            "`reticent keys create`.",
            kind="permission_error",
            reason="forwarded",
        )


async def _identify(request: Request, credentials: HTTPAuthorizationCredentials | None) -> ApiKey | None:
    directory: KeyDirectory = request.app.state.service.keys
    try:
        keys = await directory.read()
    except ReticentError:
        raise ApiError(
            503,
            "API keys cannot be read at the moment. Try again later.",
            kind="server_error",
            retry_after=5,
            reason="keys_unreadable",
        ) from None
    if not keys:
        _require_local(request)
        return None
    if credentials is None:
        raise _unauthorised("No API key was given; send it as a bearer token.", "invalid_api_key", "no_api_key")
    state = request.scope["state"]
    holder = identify(credentials.credentials, keys)
    if holder is not None:
        state["log"]["key_id"] = holder.id
    try:
        key = authenticate(credentials.credentials, keys)
    except ExpiredKeyError:
        raise _unauthorised(
            "This API key has expired. Ask the operator for another, or for more time.", "expired_api_key"
        ) from None
    if key is None:
        reason = "invalid_api_key" if holder is None else "revoked_api_key"
        raise _unauthorised("That API key is not valid.", "invalid_api_key", reason)
    state[METER] = request.app.state.service.meters.of(key)
    return key


def _unauthorised(message: str, code: str, reason: str | None = None) -> ApiError:
    return ApiError(401, message, code=code, reason=reason, headers={"WWW-Authenticate": "Bearer"})


def _with_scope(scope: Scope) -> Callable[..., object]:
    async def dependency(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> ApiKey | None:
        key = await _identify(request, credentials)
        if key is not None and scope not in key.scopes:
            raise ApiError(
                403,
                f"This API key has no scope {scope.value!r}.",
                kind="permission_error",
                reason="missing_scope",
            )
        return key

    return dependency


Generating = Annotated[ApiKey | None, Depends(_with_scope(Scope.GENERATE))]
"""The key of a request that asks for text; None on a loopback server without keys."""
Administrating = Annotated[ApiKey | None, Depends(_with_scope(Scope.ADMIN))]
"""The key of a request for metrics or the dashboard's data."""
