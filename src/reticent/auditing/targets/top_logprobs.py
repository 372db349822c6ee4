"""A scorer from the log-probabilities of the next token that a server writes: exact within its top k, else a bound.

At each place of a text the server is given everything before it and writes one token, with the k most likely ones.
Where the text's own token is not among them, its log-probability is at most

    min(the smallest of the k, log(1 − the sum of their probabilities)),

and nothing but 0 bounds its probability from below. The bound takes its place: sums and means of the signals, and
means of the lowest of them, are then upper bounds of what the whole distribution would give. The rank of a token
outside is k, the least that it can be. `mu`, `sigma2` and `entropy` are NaN.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import numpy as np

from reticent.auditing.inputs.places import PlacedScorer, places_of
from reticent.auditing.targets.endpoint import PROBE, ServerScorer
from reticent.auditing.targets.endpoint_client import EndpointClient, RefusedRequestError
from reticent.auditing.targets.http_retries import ServerGoneError
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import EndpointError
from reticent.protocols import TokenSignals

_WANTED = (20, 5, 1)
"""k as it is asked for: what vLLM allows unless told otherwise, what OpenAI's interface does, and the least."""
_ROUNDING = 1e-5
"""Probability by which a sum of a server's rounded ones may be too large."""


def probe_top_logprobs(client: EndpointClient) -> tuple[int, Mapping[str, float]] | None:
    """K as the server takes it, and what it says after a public sentence; None where it shows no log-probabilities.

    Raises:
        EndpointError: it has stopped answering.
    """
    for wanted in _WANTED:
        try:
            return wanted, _ask(client, PROBE, wanted)
        except RefusedRequestError:
            continue
        except ServerGoneError as gone:
            raise EndpointError(f"{client.url}: {gone}; nothing was scored") from None
    return None


class TopLogprobScorer(ServerScorer):
    """Implements `reticent.protocols.Scorer` for a server that shows its most likely next tokens.

    Attributes:
        num_top: k.
    """

    def __init__(
        self,
        client: EndpointClient,
        tokenised_by: ModelScorer,
        num_places: int,
        probed: tuple[int, Mapping[str, float]],
    ) -> None:
        """Take what `probe_top_logprobs` gave, and a public model whose tokenizer is the server's."""
        super().__init__(client, tokenised_by.template)
        self.num_top, said = probed
        self._tokenised_by, self._num_places = tokenised_by, num_places
        identity = (client.url, client.model, tokenised_by.fingerprint, str(num_places), str(self.num_top))
        known = f"{sum(said.values()):.0f}"
        self.fingerprint = hashlib.sha256("\n".join(("reticent top 1", *identity, known)).encode()).hexdigest()

    def placed(self, scorer: ModelScorer) -> PlacedScorer:
        """Another model at the places that the server is asked about."""
        return PlacedScorer(scorer, self._num_places)

    def signals(self, text: str) -> TokenSignals:
        """See `ServerScorer.signals`."""
        places = places_of(self._tokenised_by, text, self._num_places)
        found = [
            bounded_logp(self._written(piece, token), _ask(self.client, prefix, self.num_top), self.num_top)
            for prefix, piece, token in zip(places.prefixes, places.pieces, places.token_ids.tolist(), strict=True)
        ]
        logp = np.array([value for value, _ in found], dtype=np.float64)
        hidden = np.full(len(logp), np.nan)
        return TokenSignals(logp, hidden, hidden, hidden, np.array([rank for _, rank in found], dtype=np.int64))

    def _written(self, piece: str, token: int) -> tuple[str, ...]:
        """Forms in which a server may show a token: its characters, the token alone, and as the vocabulary has it."""
        tokenizer = self._tokenised_by.tokenizer
        return piece, str(tokenizer.decode([token])), str(tokenizer.convert_ids_to_tokens(token))

    def share_outside(self, rows: "list[TokenSignals]") -> float:
        """The share of tokens that are outside of the top k, and so have a bound instead of a value."""
        ranks = np.concatenate([row.rank for row in rows]) if rows else np.zeros(0)
        return float((ranks >= self.num_top).mean()) if len(ranks) else 0.0


def bounded_logp(written: Sequence[str], top: Mapping[str, float], num_top: int) -> tuple[float, int]:
    """A token's log-probability, or the least upper bound of it, in nats, and its rank, or the least that it can be.

    Args:
        written: forms in which the token may be among the most likely ones, the likeliest first.
        top: the most likely tokens, at least one; fewer than k where several are written alike (parts of characters).
        num_top: k.
    """
    own = next((top[form] for form in written if form in top), None)
    if own is not None:
        return own, sum(value > own for value in top.values())
    rest = max(0.0, 1.0 - float(np.exp(list(top.values())).sum())) + _ROUNDING
    return min(min(top.values()), float(np.log(rest))), num_top


def _ask(client: EndpointClient, prompt: str, num_top: int) -> Mapping[str, float]:
    """The most likely tokens after a prompt, with their log-probabilities.

    Raises:
        RefusedRequestError: the server does not show them.
        EndpointError: they are none.
    """
    answer = client.complete(prompt=prompt, max_tokens=1, temperature=0.0, logprobs=num_top)
    top = _top_of(answer)
    if not top:
        raise RefusedRequestError("an answer without log-probabilities")
    values = list(top.values())
    if not np.isfinite(values).all() or max(values) > 0:
        raise EndpointError(f"{client.url} returns log-probabilities that are positive or not finite")
    return top


def _top_of(answer: httpx.Response) -> dict[str, float]:
    try:
        shown: Any = answer.json()["choices"][0]["logprobs"]["top_logprobs"][0]
        return {str(token): float(value) for token, value in shown.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return {}
