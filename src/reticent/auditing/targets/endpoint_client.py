"""One OpenAI-compatible completions server: its address, its model's name, the key, and whether it still answers.

* Nothing but the address named by the user is contacted; neither texts nor the key enter a message.
* A request that times out, or is answered 429 or 5xx, is repeated after the time the server asks for, or after a time
  that doubles. When one request has used up its attempts, when the server says that what may be spent there is spent,
  or when it refuses the key after it had taken it, the server counts as gone: nothing more is sent.
"""

import os
import threading
from dataclasses import dataclass
from typing import Any

import httpx

from reticent.auditing.targets.http_retries import RetryingClient, ServerGoneError
from reticent.errors import EndpointError

API_KEY_VARIABLE = "OPENAI_API_KEY"
_ABOUT_THE_REQUEST = (400, 413, 414, 422, 429)
"""Statuses of a refusal that is of one request, not of the one who asks; 429 comes here where it blames a field."""
_REFUSED_KEY = (401, 403)


@dataclass(frozen=True)
class EndpointSettings:
    """Settings of requests to an endpoint.

    Attributes:
        url: of the server, with or without `/v1` or `/v1/completions`.
        model: the model's name there; by default the only one the server lists.
        api_key_variable: the environment variable that holds the key; without it no key is sent.
        timeout_s: seconds that one request may take.
        attempts: how often one request is made at most.
        concurrency: requests under way at the same time.
        num_places: places of each text that are asked about one by one, at most.
    """

    url: str
    model: str | None = None
    api_key_variable: str = API_KEY_VARIABLE
    timeout_s: float = 60.0
    attempts: int = 5
    concurrency: int = 4
    num_places: int = 64


class RefusedRequestError(Exception):
    """The server answered, and will not do what one request asks; the message has the status alone."""


class EndpointClient:
    """Asks one model of one server; safe to use from several threads.

    Attributes:
        url: of the completions.
        model: the model's name.
        concurrency: requests that may be under way at the same time.
        incomplete: why nothing more is sent, once the server counts as gone.
    """

    def __init__(self, settings: EndpointSettings, client: RetryingClient | None = None) -> None:
        """Ask the server for its model, unless it is named.

        Raises:
            EndpointError: it cannot be reached, refuses, or lists no model or several.
        """
        base = settings.url.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        self.url = f"{base}/v1/completions"
        self.concurrency = settings.concurrency
        self.incomplete: str | None = None
        self._has_answered = False
        self._lock = threading.Lock()
        self._client = client or retrying_client(settings)
        self.model = settings.model or self._only_model(f"{base}/v1/models")

    def complete(self, **fields: Any) -> httpx.Response:
        """Ask for a completion with these fields beside the model's name; the answer has status 200.

        Raises:
            ServerGoneError: the server has stopped answering, now or before.
            RefusedRequestError: it refuses this request.
            EndpointError: it never answered one: the address, the model's name or the key is wrong.
        """
        if self.incomplete is not None:
            raise ServerGoneError(f"not sent: {self.incomplete}")
        try:
            answer = self._client.post(self.url, {"model": self.model, **fields})
            if answer.status_code in _ABOUT_THE_REQUEST:
                raise RefusedRequestError(f"status {answer.status_code}")
            if not answer.is_success:
                self._refuse(answer)
        except ServerGoneError as gone:
            self.stop(str(gone))
            raise
        self._has_answered = True
        return answer

    def stop(self, reason: str) -> None:
        """Send nothing more, for this reason; the first reason stays."""
        with self._lock:
            self.incomplete = self.incomplete or f"the server had stopped answering ({reason})"

    def _refuse(self, answer: httpx.Response) -> None:
        if self._has_answered:
            raise ServerGoneError(f"status {answer.status_code}, after it had answered before")
        self._refuse_bad_key(answer)
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise EndpointError(f"{self.url}: not found (404); check the address and the model name {self.model!r}")
        raise RefusedRequestError(f"status {answer.status_code}")

    def _refuse_bad_key(self, answer: httpx.Response) -> None:
        if answer.status_code in _REFUSED_KEY:
            raise EndpointError(
                f"{self.url} refuses access (status {answer.status_code}); put the API key into the environment "
                "variable that --api-key-env names"
            )

    def _only_model(self, url: str) -> str:
        try:
            answer = self._client.get(url)
        except ServerGoneError as gone:
            raise EndpointError(f"{self.url}: {gone}; nothing was scored") from None
        self._refuse_bad_key(answer)
        try:
            names = [str(entry["id"]) for entry in answer.json()["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise EndpointError(f"{url} lists these models: {listed}; name the one to audit with --model")
        return names[0]


def retrying_client(settings: EndpointSettings, transport: httpx.BaseTransport | None = None) -> RetryingClient:
    """A client with the endpoint's key, timeout and attempts; `transport` replaces the network in tests."""
    key = os.environ.get(settings.api_key_variable, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = httpx.Client(headers=headers, timeout=settings.timeout_s, transport=transport)
    return RetryingClient(client, settings.attempts)
