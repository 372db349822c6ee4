"""The files of the web pages, and the headers that lock each page to its own server.

Contract: a page loads scripts, styles and pictures from this server alone, sends nothing anywhere else, cannot be
framed, and holds no data; those come from routes that ask for a key.
"""

from functools import cache
from importlib.resources import files
from typing import Final

from fastapi.responses import Response

from reticent.server.errors import ApiError

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_HTML: Final = "text/html; charset=utf-8"
_STYLE: Final = "text/css; charset=utf-8"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_MEDIA_TYPES: Final = {
    "index.html": _HTML,
    "dashboard.css": _STYLE,
    "dashboard.js": _SCRIPT,
    "elements.js": _SCRIPT,
    "icon.svg": "image/svg+xml",
    "try.html": _HTML,
    "try.css": _STYLE,
    "try.js": _SCRIPT,
    "refusals.js": _SCRIPT,
}


def page_file(name: str) -> Response:
    """One file of the pages.

    Raises:
        ApiError: status 404, there is none of that name.
    """
    media_type = _MEDIA_TYPES.get(name)
    if media_type is None:
        raise ApiError(404, "Not Found")
    return Response(_content(name), media_type=media_type, headers=_HEADERS)


@cache
def _content(name: str) -> bytes:
    return files("reticent.server.dashboard").joinpath(name).read_bytes()
