"""Places of a text at which a server is asked for the next token, one request a place.

A public model's tokenizer says where tokens end. A place whose token is part of a character, or shares its characters
with another token, is passed over: what stands before it is no text.

Shape suffix: P places.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.inputs.neighbours import token_spans
from reticent.auditing.targets.scoring import ModelScorer
from reticent.protocols import TokenSignals


@dataclass(frozen=True, eq=False)
class Places:
    """Places of one text.

    Attributes:
        indices: of the tokens in the text as the public model reads it, int64[P].
        token_ids: the text's own tokens there, int64[P].
        prefixes: everything before each.
        pieces: the characters of each token.
    """

    indices: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    prefixes: tuple[str, ...]
    pieces: tuple[str, ...]


def places_of(surrogate: ModelScorer, text: str, most: int) -> Places:
    """Places of a text, at most `most`, evenly spread from the first to the last; none where the tokens do not agree.

    The template's own words are no places.
    """
    rendered = surrogate.template.render(text, surrogate.tokenizer)
    start_of_text = surrogate.template.main_span(text, surrogate.tokenizer)[0]
    limit = surrogate.template.max_tokens
    tokens = token_spans(surrogate.tokenizer, rendered, min(limit, surrogate.context_length or limit))
    (encoded,) = surrogate.encode([text])
    agree = np.array_equal(tokens.ids[: len(encoded.token_ids)], encoded.token_ids[: len(tokens.ids)])
    found: list[tuple[int, int, int]] = []
    end_of_last = 0
    for index, (first, stop) in enumerate(tokens.spans if agree else ()):
        following = tokens.spans[index + 1][0] if index + 1 < len(tokens.spans) else stop
        is_whole = stop > first >= end_of_last and (following >= stop or following == 0)
        is_scored = index < len(encoded.is_scored) and bool(encoded.is_scored[index])
        if is_whole and is_scored and end_of_last >= max(1, start_of_text):
            found.append((index, end_of_last, stop))
        end_of_last = max(end_of_last, stop)
    numbers = np.linspace(0, len(found) - 1, most).round().astype(int) if len(found) > most else range(len(found))
    chosen = [found[number] for number in numbers]
    indices = np.array([index for index, _, _ in chosen], dtype=np.int64)
    return Places(
        indices,
        tokens.ids[indices],
        tuple(rendered[:begin] for _, begin, _ in chosen),
        tuple(rendered[begin:stop] for _, begin, stop in chosen),
    )


class PlacedScorer:
    """A model's signals at the places of a text alone; implements `reticent.protocols.Scorer`.

    For what is held against a server that is asked about those places: a mean over all tokens would be of others.
    """

    is_white_box = True

    def __init__(self, scorer: ModelScorer, num_places: int) -> None:
        self.scorer = scorer
        self._num_places = num_places
        identity = f"reticent places 1\n{scorer.fingerprint}\n{num_places}"
        self.fingerprint = hashlib.sha256(identity.encode()).hexdigest()

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """The signals at each text's places, in order; None for a text without any."""
        encoded = self.scorer.encode(texts)
        placed: list[TokenSignals | None] = []
        for text, tokens, signals in zip(texts, encoded, self.scorer.score_encoded(encoded), strict=True):
            at_P = np.cumsum(tokens.is_scored)[places_of(self.scorer, text, self._num_places).indices] - 1
            placed.append(None if signals is None or not len(at_P) else signals.select(at_P))
        return placed
