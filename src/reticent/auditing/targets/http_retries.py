"""A client that repeats requests while a server is busy, slow or down, up to a number of attempts."""

import email.utils
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx

_BUSY = 429
_RETRIED_STATUSES = (408, _BUSY, 500, 502, 503, 504)
_SPENT = "insufficient_quota"
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_MOST_WAITS = 60


class ServerGoneError(Exception):
    """Every attempt at a request failed; the message says how the last one did, without address or content."""


class RetryingClient:
    """An HTTP client that waits and tries again.

    An answer that says that a budget is spent, or which field of the request is too much, is not waited for. A wait is
    what `Retry-After` asks for (seconds or a date), else 1, 2, 4, ... seconds; never above a minute. Waits that a
    server asks for because its rate is used up (429) are up to 60 and count as no failed attempt. Safe to use from
    several threads.
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
            ServerGoneError: no attempt brought one, or nothing more may be spent there.
        """
        return self._request("POST", url, body)

    def _request(self, method: str, url: str, body: dict[str, Any] | None) -> httpx.Response:
        failed = waited = 0
        while True:
            wait, was_told = min(_FIRST_WAIT_S * 2.0 ** min(failed + waited, 10), _LONGEST_WAIT_S), False
            try:
                answer = self._client.request(method, url, json=body)
            except httpx.TimeoutException:
                failure = "no answer in time"
            except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                failure = f"no connection ({type(error).__name__})"
            else:
                code, blamed = _reason_given(answer)
                if answer.status_code not in _RETRIED_STATUSES or (answer.status_code == _BUSY and blamed):
                    return answer
                failure = f"status {answer.status_code}"
                if code == _SPENT:
                    raise ServerGoneError(f"{failure}: its budget or the key's quota is spent, and waiting is no help")
                told = answer.headers.get("Retry-After")
                wait, was_told = _requested_wait(told, wait), answer.status_code == _BUSY and told is not None
            # To be told to wait, because a rate is used up, is no failure, unless it never ends.
            failed, waited = failed + (not was_told), waited + was_told
            if failed >= self._attempts or waited >= _MOST_WAITS:
                raise ServerGoneError(f"{failure} after {failed + waited} attempts")
            self._sleep(wait)


def _reason_given(answer: httpx.Response) -> tuple[str | None, str | None]:
    """An error's code and the field that it blames, as OpenAI's interface words them; None where there is none."""
    try:
        error = answer.json()["error"]
        return error.get("code"), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None


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
