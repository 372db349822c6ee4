"""What wraps every request: an identifier and a log line, and a limit on the body."""

import logging
import secrets
import time
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reticent.server.errors import CLIENT_LEFT, ApiError
from reticent.server.metrics import Metrics

logger = logging.getLogger("reticent.server")

_UNKNOWN_ROUTE: Final = "other"
_QUIET_ROUTES: Final = ("/healthz", "/readyz")
_DISCARD_FACTOR: Final = 16


class AccessLog:
    """Names and counts each request and logs one line when it is over; routes add to `scope["state"]["log"]`."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), CLIENT_LEFT
        fields: dict[str, Any] = {"request_id": f"req-{secrets.token_hex(12)}"}
        scope.setdefault("state", {})["log"] = fields

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = fields["request_id"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except Exception:
            status = 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", _UNKNOWN_ROUTE)
            self._metrics.answered(route, status)
            if route not in _QUIET_ROUTES:
                milliseconds = round(1000 * (time.perf_counter() - started), 1)
                logger.info("request", extra={"route": route, "status": status, "milliseconds": milliseconds, **fields})


class BodyLimit:
    """Reads a request's body before the application does, and refuses one that is too large with status 413.

    A body that is not much too large is read to its end, since a client that is still writing would not see the answer.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        body = await self._read(scope, receive)
        if body is None:
            await self._refusal().response()(scope, receive, send)
            return
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body, or None where it is too large."""
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > _DISCARD_FACTOR * self._max_bytes:
            return None
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            size += len(message.get("body", b""))
            if size <= self._max_bytes:
                chunks.append(message.get("body", b""))
            elif size > _DISCARD_FACTOR * self._max_bytes:
                return None
            more = message.get("more_body", False)
        return b"".join(chunks) if size <= self._max_bytes else None

    def _refusal(self) -> ApiError:
        return ApiError(
            413,
            f"The body is larger than the {self._max_bytes} bytes that are taken here.",
            code="request_too_large",
            headers={"Connection": "close"},
        )
