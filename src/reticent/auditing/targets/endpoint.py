"""A model behind an OpenAI-compatible server as a scorer: prompt log-probabilities through `/v1/completions`.

The text is sent as a prompt with `echo`, and the server says how probable each of its tokens was. Contract:

* Nothing but the endpoint named by the user is contacted, and neither texts nor the API key enter a message.
* The server tokenises: its first token has a score only if the server puts something before it, no end-of-text token is
  scored, and a text longer than the template's limit is scored up to it.
* A request that times out, or is answered 429 or 5xx, is repeated after the time the server asks for, or after a time
  that doubles. When one text has used up its attempts the server counts as gone: no further text is sent, and every
  text without a score has its reason in `failures`. What was scored before is kept.

The distribution over the vocabulary stays hidden: `mu`, `sigma2` and `entropy` are NaN, and a rank is 0 or unknown.
"""

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from reticent.auditing.canaries.extraction import ExtractionTarget, begins_with_secret
from reticent.auditing.targets.http_retries import RetryingClient, ServerGoneError
from reticent.errors import EndpointError
from reticent.protocols import TokenSignals
from reticent.text.corpus import text_hash
from reticent.text.template import TEXT_FIELD, TextTemplate

API_KEY_VARIABLE = "OPENAI_API_KEY"
_PROBE = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all."
_UNKNOWN_RANK = -1
_NO_LOGPROBS = (
    "{url} returns no log-probabilities of the prompt: it must support `echo` with `logprobs` on /v1/completions "
    "(vLLM does); a server without them cannot be audited"
)


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
    """

    url: str
    model: str | None = None
    api_key_variable: str = API_KEY_VARIABLE
    timeout_s: float = 60.0
    attempts: int = 5
    concurrency: int = 4


class RemoteScorer:
    """Implements `reticent.protocols.Scorer` for a server.

    `fingerprint` covers the address, the model's name, the template and what the model says about a public sentence,
    to the nat: a server can change its weights unseen, and stored scores of other weights must not be used.

    Attributes:
        failures: why a text has no score, by the text's hash.
        incomplete: why no further texts are sent, once the server counts as gone.
    """

    is_white_box = False

    def __init__(
        self, settings: EndpointSettings, template: TextTemplate, client: RetryingClient | None = None
    ) -> None:
        """Ask the server for its model and for a public sentence.

        Raises:
            EndpointError: it cannot be reached, refuses, or returns no log-probabilities of prompts.
        """
        base = settings.url.rstrip("/").removesuffix("/completions").removesuffix("/v1")
        self.url = f"{base}/v1/completions"
        self.template = template
        self.failures: dict[str, str] = {}
        self.incomplete: str | None = None
        self._concurrency = settings.concurrency
        self._asked_for = 0
        self._lock = threading.Lock()
        self._client = client or retrying_client(settings)
        try:
            self.model = settings.model or self._only_model(f"{base}/v1/models")
            probe = self._probe()
        except ServerGoneError as gone:
            raise EndpointError(f"{self.url}: {gone}; nothing was scored") from None
        self.scores_first_token = probe.first_scored == 0
        identity = (self.url, self.model, template.model_dump_json(), f"{probe.signals.logp.sum():.0f}")
        self.fingerprint = hashlib.sha256("\n".join(("reticent endpoint 1", *identity)).encode()).hexdigest()

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """Signals of each text, aligned; None without a scored token or without an answer (see `failures`).

        Raises:
            EndpointError: the server refuses the key, or answers something else than prompt log-probabilities.
        """
        with ThreadPoolExecutor(max_workers=self._concurrency) as pool:
            return list(pool.map(self._score_one, texts))

    def count_emitted(
        self, targets: Sequence[ExtractionTarget], num_samples: int | None, seed: int
    ) -> list[int | None]:
        """See `auditing.canaries.extraction.Extractor`; the server draws the samples, with the seed if it takes one."""
        before = self.template.text.partition(TEXT_FIELD)[0]
        settings = {"n": num_samples or 1, "seed": seed, "temperature": 0.0 if num_samples is None else 1.0}

        def one(target: ExtractionTarget) -> int | None:
            # A token is at least one byte of the text, and one more may be the space before it.
            longest = len(target.secret.encode()) + 1
            body = {"model": self.model, "prompt": before + target.prompt, "max_tokens": longest, **settings}
            try:
                choices = self._client.post(self.url, body).json()["choices"]
                return sum(begins_with_secret(str(choice["text"]), target.secret) for choice in choices)
            except (ServerGoneError, ValueError, KeyError, TypeError):
                return None

        with ThreadPoolExecutor(max_workers=self._concurrency) as pool:
            return list(pool.map(one, targets))

    def _score_one(self, text: str) -> TokenSignals | None:
        if self.incomplete is not None:
            self._note_failure(text, f"not sent: {self.incomplete}")
            return None
        try:
            answer = self._ask(self.template.render(text))
            with self._lock:
                self.failures.pop(text_hash(text), None)
        except ServerGoneError as gone:
            with self._lock:
                self.incomplete = self.incomplete or f"the server had stopped answering ({gone})"
            self._note_failure(text, str(gone))
            return None
        except _RefusedTextError as refusal:
            self._note_failure(text, str(refusal))
            return None
        return answer.signals if answer.signals.num_tokens else None

    def _note_failure(self, text: str, reason: str) -> None:
        with self._lock:
            self.failures[text_hash(text)] = reason

    def _only_model(self, url: str) -> str:
        answer = self._client.get(url)
        self._refuse_bad_key(answer)
        try:
            names = [str(entry["id"]) for entry in answer.json()["data"]]
        except (ValueError, KeyError, TypeError):
            names = []
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise EndpointError(f"{url} lists these models: {listed}; name the one to audit with --model")
        return names[0]

    def _probe(self) -> "_EchoedPrompt":
        """Score a public sentence; a server that cannot generate nothing is asked for one token from here on."""
        try:
            return self._ask(_PROBE)
        except _RefusedTextError:
            self._asked_for = 1
        try:
            return self._ask(_PROBE)
        except _RefusedTextError as refusal:
            raise EndpointError(f"{self.url}: {refusal}, although it is one short sentence") from None

    def _ask(self, prompt: str) -> "_EchoedPrompt":
        body = {"model": self.model, "prompt": prompt, "max_tokens": self._asked_for, "echo": True, "logprobs": 1}
        answer = self._client.post(self.url, {**body, "temperature": 0.0})
        self._refuse_bad_key(answer)
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise EndpointError(f"{self.url}: not found (404); check the address and the model name {self.model!r}")
        if not answer.is_success:
            raise _RefusedTextError(f"the server refused the text with status {answer.status_code}")
        return _parse(self.url, answer, prompt, self._asked_for, self.template.max_tokens)

    def _refuse_bad_key(self, answer: httpx.Response) -> None:
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise EndpointError(
                f"{self.url} refuses access (status {answer.status_code}); put the API key into the environment "
                "variable that --api-key-env names"
            )


class _RefusedTextError(Exception):
    """The server answered, and will not score this text."""


@dataclass(frozen=True)
class _EchoedPrompt:
    signals: TokenSignals
    first_scored: int


def retrying_client(settings: EndpointSettings, transport: httpx.BaseTransport | None = None) -> RetryingClient:
    """A client with the endpoint's key, timeout and attempts; `transport` replaces the network in tests."""
    key = os.environ.get(settings.api_key_variable, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = httpx.Client(headers=headers, timeout=settings.timeout_s, transport=transport)
    return RetryingClient(client, settings.attempts)


def _parse(url: str, answer: httpx.Response, prompt: str, asked_for: int, max_tokens: int) -> _EchoedPrompt:
    """The log-probabilities of the prompt's tokens out of an answer.

    Raises:
        EndpointError: they are not there.
    """
    missing = EndpointError(_NO_LOGPROBS.format(url=url))
    try:
        content = answer.json()
        (choice,) = content["choices"]
        logprobs = choice["logprobs"]
        values = list(logprobs["token_logprobs"])
        top = list(logprobs.get("top_logprobs") or [None] * len(values))
        echoed = str(choice["text"]).startswith(prompt)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise missing from None
    num_prompt = (content.get("usage") or {}).get("prompt_tokens")
    num_tokens = min(num_prompt, len(values)) if isinstance(num_prompt, int) else len(values) - asked_for
    if not echoed or num_tokens < 1:
        raise missing
    values, top = values[: min(num_tokens, max_tokens)], top[: min(num_tokens, max_tokens)]
    first_scored = 1 if values[0] is None else 0
    scored = values[first_scored:]
    if not all(isinstance(value, float | int) for value in scored):
        raise missing
    logp = np.asarray(scored, dtype=np.float64)
    if not np.isfinite(logp).all() or (logp > 0).any():
        raise EndpointError(f"{url} returns log-probabilities that are positive or not finite; it cannot be audited")
    rank = [_rank(value, others) for value, others in zip(logp.tolist(), top[first_scored:], strict=True)]
    hidden = np.full(len(logp), np.nan)
    return _EchoedPrompt(TokenSignals(logp, hidden, hidden, hidden, np.asarray(rank, dtype=np.int64)), first_scored)


def _rank(logp: float, top: Any) -> int:
    """0 where the token is the most likely one; otherwise at least 1, of which 1 is all that is known."""
    if not isinstance(top, dict) or not top:
        return _UNKNOWN_RANK
    return 0 if logp >= max(top.values()) else 1
