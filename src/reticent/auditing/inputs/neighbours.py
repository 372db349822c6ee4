"""Neighbours of a text: the same text with a few tokens swapped for others that a language model finds likely.

Used as the neighbourhood attack's comparison (Mattern et al. 2023) and as the paraphrases of SPV-MIA. Proposals come
from a masked language model, or, where none is available, from the audited model's own base, token by token from what
precedes it. Either way:

* a swap replaces the token's characters in the text; everything around them stays as it is, to the byte;
* a token is swapped only for one of the same kind (beginning of a word, inside of a word), never for itself;
* special tokens are neither swapped nor swapped in;
* no neighbour is the text itself, and no two are the same. A text with too few places gets fewer of them, or none.

Neighbours of a text depend on the text, the source, their number and the seed alone.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent.auditing.inputs.swappable import SwappableTokens
from reticent.auditing.inputs.text_store import TextStore
from reticent.text.corpus import text_hash
from reticent.text.fields import PLAIN, RecordLayout

SWAPPED_SHARE = 0.1
"""The share of a text's tokens that one neighbour swaps, at least one."""
_MOST_LIKELY = 50
"""Number of most likely tokens that a swap is drawn from."""
_ROUNDS = 4
_TEXTS_A_WRITE = 16


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as a source reads it.

    Attributes:
        ids: int64[T].
        spans: the characters of each token in the text, (start, stop); empty for a special token.
        first: tokens before this index cannot be proposed for.
    """

    ids: NDArray[np.int64]
    spans: tuple[tuple[int, int], ...]
    first: int


class NeighbourSource(Protocol):
    """A language model that proposes other tokens for places of a text."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all that proposals depend on."""
        ...

    @property
    def swappable(self) -> SwappableTokens:
        """The vocabulary, by kind of token."""
        ...

    def tokens(self, text: str) -> Tokens:
        """A text as the source reads it, cut where it reads no further."""
        ...

    def proposals(self, tokens: Tokens, places: Sequence[NDArray[np.int64]]) -> Iterator[NDArray[np.float32]]:
        """For each set of places, int64[K], the logits of the tokens there, float32[K, V]."""
        ...


def neighbours(
    texts: Sequence[str], n: int, source: NeighbourSource, seed: int, layout: RecordLayout = PLAIN
) -> list[list[str]]:
    """At most n neighbours of each text, in order.

    Args:
        texts: the texts.
        n: how many neighbours of each.
        source: what proposes swaps.
        seed: of the places and the draws.
        layout: of records with several columns: tokens are swapped in the main one, which is read by itself.

    Raises:
        InvalidValueError: n is not a positive integer.
    """
    _validate.integer_in_range("n", n, 1)
    found = []
    for record in texts:
        before, text, after = layout.split_main(record)
        made = _neighbours_of(text, n, source, _generator(seed, record))
        found.append([before + neighbour + after for neighbour in made])
    return found


def load_or_make_neighbours(
    texts: Sequence[str],
    n: int,
    source: NeighbourSource,
    seed: int,
    folder: Path,
    progress: Callable[[int], None] | None = None,
    layout: RecordLayout = PLAIN,
) -> dict[str, list[str]]:
    """The same by the text's hash, made once and kept in a file of the folder, which holds the neighbours' texts.

    Args:
        texts: the texts.
        n: how many neighbours of each.
        source: what proposes swaps.
        seed: of the places and the draws.
        folder: where they are kept.
        progress: called with the number of texts that have just got their neighbours.
        layout: of records with several columns.

    Raises:
        StorageError: the store cannot be written.
    """
    identity = "\n".join(("reticent neighbours 1", source.fingerprint, str(n), str(seed), str(SWAPPED_SHARE)))
    if layout.columns != PLAIN.columns:
        identity += f"\n{layout.main}"
    kept = TextStore(folder / f"neighbours-{hashlib.sha256(identity.encode()).hexdigest()[:32]}.jsonl")
    distinct = {text_hash(text): text for text in texts}
    held = kept.read()
    known: dict[str, list[str]] = {name: held[name] for name in distinct if name in held}
    if progress is not None and known:
        progress(len(known))
    missing = [name for name in distinct if name not in known]
    for start in range(0, len(missing), _TEXTS_A_WRITE):
        names = missing[start : start + _TEXTS_A_WRITE]
        made = dict(zip(names, neighbours([distinct[name] for name in names], n, source, seed, layout), strict=True))
        kept.add(made)
        known |= made
        if progress is not None:
            progress(len(names))
    return known


def _neighbours_of(text: str, n: int, source: NeighbourSource, generator: np.random.Generator) -> list[str]:
    tokens = source.tokens(text)
    kinds = source.swappable.kinds
    swappable = np.array(
        [
            place
            for place, (token, (start, stop)) in enumerate(zip(tokens.ids, tokens.spans, strict=True))
            if place >= tokens.first and start < stop and kinds[token] >= 0
        ],
        dtype=np.int64,
    )
    if not len(swappable):
        return []
    count = max(1, round(SWAPPED_SHARE * len(swappable)))
    found: dict[str, None] = {}
    for _ in range(_ROUNDS):
        places = [np.sort(generator.choice(swappable, count, replace=False)) for _ in range(n - len(found))]
        for at, logits_KV in zip(places, source.proposals(tokens, places), strict=True):
            neighbour = _swap_tokens(text, tokens, at, logits_KV, source.swappable, generator)
            if neighbour is not None and neighbour != text:
                found[neighbour] = None
        if len(found) == n:
            break
    return list(found)


def _swap_tokens(
    text: str,
    tokens: Tokens,
    places: NDArray[np.int64],
    logits_KV: NDArray[np.float32],
    swappable: SwappableTokens,
    generator: np.random.Generator,
) -> str | None:
    """The text with other tokens at some places; None where a place has no alternative."""
    pieces: list[str] = []
    end = 0
    for place, logits_V in zip(places, logits_KV, strict=True):
        candidates = swappable.alternatives(int(tokens.ids[place]))
        if not len(candidates):
            return None
        likely = candidates[np.argsort(-logits_V[candidates], kind="stable")[:_MOST_LIKELY]]
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        chosen = likely[np.argmax(logits_V[likely] + generator.gumbel(size=len(likely)))]
        start, stop = tokens.spans[place]
        original = text[start:stop]
        space = original[: len(original) - len(original.lstrip())]
        pieces += [text[end:start], space, swappable.surfaces[chosen]]
        end = stop
    return "".join([*pieces, text[end:]])


def _generator(seed: int, text: str) -> np.random.Generator:
    return np.random.default_rng([seed, *bytes.fromhex(text_hash(text))])


def token_spans(tokenizer: Any, text: str, max_tokens: int) -> Tokens:
    """Encode a text with its special tokens, keeping each token's span in it.

    Args:
        tokenizer: a fast `transformers` tokenizer.
        text: the text.
        max_tokens: where it is cut, special tokens included.
    """
    encoded = tokenizer(
        text, return_offsets_mapping=True, return_special_tokens_mask=True, truncation=True, max_length=max_tokens
    )
    spans = tuple(
        (0, 0) if special else (int(start), int(stop))
        for (start, stop), special in zip(encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True)
    )
    return Tokens(np.array(encoded["input_ids"], dtype=np.int64), spans, 0)
