"""Identifiers of requests and answers, and the arrival time of the request that is being served.

| name | form | made by | appears in |
|---|---|---|---|
| request id | `req-…`, or the client's own | the client if well-formed, or the server | header, log |
| answer id | `cmpl-…`, `chatcmpl-…`, with `-0`, `-1`, … for each answer | the server | response, log, ledger |

The ledger never holds the request id, because a client can send the same one twice.
"""

import re
import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers

REQUEST_ID_HEADER: Final = "x-request-id"
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=@/+-]{0,127}")


def make_identifier(prefix: str) -> str:
    """Make a fresh identifier, unique to all practical purposes."""
    return f"{prefix}-{secrets.token_hex(12)}"


@dataclass(frozen=True)
class RequestTrace:
    """A request's identifier, and when it arrived, in seconds of `time.perf_counter`."""

    id: str = field(default_factory=lambda: make_identifier("req"))
    arrived: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, headers: Headers) -> "RequestTrace":
        """The trace of a request that arrives now; its id is fresh where none came, several, or a malformed one."""
        given = headers.getlist(REQUEST_ID_HEADER)
        return cls(given[0]) if len(given) == 1 and _WELL_FORMED.fullmatch(given[0]) else cls()


TRACE: Final[ContextVar[RequestTrace | None]] = ContextVar("request_trace", default=None)
"""The request that is being served, in its task and in threads it waits for."""


def current_trace() -> RequestTrace:
    """The trace of the request that is being served, or a fresh one outside of any."""
    return TRACE.get() or RequestTrace()
