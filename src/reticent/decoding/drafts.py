"""Guessing the next tokens with the public model, so that one step computes several.

The public model goes on alone with the coins of the request, and all worlds are then evaluated at all guessed positions
in one step, which costs less than one step for each: attention reads each cached key once, and on a device that waits
for memory so does everything else. Speculative decoding (arXiv 2211.17192), but without its acceptance rule: a position
is released by the mechanism from the worlds' votes there, whatever was guessed. A guess only decides which positions
were computed beforehand.

What is guaranteed. Votes, releases and charges are those of decoding without guesses, one after another; the law of
the released tokens is the same. What is computed when is a function of released tokens, public coins and the public
model. As with any change of a step's shape, rounding may differ in the last bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.decoding.votes import Decoder, DecodingSettings, greedy_votes, gumbel_votes, top_candidates
from reticent.protocols import C, DraftingEnsemble
from reticent.randomness import PublicCoins


@dataclass(frozen=True)
class Continuation:
    """How one context goes on.

    Attributes:
        token: the token it gets now.
        settings: of its request.
        coins: of its request.
        step: the request's step that releases the token after it.
        num_wanted: tokens the request may still have after this one.
    """

    token: int
    settings: DecodingSettings
    coins: PublicCoins
    step: int
    num_wanted: int


def public_vote(public_logits_V: NDArray[np.float32], settings: DecodingSettings, coins: PublicCoins, step: int) -> int:
    """What the public model alone would say at a step, from its own candidates and with the request's coins."""
    candidates_K = top_candidates(public_logits_V, settings.num_candidates)
    logits_1K = public_logits_V[candidates_K][None]
    if settings.decoder is Decoder.GREEDY:
        return int(greedy_votes(logits_1K, candidates_K)[0])
    coins_K = coins.gumbel(step, candidates_K.size)
    return int(gumbel_votes(logits_1K, candidates_K, coins_K, settings.temperature)[0])


def extend_with_drafts(
    ensemble: DraftingEnsemble[C], contexts: Sequence[C], continuations: Sequence[Continuation], num_drafts: int
) -> None:
    """Give each context its token, and compute up to `num_drafts` guessed tokens behind it in the same step."""

    def choose(number: int, ahead: int, public_logits_V: NDArray[np.float32]) -> int:
        goes_on = continuations[number]
        return public_vote(public_logits_V, goes_on.settings, goes_on.coins, goes_on.step + ahead)

    tokens = [goes_on.token for goes_on in continuations]
    # The last token wanted is released from the states after the one before it.
    count = min(num_drafts, max((goes_on.num_wanted for goes_on in continuations), default=0) - 1)
    if count < 1:
        ensemble.extend(contexts, tokens)
    else:
        ensemble.extend(contexts, tokens, ensemble.draft(contexts, tokens, choose, count))
