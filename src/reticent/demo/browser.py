"""Opening a page in the user's browser as soon as the server that has it answers."""

import http.client
import os
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser

_SECONDS_TO_WAIT = 120.0
_SECONDS_BETWEEN = 0.5


def has_screen() -> bool:
    """True where a browser would open a window; in a bare terminal it would take the terminal over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_when_ready(probe: str, page: str) -> threading.Thread | None:
    """Open a page once its server answers the probe, while the caller continues; None where there is no screen."""
    if not has_screen():
        return None
    thread = threading.Thread(target=_open, args=(probe, page), daemon=True)
    thread.start()
    return thread


def _open(probe: str, page: str) -> None:
    end = time.monotonic() + _SECONDS_TO_WAIT
    while time.monotonic() < end:
        if _answers(probe):
            webbrowser.open(page)
            return
        time.sleep(_SECONDS_BETWEEN)


def _answers(probe: str) -> bool:
    try:
        with urllib.request.urlopen(probe, timeout=5) as response:  # noqa: S310 - the caller's own server
            return bool(response.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False
