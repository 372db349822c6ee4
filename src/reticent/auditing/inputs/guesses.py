"""A server's single guesses at places of a text, and a public model's, as similarities to the text's own tokens.

At each place the server is given everything before it and writes one token at temperature 0. Two tokens are as similar
as the cosine of their input embeddings in the public model, the mean over its vocabulary taken off; equal tokens are at
1. The paper takes a sentence encoder's; the public model's own embeddings need nothing beside it.

Shape suffixes: P places, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax

from reticent.auditing.attacks.evidence import GuessEvidence, Missing
from reticent.auditing.inputs.neighbours import token_spans
from reticent.auditing.inputs.places import Places, places_of
from reticent.auditing.targets.continuations import Continuer, Prompt
from reticent.auditing.targets.scoring import ModelScorer
from reticent.protocols import Progress
from reticent.text.corpus import text_hash

_NO_PLACES = "the text has no place that can be asked about"
_TAIL = 48
"""Characters before a guess that are read with it, so that it is split as it would be within the text."""


def guess_evidence(
    continuer: Continuer, surrogate: ModelScorer, texts: Sequence[str], num_places: int, progress: Progress
) -> dict[str, GuessEvidence | Missing]:
    """Similarities of the server's and of the public model's guesses, by the text's hash.

    Args:
        continuer: asks the server.
        surrogate: the public model, with the server's template.
        texts: the texts, asked about in this order.
        num_places: places of each text, at most.
        progress: told of each text.

    Raises:
        StorageError: an answer cannot be kept.
    """
    found: dict[str, GuessEvidence | Missing] = {}
    for text in texts:
        places = places_of(surrogate, text, num_places)
        prompts = [Prompt(prefix, 1) for prefix in places.prefixes]
        written = continuer.continue_all(prompts)
        unanswered = [prompt.key for prompt, answer in zip(prompts, written, strict=True) if answer is None]
        if not prompts:
            found[text_hash(text)] = Missing(_NO_PLACES)
        elif unanswered:
            found[text_hash(text)] = Missing(continuer.failures.get(unanswered[0], "the server did not answer"))
        else:
            found[text_hash(text)] = _evidence(surrogate, text, places, [answer[0] for answer in written if answer])
        progress.advance(1)
    return found


def _evidence(surrogate: ModelScorer, text: str, places: Places, written: Sequence[str]) -> GuessEvidence:
    (encoded,) = surrogate.encode([text])
    logits_PV = surrogate.next_token_logits(encoded)[np.cumsum(encoded.is_scored)[places.indices] - 1]
    logp_PV = log_softmax(logits_PV.astype(np.float64), axis=1)
    guesses_P = np.array([_guessed_id(surrogate, places, n, guess) for n, guess in enumerate(written)], dtype=np.int64)
    is_token_P = guesses_P >= 0
    target_P = np.zeros(len(guesses_P))
    target_P[is_token_P] = surrogate.similarities(places.token_ids[is_token_P], guesses_P[is_token_P])
    return GuessEvidence(
        target_P,
        surrogate.similarities(places.token_ids, logits_PV.argmax(axis=1)),
        logp_PV[np.arange(len(places.token_ids)), places.token_ids],
    )


def _guessed_id(surrogate: ModelScorer, places: Places, number: int, guess: str) -> int:
    """The first token of a guess; the end-of-text token for none; −1 where it is part of a character."""
    if guess.strip() and guess.strip() == places.pieces[number].strip():
        return int(places.token_ids[number])
    if not guess:
        end = surrogate.tokenizer.eos_token_id
        return -1 if end is None else int(end)
    if "\ufffd" in guess:
        return -1
    tail = places.prefixes[number][-_TAIL:]
    tokens = token_spans(surrogate.tokenizer, tail + guess, surrogate.template.max_tokens + _TAIL)
    ids = (token for token, (_, stop) in zip(tokens.ids, tokens.spans, strict=True) if stop > len(tail))
    return int(next(ids, -1))
