"""The token loop: context, votes, release, next context.

What is guaranteed. Everything up to a release is a function of the prompt, the settings, the public coins and the
tokens released before; the realised world enters in `Curator.release` alone. A token is yielded only after the release
that produced it, charge and posterior, is durable. Every token that is yielded has been charged, the stopping one
included: that generation ends there is also an answer.

| case | what happens |
|---|---|
| a stop token is released | it is yielded, and generation ends |
| the context window is full | generation ends after the token that fills it |
| the budget does not cover the next token's charge | `BudgetExhaustedError` from the curator; the tokens before stand |
| the state cannot be written | the curator's error; the token is not shown |
| the consumer stops iterating | nothing further is computed, charged or released |
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from reticent import _validate
from reticent.decoding.engines import C, VoteEngine, VoteRequest, cast_step
from reticent.decoding.speculative import Continuation, DraftLength, extend_with_drafts
from reticent.decoding.votes import Decoder, DecodingSettings, TokenSettings, require_candidates
from reticent.errors import InvalidValueError
from reticent.pac.curator import Curator
from reticent.randomness import PublicCoins


@dataclass(frozen=True)
class GeneratedToken:
    """A released token.

    Attributes:
        token: its id.
        num_active: how many distinct tokens the worlds voted for; 1 where all agreed and no noise was needed.
        charge_units: what was charged for it, in units of 2^-64 nat. Under some rules it tells as much as `num_active`.
    """

    token: int
    num_active: int
    charge_units: int


def generate(
    engine: VoteEngine[C],
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
        engine: the public model and all worlds.
        prompt_tokens: at least one token id, and fewer than the context window holds.
        settings: how tokens are proposed, voted on and charged.
        curator: holds the realised world, the posterior and the account of this deployment.
        coins: the public randomness of this request.
        request_id: names the request in the release records; public.
        max_tokens: at least 1. The context window may end generation earlier.
        stop_tokens: ids that end generation once released.
        num_drafts: most draft tokens of the public model in one step; see `decoding.speculative`.

    Raises:
        InvalidValueError: an argument is outside its range; raised here, before anything is computed or charged.
        BudgetExhaustedError: while iterating, where the account does not cover the next token.
    """
    num_steps = most_steps(engine, prompt_tokens, settings, max_tokens, num_drafts)
    return _token_loop(
        engine,
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
    engine: VoteEngine[C], prompt_tokens: Sequence[int], settings: TokenSettings, max_tokens: int, num_drafts: int
) -> int:
    """The most tokens that `generate` releases with these arguments, all of which are checked.

    Raises:
        InvalidValueError: an argument is outside its range.
    """
    _validate.integer_in_range("max_tokens", max_tokens, 1)
    _validate.integer_in_range("drafts", num_drafts, 0)
    room = _room_after(prompt_tokens, engine)
    require_candidates(settings, engine.vocab_size)
    return min(max_tokens, room)


def _token_loop(
    engine: VoteEngine[C],
    prompt_tokens: list[int],
    settings: DecodingSettings,
    curator: Curator,
    coins: PublicCoins,
    request_id: str,
    num_steps: int,
    stop_tokens: frozenset[int],
    draft_length: DraftLength,
) -> Iterator[GeneratedToken]:
    context = engine.open(prompt_tokens)
    coin_key = None if settings.decoder is Decoder.GREEDY else coins.key
    for step in range(num_steps):
        request = VoteRequest(settings, coins, step)
        [votes_M] = cast_step(engine, [context], [request])
        if isinstance(votes_M, Exception):
            raise votes_M
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
        continuation = Continuation(released.token, request.after(1), num_steps - step - 1, draft_length)
        extend_with_drafts(engine, [context], [continuation])


def _room_after(prompt_tokens: Sequence[int], engine: VoteEngine[C]) -> int:
    """Count the tokens that fit behind the prompt; at least 1."""
    if len(prompt_tokens) == 0:
        raise InvalidValueError(
            "the prompt is empty; give at least one token, such as the model's beginning-of-text token"
        )
    _validate.in_vocabulary(prompt_tokens, engine.vocab_size)
    room = engine.context_length - len(prompt_tokens)
    if room < 1:
        raise InvalidValueError(
            f"the prompt has {len(prompt_tokens)} tokens and leaves no room in the context window of "
            f"{engine.context_length} tokens; shorten it to at most {engine.context_length - 1}"
        )
    return room
