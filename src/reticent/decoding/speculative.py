"""Guessing the next tokens with the public model, so that one step computes several.

The public model goes on alone with the coins of the request, and all worlds are then evaluated at all guessed positions
in one step, which costs less than one step for each: attention reads each cached key once, and on a device that waits
for memory so does everything else. Speculative decoding (arXiv 2211.17192), but without its acceptance rule: a position
is released by the mechanism from the worlds' votes there, whatever was guessed. A guess only decides which positions
were computed beforehand.

What is guaranteed. Votes, releases and charges are those of decoding without guesses, one after another; the law of
the released tokens is the same. What is computed when is a function of released tokens, public coins and the public
model. A step of another shape may round the last bits of a logit otherwise, as docs/architecture.md says.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.decoding.votes import Decoder, DecodingSettings, greedy_votes, gumbel_votes, top_candidates
from reticent.errors import InvalidValueError
from reticent.protocols import C, DraftingEnsemble
from reticent.randomness import PublicCoins


@dataclass
class DraftLength:
    """The number of draft tokens for one request: more while drafts are accepted, fewer after a rejected one.

    After a step whose drafts were all accepted, twice as many; else as many as were accepted, and at least one.

    Attributes:
        most: never more; 0 to guess nothing.
        length: guesses behind the last token that was computed.
        num_accepted: how many of them have come true.
    """

    most: int
    length: int = 1
    num_accepted: int = 0

    def next_length(self) -> int:
        """Choose the number of draft tokens in the step that now begins."""
        longer = 2 * self.length if self.num_accepted == self.length else max(1, self.num_accepted)
        self.length, self.num_accepted = min(longer, self.most), 0
        return self.length


@dataclass(frozen=True)
class Continuation:
    """The continuation of one context.

    Attributes:
        token: the token it gets now.
        settings: of its request.
        coins: of its request.
        step: the request's step that releases the token after it.
        num_wanted: tokens the request may still have after this one.
        pace: of its request; it is given the number of accepted tokens.
    """

    token: int
    settings: DecodingSettings
    coins: PublicCoins
    step: int
    num_wanted: int
    pace: DraftLength


def public_vote(public_logits_V: NDArray[np.float32], settings: DecodingSettings, coins: PublicCoins, step: int) -> int:
    """Compute the public model's own vote at a step, from its own candidates and with the request's coins."""
    candidates_K = top_candidates(public_logits_V, settings.num_candidates)
    logits_1K = public_logits_V[candidates_K][None]
    if settings.decoder is Decoder.GREEDY:
        return int(greedy_votes(logits_1K, candidates_K)[0])
    coins_K = coins.gumbel(step, candidates_K.size)
    return int(gumbel_votes(logits_1K, candidates_K, coins_K, settings.temperature)[0])


def extend_with_drafts(
    ensemble: DraftingEnsemble[C], contexts: Sequence[C], continuations: Sequence[Continuation]
) -> None:
    """Give each context its token, and compute guessed tokens behind it in the same step."""

    def choose(number: int, ahead: int, public_logits_V: NDArray[np.float32]) -> int:
        goes_on = continuations[number]
        return public_vote(public_logits_V, goes_on.settings, goes_on.coins, goes_on.step + ahead)

    tokens = [goes_on.token for goes_on in continuations]
    counts = [_num_drafts(ensemble, context, goes_on) for context, goes_on in zip(contexts, continuations, strict=True)]
    guesses = None
    if any(counts):
        # Where the public model gives no distribution nothing is guessed: the next step finds it and says whose it is.
        with suppress(InvalidValueError):
            guesses = ensemble.draft(contexts, tokens, counts, choose)
    ensemble.extend(contexts, tokens, guesses)


def _num_drafts(ensemble: DraftingEnsemble[C], context: C, goes_on: Continuation) -> int:
    pace = goes_on.pace
    if not pace.most:
        return 0
    if ensemble.has_draft(context, goes_on.token):
        pace.num_accepted += 1
        return 0
    # The last token wanted is released from the states behind the one before it.
    return min(pace.next_length(), max(0, goes_on.num_wanted - 1))
