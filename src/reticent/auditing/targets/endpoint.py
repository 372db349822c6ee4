"""Scorers of a model behind a server: from the log-probabilities of a prompt, or, where it shows only text, none.

With `echo` and `logprobs` the text is sent as a prompt, and the server says how probable each of its tokens was:

* The server tokenises: its first token has a score only if the server puts something before it, no end-of-text token is
  scored, and a text longer than the template's limit is scored up to it.
* When the server counts as gone no further text is sent, and every text without a score has its reason in `failures`.
  What was scored before is kept.

The distribution over the vocabulary stays hidden: `mu`, `sigma2` and `entropy` are NaN, and a rank is 0 or unknown.
"""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from reticent.auditing.targets.endpoint_client import EndpointClient, RefusedRequestError
from reticent.auditing.targets.http_retries import ServerGoneError
from reticent.errors import EndpointError
from reticent.protocols import TokenSignals
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate

PROBE = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all."
"""A public sentence, to find out what a server shows."""
_UNKNOWN_RANK = -1
_NO_LOGPROBS = (
    "{url} returns no log-probabilities of the prompt: it must support `echo` with `logprobs` on /v1/completions "
    "(vLLM does)"
)


Spans = tuple[tuple[int, int], ...]
"""Characters of a prompt, each from the first to behind the last; none for all that is predicted."""


class NoPromptLogprobsError(EndpointError):
    """The server does not say how probable the tokens of a prompt are."""


class ServerScorer(ABC):
    """A scorer of what a server says; it keeps what was answered and why anything was not.

    Attributes:
        client: asks the server.
        template: what it is given of a text.
        failures: why a text has no score, by the text's hash.
        fingerprint: see `reticent.protocols.Scorer`.
    """

    is_white_box = False
    fingerprint: str

    def __init__(self, client: EndpointClient, template: TextTemplate) -> None:
        self.client = client
        self.template = template
        self.failures: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def incomplete(self) -> str | None:
        """The reason why no further texts are sent, once the server counts as gone."""
        return self.client.incomplete

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """Signals of each text, aligned; None without a scored token or without an answer (see `failures`).

        Raises:
            EndpointError: the server answers something else than log-probabilities.
        """
        with ThreadPoolExecutor(max_workers=self.client.concurrency) as pool:
            return list(pool.map(self._score_one, texts))

    @abstractmethod
    def signals(self, text: str) -> TokenSignals:
        """One text's signals.

        Raises:
            ServerGoneError: the server has stopped answering.
            RefusedRequestError: it will not score this text.
            EndpointError: it answers something else than log-probabilities.
        """

    def _score_one(self, text: str) -> TokenSignals | None:
        try:
            signals = self.signals(text)
        except ServerGoneError as gone:
            self._note_failure(text, str(gone))
            return None
        except RefusedRequestError as refusal:
            self._note_failure(text, f"the server refused the text with {refusal}")
            return None
        with self._lock:
            self.failures.pop(text_hash(text), None)
        return signals if signals.num_tokens else None

    def _note_failure(self, text: str, reason: str) -> None:
        with self._lock:
            self.failures[text_hash(text)] = reason


class RemoteScorer(ServerScorer):
    """Implements `reticent.protocols.Scorer` for a server that echoes prompts with log-probabilities.

    `fingerprint` covers the address, the model's name, the template and what the model says about a public sentence,
    to the nat: a server can change its weights unseen, and stored scores of other weights must not be used.
    """

    def __init__(self, client: EndpointClient, template: TextTemplate) -> None:
        """Ask the server for a public sentence.

        Raises:
            NoPromptLogprobsError: it returns no log-probabilities of prompts.
            EndpointError: it cannot be reached, or refuses.
        """
        super().__init__(client, template)
        self._asked_for = 0
        try:
            probe = self._probe()
        except ServerGoneError as gone:
            raise EndpointError(f"{client.url}: {gone}; nothing was scored") from None
        self._num_begin = probe.num_begin
        self.scores_first_token = probe.first_scored <= probe.num_begin
        identity = (client.url, client.model, template.model_dump_json(), f"{probe.signals.logp.sum():.0f}")
        self.fingerprint = hashlib.sha256("\n".join(("reticent endpoint 1", *identity)).encode()).hexdigest()

    def signals(self, text: str) -> TokenSignals:
        """See `ServerScorer.signals`."""
        return self._ask(self.template.render(text), self._answer_spans(text)).signals

    def signals_behind(self, prefix: str, text: str) -> TokenSignals:
        """The signals of a text's own tokens behind a prefix; see `ServerScorer.signals`.

        The same tokens are scored as without the prefix, but for the first, where the server makes one token of the
        prefix's end and the text's beginning: it is of neither.
        """
        prompt = prefix + self.template.render(text)
        answer = self._echo(prompt)
        own = _first_token_of(answer, prompt, self._asked_for, len(prefix))
        most, spans = own.index - self._num_begin + self.template.max_tokens, self._answer_spans(text, len(prefix))
        echoed = _parse(self.client.url, answer, prompt, self._asked_for, most, spans)
        if spans:
            return echoed.signals
        first_scored = own.index + (1 if own.is_shared or not self.scores_first_token else 0)
        return echoed.signals.select(slice(max(0, first_scored - echoed.first_scored), None))

    def _probe(self) -> "_EchoedPrompt":
        """Score a public sentence; a server that cannot generate nothing is asked for one token from here on."""
        try:
            return self._ask(PROBE)
        except RefusedRequestError:
            self._asked_for = 1
        try:
            return self._ask(PROBE)
        except RefusedRequestError as refusal:
            raise NoPromptLogprobsError(
                f"{_NO_LOGPROBS.format(url=self.client.url)}; it refused one short sentence with {refusal}"
            ) from None

    def _ask(self, prompt: str, spans: Spans = ()) -> "_EchoedPrompt":
        answer = self._echo(prompt)
        return _parse(self.client.url, answer, prompt, self._asked_for, self.template.max_tokens, spans)

    def _answer_spans(self, text: str, before: int = 0) -> Spans:
        """The characters of a prompt that are scored, where not all are; the text stands behind `before` others."""
        if not self.template.answer:
            return ()
        return tuple((before + start, before + stop) for start, stop in self.template.spans_scored(text))

    def _echo(self, prompt: str) -> httpx.Response:
        return self.client.complete(prompt=prompt, max_tokens=self._asked_for, echo=True, logprobs=1, temperature=0.0)


class TextOnlyScorer:
    """Implements `reticent.protocols.Scorer` for a server that shows text alone: no text has a score.

    `fingerprint` covers the address, the model's name and the template; nothing else of the model can be known without
    tokens that may have a price.
    """

    is_white_box = False

    def __init__(self, client: EndpointClient, template: TextTemplate) -> None:
        self.client = client
        self.template = template
        identity = ("reticent text endpoint 1", client.url, client.model, template.model_dump_json())
        self.fingerprint = hashlib.sha256("\n".join(identity).encode()).hexdigest()

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """None for each text."""
        return [None] * len(texts)


def open_endpoint(client: EndpointClient, template: TextTemplate) -> RemoteScorer | TextOnlyScorer:
    """The scorer of what a server shows.

    Raises:
        EndpointError: it cannot be reached, or refuses.
    """
    try:
        return RemoteScorer(client, template)
    except NoPromptLogprobsError:
        return TextOnlyScorer(client, template)


@dataclass(frozen=True)
class _EchoedPrompt:
    """A prompt's signals, the index of the first scored token, and the number of tokens before the prompt's own."""

    signals: TokenSignals
    first_scored: int
    num_begin: int


@dataclass(frozen=True)
class _FirstToken:
    index: int
    is_shared: bool


def _first_token_of(answer: httpx.Response, prompt: str, asked_for: int, boundary: int) -> _FirstToken:
    """The first token of an echoed prompt that reaches behind a boundary, and whether it begins before it.

    Tokens are counted back from the prompt's end, since what a server puts before the prompt is among them.

    Raises:
        RefusedRequestError: the tokens do not spell the prompt's end.
    """
    try:
        content = answer.json()
        tokens = [str(token) for token in content["choices"][0]["logprobs"]["tokens"]]
        num_prompt = (content.get("usage") or {}).get("prompt_tokens")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise RefusedRequestError("an answer that does not show the prompt's tokens") from None
    tokens = tokens[: num_prompt if isinstance(num_prompt, int) else len(tokens) - asked_for]
    start, index = len(prompt), len(tokens)
    while index and start > boundary:
        index -= 1
        start -= len(tokens[index])
    if start > boundary or not prompt.endswith("".join(tokens[index:])):
        raise RefusedRequestError("an answer whose tokens do not spell the prompt")
    return _FirstToken(index, start < boundary)


def _parse(
    url: str, answer: httpx.Response, prompt: str, asked_for: int, max_tokens: int, spans: Spans
) -> _EchoedPrompt:
    """The log-probabilities of the prompt's tokens out of an answer.

    Raises:
        NoPromptLogprobsError: they are not there.
        EndpointError: they are none.
    """
    missing = NoPromptLogprobsError(_NO_LOGPROBS.format(url=url))
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
    rank = np.asarray([_rank(*pair) for pair in zip(logp.tolist(), top[first_scored:], strict=True)], dtype=np.int64)
    if spans:
        wanted = _in_spans(url, logprobs.get("text_offset"), len(prompt), len(values), spans)[first_scored:]
        logp, rank = logp[wanted], rank[wanted]
    hidden = np.full(len(logp), np.nan)
    signals = TokenSignals(logp, hidden, hidden, hidden, rank)
    try:
        num_begin = _first_token_of(answer, prompt, asked_for, 0).index
    except RefusedRequestError:
        num_begin = 0
    return _EchoedPrompt(signals, first_scored, num_begin)


def _in_spans(url: str, offsets: Any, num_characters: int, num_tokens: int, spans: Spans) -> NDArray[np.bool_]:
    """The first tokens of a prompt that stand for a character of some spans, bool[num_tokens].

    Raises:
        EndpointError: the server does not say at which character each token begins.
    """
    if not isinstance(offsets, list) or len(offsets) < num_tokens or not all(isinstance(at, int) for at in offsets):
        raise EndpointError(
            f"{url} does not say at which character each token begins (`text_offset`), so that no answer can be scored "
            "alone; leave --answer-key out"
        )
    starts = np.asarray([*offsets, num_characters], dtype=np.int64)
    stops = starts[1 : num_tokens + 1]
    found = np.zeros(num_tokens, dtype=np.bool_)
    for start, stop in spans:
        found |= (starts[:num_tokens] < stop) & (stops > start)
    return found


def _rank(logp: float, top: Any) -> int:
    """0 where the token is the most likely one; otherwise at least 1, of which 1 is all that is known."""
    if not isinstance(top, dict) or not top:
        return _UNKNOWN_RANK
    return 0 if logp >= max(top.values()) else 1
