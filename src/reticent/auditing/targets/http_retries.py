"""A client that repeats requests while a server is busy, slow or down, up to a number of attempts."""

import email.utils
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx

_RETRIED_STATUSES = (408, 429, 500, 502, 503, 504)
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0


class ServerGoneError(Exception):
    """Every attempt at a request failed; the message says how the last one did, without address or content."""


class RetryingClient:
    """An HTTP client that waits and tries again.

    A wait is what `Retry-After` asks for (seconds or a date), else 1, 2, 4, ... seconds; never above a minute. Safe to
    use from several threads.
    """

    def __init__(self, client: httpx.Client, attempts: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._attempts = attempts
        self._sleep = sleep

    def get(self, url: str) -> httpx.Response:
        """GET; see `post`."""
        return self._request("GET", url, None)

    def post(self, url: str, body: dict[str, Any]) -> httpx.Response:
        """POST a JSON object and return the first answer that is not about the server's own state.

        Raises:
            ServerGoneError: no attempt brought one.
        """
        return self._request("POST", url, body)

    def _request(self, method: str, url: str, body: dict[str, Any] | None) -> httpx.Response:
        for attempt in range(self._attempts):
            wait = min(_FIRST_WAIT_S * 2.0**attempt, _LONGEST_WAIT_S)
            try:
                answer = self._client.request(method, url, json=body)
            except httpx.TimeoutException:
                failure = "no answer in time"
            except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                failure = f"no connection ({type(error).__name__})"
            else:
                if answer.status_code not in _RETRIED_STATUSES:
                    return answer
                failure = f"status {answer.status_code}"
                wait = _requested_wait(answer.headers.get("Retry-After"), wait)
            if attempt + 1 < self._attempts:
                self._sleep(wait)
        raise ServerGoneError(f"{failure} after {self._attempts} attempts")


def _requested_wait(header: str | None, otherwise: float) -> float:
    """Seconds that a `Retry-After` header asks for (RFC 9110, section 10.2.3), cut to the longest wait."""
    if header is None:
        return otherwise
    try:
        seconds = float(header)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(header)
        except ValueError:
            return otherwise
        seconds = (when.astimezone(UTC) - datetime.now(UTC)).total_seconds()
    return min(seconds, _LONGEST_WAIT_S) if seconds >= 0 else otherwise
