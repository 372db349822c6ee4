"""Identifiers of requests: the client's own where it is well-formed, a fresh one otherwise."""

import re
import secrets
from typing import Final

from starlette.datastructures import Headers

REQUEST_ID_HEADER: Final = "x-request-id"
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=@/+-]{0,127}")


def fresh_request_id() -> str:
    """A new identifier."""
    return f"req-{secrets.token_hex(12)}"


def request_id_of(headers: Headers) -> str:
    """The identifier that came with a request, or a fresh one where none came, several, or one that is malformed."""
    given = headers.getlist(REQUEST_ID_HEADER)
    return given[0] if len(given) == 1 and _WELL_FORMED.fullmatch(given[0]) else fresh_request_id()
