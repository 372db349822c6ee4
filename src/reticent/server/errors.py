"""Errors as OpenAI's interface shapes them: `{"error": {"message", "type", "param", "code"}}` and a status.

Whatever a client sends, it gets one of these and never a traceback. Messages name what was wrong and what would be
right; they never repeat a prompt or a key.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

CLIENT_LEFT: Final = 499


class ApiError(Exception):
    """An error that is sent to the client.

    Args:
        status: the HTTP status.
        message: one or two sentences.
        kind: OpenAI's error type.
        param: the field at fault.
        code: OpenAI's machine-readable code.
        retry_after: seconds after which the same request may succeed. Without it, clients are told that asking again is
            of no use, unless the server itself failed.
        headers: further headers.
        reason: the cause as logs and metrics name it; the code unless given, or the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or code or _name_of(status)
        self.body = error_body(message, kind, param, code)
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)
        elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
            self.headers["X-Should-Retry"] = "false"

    def response(self) -> JSONResponse:
        """The response a client gets."""
        return JSONResponse(self.body, self.status, self.headers)

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with this error, and name its reason in the request's log line."""
        name_refusal(scope, self)
        await self.response()(scope, receive, send)


def name_refusal(scope: Scope, error: ApiError) -> None:
    """Put an error's reason into the log line of its request."""
    scope.get("state", {}).setdefault("log", {})["refusal"] = error.reason


def _name_of(status: int) -> str:
    try:
        return HTTPStatus(status).name.lower()
    except ValueError:
        return "client_left" if status == CLIENT_LEFT else "refused"


def error_body(
    message: str, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict[str, dict[str, str | None]]:
    """The JSON object of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def budget_exhausted() -> ApiError:
    """The deployment's budget does not cover another token."""
    return ApiError(
        429,
        "The privacy budget of this deployment is spent; no further token can be released. "
        "Ask the operator: waiting does not help.",
        kind="insufficient_quota",
        code="insufficient_quota",
        reason="budget",
    )


def quota_exhausted() -> ApiError:
    """The key's own quota of tokens is used up."""
    return ApiError(
        429,
        "This API key has used up its quota of tokens. Ask the operator for another quota: waiting does not help.",
        kind="insufficient_quota",
        code="insufficient_quota",
        reason="quota",
    )


def key_ended() -> ApiError:
    """The key was revoked or has expired while its answers were under way."""
    return ApiError(
        401, "This API key was revoked or has expired, and its answers end.", code="invalid_api_key", reason="key_ended"
    )


def storage_failed() -> ApiError:
    """The ledger cannot be written, so nothing may be shown."""
    return ApiError(
        503,
        "The ledger cannot be written at the moment, so no token can be released. Try again later.",
        kind="server_error",
        code="ledger_unavailable",
        retry_after=5,
    )


def shutting_down() -> ApiError:
    """The server is stopping."""
    return ApiError(503, "The server is shutting down.", kind="server_error", code="shutting_down", retry_after=10)


def queue_full() -> ApiError:
    """Too much waits for this key already."""
    return ApiError(
        429,
        "Too many requests wait already. Try again later.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=2,
        reason="queue",
    )


def client_left() -> ApiError:
    """Nobody reads this; its status, which nginx uses too, is for logs and metrics."""
    return ApiError(CLIENT_LEFT, "The client closed the connection.")


def internal_error() -> ApiError:
    """A defect; the log has it."""
    return ApiError(
        500, "The server failed to answer this request; its log says why.", kind="server_error", code="internal_error"
    )


def head_too_slow(seconds: float) -> ApiError:
    """The client did not send its request's head in time."""
    return ApiError(
        408,
        f"The request's head did not arrive within {seconds:g} seconds.",
        code="request_timeout",
        retry_after=1,
        reason="slow_head",
    )


def body_too_slow(seconds: float) -> ApiError:
    """The client did not send its request's body in time."""
    return ApiError(
        408,
        f"The request's body did not arrive within {seconds:g} seconds.",
        code="request_timeout",
        retry_after=1,
        headers={"Connection": "close"},
        reason="slow_body",
    )


def malformed_request() -> ApiError:
    """Make the error for bytes that are not HTTP/1.1."""
    return ApiError(400, "What was sent is not a valid HTTP/1.1 request.", reason="malformed_http")


def too_many_connections() -> ApiError:
    """The connection is one too many."""
    return ApiError(
        503,
        "This server has too many connections at the moment. Try again later.",
        kind="server_error",
        code="too_many_connections",
        retry_after=2,
        headers={"Connection": "close"},
    )
