"""Texts that a server writes after prompts, kept as they come: requests may have a price, so that none is made twice.

Some servers refuse several answers to one prompt, or a seed. What they refuse is left out of later requests; several
answers are then several requests. A deployment of Reticent says for each answer which model wrote it and whether its
budget ended it: an answer that is not all the private model's own is no answer of the audited model, and the server
then counts as gone.
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

from reticent.auditing.canaries.extraction import ExtractionTarget, begins_with_secret
from reticent.auditing.inputs.text_store import TextStore
from reticent.auditing.targets.endpoint_client import EndpointClient, RefusedRequestError
from reticent.auditing.targets.http_retries import ServerGoneError
from reticent.text.template import TextTemplate

_PROMPTS_A_WRITE = 32


@dataclass(frozen=True)
class Prompt:
    """One prompt and how it is continued.

    Attributes:
        text: the prompt.
        max_tokens: the most tokens that are written.
        num_samples: answers at temperature 1; None for the one answer at temperature 0.
        seed: of the samples, where the server takes one.
    """

    text: str
    max_tokens: int
    num_samples: int | None = None
    seed: int = 0

    @property
    def key(self) -> str:
        """SHA-256 over all of it: names the answers on disk without the prompt."""
        parts = [self.text, self.max_tokens, self.num_samples, self.seed if self.num_samples is not None else None]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class Continuer:
    """Has a server continue prompts, each prompt once for all time.

    Attributes:
        failures: why a prompt has no answer, by the prompt's key.
    """

    def __init__(self, client: EndpointClient, store: TextStore | None = None) -> None:
        """Keep answers in `store`, which must belong to this server and model; None to keep them in memory."""
        self.client = client
        self.failures: dict[str, str] = {}
        self._store = store
        self._known: dict[str, list[str]] = {} if store is None else store.read()
        self._takes_several, self._takes_seed = True, True
        self._lock = threading.Lock()

    def continue_all(self, prompts: Sequence[Prompt]) -> list[tuple[str, ...] | None]:
        """The answers to each prompt, aligned; None where the server did not give them all (see `failures`).

        Raises:
            StorageError: an answer cannot be kept.
        """
        missing = list({prompt.key: prompt for prompt in prompts if prompt.key not in self._known}.values())
        with ThreadPoolExecutor(max_workers=self.client.concurrency) as pool:
            for start in range(0, len(missing), _PROMPTS_A_WRITE):
                batch = missing[start : start + _PROMPTS_A_WRITE]
                answers = zip(batch, pool.map(self._continue_one, batch), strict=True)
                found = {prompt.key: texts for prompt, texts in answers if texts is not None}
                self._known |= found
                if self._store is not None and found:
                    self._store.add(found)
        found_all = (self._known.get(prompt.key) for prompt in prompts)
        return [None if texts is None else tuple(texts) for texts in found_all]

    def _continue_one(self, prompt: Prompt) -> list[str] | None:
        count = prompt.num_samples or 1
        texts: list[str] = []
        try:
            while len(texts) < count:
                texts += self._ask(prompt, count - len(texts), prompt.seed + len(texts))
        except ServerGoneError as gone:
            reason = str(gone)
        except RefusedRequestError as refusal:
            reason = f"the server refused the prompt with {refusal}"
        else:
            return texts
        with self._lock:
            self.failures[prompt.key] = reason
        return None

    def _ask(self, prompt: Prompt, count: int, seed: int) -> list[str]:
        """Between one answer and `count`; what the server refuses beside the prompt is left out from then on."""
        fields = {"prompt": prompt.text, "max_tokens": prompt.max_tokens}
        if prompt.num_samples is None:
            return self._texts(self.client.complete(**fields, n=1, temperature=0.0).json(), 1)
        numbers = dict.fromkeys([count if self._takes_several else 1, 1])
        refusal = RefusedRequestError("")
        for seeded, number in product([True, False] if self._takes_seed else [False], numbers):
            extra = {"n": number} | ({"seed": seed} if seeded else {})
            try:
                answer = self.client.complete(**fields, temperature=1.0, **extra).json()
            except RefusedRequestError as error:
                refusal = error
                continue
            self._takes_several, self._takes_seed = self._takes_several and number == count, seeded
            return self._texts(answer, count)
        raise refusal

    def _texts(self, answer: Any, count: int) -> list[str]:
        try:
            choices = list(answer["choices"])
            texts = [str(choice["text"]) for choice in choices][:count]
            origins = [choice.get("reticent") or {} for choice in choices]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RefusedRequestError("an answer without text") from None
        if not texts:
            raise RefusedRequestError("an answer without text")
        if any(origin.get("source", "private") != "private" or origin.get("ended_by") for origin in origins):
            reason = "its private budget or the key's quota is spent"
            self.client.stop(reason)
            raise ServerGoneError(reason)
        return texts


class RemoteExtractor:
    """Implements `auditing.canaries.extraction.Extractor` for a server, which draws the samples."""

    def __init__(self, continuer: Continuer, template: TextTemplate) -> None:
        self._continuer = continuer
        self._template = template

    def write(self, prompts: Sequence[str], lengths: Sequence[int]) -> list[str | None]:
        """See `auditing.canaries.choice.Write`; what the template puts before a text comes first."""
        begun = map(self._template.beginning, prompts)
        asked = [Prompt(prompt, length) for prompt, length in zip(begun, lengths, strict=True)]
        return [None if texts is None else texts[0] for texts in self._continuer.continue_all(asked)]

    def count_emitted(
        self, targets: Sequence[ExtractionTarget], num_samples: int | None, seed: int
    ) -> list[int | None]:
        """See `Extractor.count_emitted`."""
        # A token is at least one byte of the text, and one more may be the space before it.
        prompts = [
            Prompt(self._template.beginning(target.prompt), len(target.secret.encode()) + 1, num_samples, seed)
            for target in targets
        ]
        answers = self._continuer.continue_all(prompts)
        return [
            None if texts is None else sum(begins_with_secret(text, target.secret) for text in texts)
            for target, texts in zip(targets, answers, strict=True)
        ]
