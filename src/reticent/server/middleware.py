"""Middleware of every request: an identifier, a log line, and a body that is whole before the application sees it."""

import asyncio
import ipaddress
import logging
import time
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reticent.server.connections import OVER_LIMIT
from reticent.server.errors import (
    CLIENT_LEFT,
    ApiError,
    body_too_slow,
    client_left,
    internal_error,
    name_refusal,
    shutting_down,
    too_many_connections,
)
from reticent.server.metering import METER, KeyMeter
from reticent.server.metrics import Metrics
from reticent.server.request_trace import REQUEST_ID_HEADER, TRACE, RequestTrace
from reticent.server.settings import ClientAddresses

logger = logging.getLogger("reticent.server")

_UNKNOWN_ROUTE: Final = "other"
_PROBES: Final = ("/health", "/healthz", "/readyz")
_DISCARD_FACTOR: Final = 16
_FIRST_REFUSAL: Final = 400


class AccessLog:
    """Names and counts each request and logs one line when it is over; routes add to `scope["state"]["log"]`.

    The client's `X-Request-Id` names a request where it is well-formed. What the application fails to handle is logged
    here, under that name, and answered with status 500.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, addresses: ClientAddresses) -> None:
        self._app = app
        self._metrics = metrics
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace, status = RequestTrace.of(Headers(scope=scope)), CLIENT_LEFT
        fields: dict[str, Any] = {"request_id": trace.id}
        scope.setdefault("state", {})["log"] = fields
        # Not set back: what the server says of this request afterwards is said in the same task.
        TRACE.set(trace)

        async def send_observing_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = trace.id
                meter: KeyMeter | None = scope["state"].get(METER)
                if meter is not None and (rate := meter.rate()) is not None:
                    headers.update(rate.headers())
            await send(message)

        try:
            await self._serve(scope, receive, send_observing_status)
        except asyncio.CancelledError:
            # Nobody but the server cancels a request: it is stopping, and has waited for as long as it may.
            if status == CLIENT_LEFT:
                await shutting_down().send(scope, receive, send_observing_status)
        except Exception:
            if status != CLIENT_LEFT:
                # The answer has begun. The server logs this, and closes the connection.
                status = 500
                raise
            logger.exception("a request failed", extra={"request_id": trace.id})
            await internal_error().send(scope, receive, send_observing_status)
        finally:
            self._note(scope, status, time.perf_counter() - trace.arrived)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["state"].get(OVER_LIMIT) and scope["path"] not in _PROBES:
            await too_many_connections().send(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request that is over, and log it."""
        fields = scope["state"]["log"]
        if status == CLIENT_LEFT:
            name_refusal(scope, client_left())
        named = {ClientAddresses.NEVER: False, ClientAddresses.ALWAYS: True}
        if named.get(self._addresses, status >= _FIRST_REFUSAL or "refusal" in fields):
            fields["client"] = _address(scope)
        route = getattr(scope.get("route"), "path", _UNKNOWN_ROUTE)
        self._metrics.count_request(route, status, seconds)
        if "refusal" in fields:
            self._metrics.count_refusal(fields["refusal"])
        if route not in _PROBES:
            measured = {"route": route, "status": status, "milliseconds": round(1000 * seconds, 1)}
            logger.info("request", extra=measured | fields)


class HeadAsGet:
    """Answers HEAD as GET, without the body: same status, same headers, same log line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, without_body)


def _address(scope: Scope) -> str | None:
    """The client's address; None where a proxy named something else."""
    host = (scope.get("client") or ("",))[0]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


class RequestBody:
    """Reads a request's body before the application does; refuses one that is too large (413) or too slow (408).

    A body that is not much too large is read to its end, since a client that is still writing would not see the answer.
    The application never sees the body of a client that left before it was whole.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            await body_too_slow(self._seconds).send(scope, receive, send)
            return
        except ApiError as refusal:
            await refusal.send(scope, receive, send)
            return
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The body.

        Raises:
            ApiError: it is too large, or the client left.
        """
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > _DISCARD_FACTOR * self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise client_left()
            size += len(message.get("body", b""))
            if size <= self._max_bytes:
                chunks.append(message.get("body", b""))
            elif size > _DISCARD_FACTOR * self._max_bytes:
                raise self._too_large()
            more = message.get("more_body", False)
        if size > self._max_bytes:
            raise self._too_large()
        return b"".join(chunks)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The body is larger than the {self._max_bytes} bytes that are taken here.",
            code="request_too_large",
            headers={"Connection": "close"},
        )
