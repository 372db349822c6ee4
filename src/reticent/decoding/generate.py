"""The token loop: context, votes, release, next context.

What is guaranteed. Everything up to a release is a function of the prompt, the settings, the public coins and the
tokens released before; the realised world enters in `Curator.release` alone. A token is yielded only after the release
that produced it, charge and posterior, is durable. Every token that is yielded has been charged, the stopping one
included: that generation ends there is also an answer.

| case | what happens |
|---|---|
| a stop token is released | it is yielded, and generation ends |
| the context window is full | generation ends after the token that fills it |
| the budget does not cover the next token | `BudgetExhaustedError` from the curator; the tokens before stand |
| the state cannot be written | the curator's error; the token is not shown |
| the consumer stops iterating | nothing further is computed, charged or released |
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent.decoding.speculative import Continuation, DraftLength, extend_with_drafts
from reticent.decoding.votes import (
    Decoder,
    DecodingSettings,
    greedy_votes,
    gumbel_votes,
    require_candidates,
    top_candidates,
)
from reticent.errors import InvalidValueError
from reticent.pac.curator import Curator
from reticent.protocols import C, DraftingEnsemble, Ensemble
from reticent.randomness import PublicCoins


@dataclass(frozen=True)
class GeneratedToken:
    """A released token.

    Attributes:
        token: its id.
        num_active: how many distinct tokens the worlds voted for; 1 where all agreed and no noise was needed.
        charge_units: what was charged for it, in units of 2^-64 nat.
    """

    token: int
    num_active: int
    charge_units: int


def cast_votes(
    ensemble: Ensemble[C], context: C, settings: DecodingSettings, coins: PublicCoins, step: int
) -> NDArray[np.int64]:
    """Every world's vote for the token after `context`, int64[M].

    The public model fixes the candidates first; the coins of a step belong to its candidates in ascending id order, so
    a third party with the coin key and the same logits can cast every vote again.
    """
    candidates_K = top_candidates(ensemble.public_logits(context), settings.num_candidates)
    world_logits_MK = ensemble.world_logits(context, candidates_K)
    if settings.decoder is Decoder.GREEDY:
        return greedy_votes(world_logits_MK, candidates_K)
    coins_K = coins.gumbel(step, candidates_K.size)
    return gumbel_votes(world_logits_MK, candidates_K, coins_K, settings.temperature)


def generate(
    ensemble: DraftingEnsemble[C],
    prompt_tokens: Sequence[int],
    settings: DecodingSettings,
    curator: Curator,
    coins: PublicCoins,
    request_id: str,
    max_tokens: int,
    stop_tokens: Collection[int] = (),
    num_drafts: int = 0,
) -> Iterator[GeneratedToken]:
    """Release up to `max_tokens` tokens that continue a prompt, one by one.

    Args:
        ensemble: the public model and all worlds.
        prompt_tokens: at least one token id, and fewer than the context window holds.
        settings: how tokens are proposed, voted on and charged.
        curator: holds the realised world, the posterior and the account of this deployment.
        coins: the public randomness of this request.
        request_id: names the request in the release records; public.
        max_tokens: at least 1. The context window may end generation earlier.
        stop_tokens: ids that end generation once released.
        num_drafts: most tokens guessed ahead by the public model and computed in one step; see `decoding.speculative`.

    Raises:
        InvalidValueError: an argument is outside its range; raised here, before anything is computed or charged.
        BudgetExhaustedError: while iterating, where the account does not cover the next token.
    """
    num_steps = most_steps(ensemble, prompt_tokens, settings, max_tokens, num_drafts)
    return _token_loop(
        ensemble,
        list(prompt_tokens),
        settings,
        curator,
        coins,
        request_id,
        num_steps,
        frozenset(stop_tokens),
        DraftLength(num_drafts),
    )


def most_steps(
    ensemble: Ensemble[C], prompt_tokens: Sequence[int], settings: DecodingSettings, max_tokens: int, num_drafts: int
) -> int:
    """The most tokens that `generate` releases with these arguments, all of which are checked.

    Raises:
        InvalidValueError: an argument is outside its range.
    """
    _validate.integer_in_range("max_tokens", max_tokens, 1)
    _validate.integer_in_range("drafts", num_drafts, 0)
    room = _room_after(prompt_tokens, ensemble)
    require_candidates(settings, ensemble.vocab_size)
    return min(max_tokens, room)


def _token_loop(
    ensemble: DraftingEnsemble[C],
    prompt_tokens: list[int],
    settings: DecodingSettings,
    curator: Curator,
    coins: PublicCoins,
    request_id: str,
    num_steps: int,
    stop_tokens: frozenset[int],
    pace: DraftLength,
) -> Iterator[GeneratedToken]:
    context = ensemble.open(prompt_tokens)
    coin_key = None if settings.decoder is Decoder.GREEDY else coins.key
    for step in range(num_steps):
        votes_M = cast_votes(ensemble, context, settings, coins, step)
        released = curator.release(
            votes_M,
            settings.charging,
            request=request_id,
            step=step,
            coin_key=coin_key,
            release_mechanism=settings.release_mechanism,
        )
        yield GeneratedToken(released.token, released.num_active, released.charge_units)
        if released.token in stop_tokens or step + 1 == num_steps:
            return
        goes_on = Continuation(released.token, settings, coins, step + 1, num_steps - step - 1, pace)
        extend_with_drafts(ensemble, [context], [goes_on])


def _room_after(prompt_tokens: Sequence[int], ensemble: Ensemble[C]) -> int:
    """Count the tokens that fit behind the prompt; at least 1."""
    if len(prompt_tokens) == 0:
        raise InvalidValueError(
            "the prompt is empty; give at least one token, such as the model's beginning-of-text token"
        )
    _validate.in_vocabulary(prompt_tokens, ensemble.vocab_size)
    room = ensemble.context_length - len(prompt_tokens)
    if room < 1:
        raise InvalidValueError(
            f"the prompt has {len(prompt_tokens)} tokens and leaves no room in the context window of "
            f"{ensemble.context_length} tokens; shorten it to at most {ensemble.context_length - 1}"
        )
    return room
