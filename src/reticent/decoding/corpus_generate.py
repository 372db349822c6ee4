"""The token loop of a corpus deployment: context, sum of votes, charge, draw, next context.

What is guaranteed. Up to a release everything is a function of the prompt, the settings, the tokens released before and
all worlds alike; the charge of every token is durable before it is drawn, and the draw takes nothing from the public
coins, with which the public model drafts. Every token that is yielded has been charged, the stopping one included.

| case | what happens |
|---|---|
| a stop token is released | it is yielded, and generation ends |
| the context window is full | generation ends after the token that fills it |
| the cap does not cover the next token | `BudgetExhaustedError` from the curator; the tokens before stand |
| the public model gives no distribution | that error; nothing was charged for the token |
| the state cannot be written | the curator's error; nothing was drawn |
| the consumer stops iterating | nothing further is computed, charged or released |
"""

from collections.abc import Collection, Iterator, Sequence

from reticent.decoding.aggregates import AggregateEngine, CorpusDecoding, aggregate_step
from reticent.decoding.engines import C, VoteRequest
from reticent.decoding.generate import GeneratedToken, most_steps
from reticent.decoding.speculative import Continuation, DraftLength, extend_with_drafts
from reticent.dp.curator import CorpusCurator
from reticent.randomness import PublicCoins

_NOT_COUNTED = 0


def generate_from_corpus(
    engine: AggregateEngine[C],
    prompt_tokens: Sequence[int],
    decoding: CorpusDecoding,
    curator: CorpusCurator,
    request_id: str,
    max_tokens: int,
    stop_tokens: Collection[int] = (),
    num_drafts: int = 0,
) -> Iterator[GeneratedToken]:
    """Release up to `max_tokens` tokens that continue a prompt, one by one.

    Args:
        engine: the public model and all worlds.
        prompt_tokens: at least one token id, and fewer than the context window holds.
        decoding: the deployment's constants, and the answer's own temperature.
        curator: holds the account of this deployment.
        request_id: names the request in the release records; public.
        max_tokens: at least 1. The context window may end generation earlier.
        stop_tokens: ids that end generation once released.
        num_drafts: most draft tokens of the public model in one step; see `decoding.speculative`.

    Returns:
        The tokens; how many worlds differ on one is not counted.

    Raises:
        InvalidValueError: an argument is outside its range; raised here, before anything is computed or charged.
        BudgetExhaustedError: while iterating, where the cap does not cover the next token.
    """
    num_steps = most_steps(engine, prompt_tokens, decoding, max_tokens, num_drafts)
    return _token_loop(
        engine,
        list(prompt_tokens),
        decoding,
        curator,
        request_id,
        num_steps,
        frozenset(stop_tokens),
        DraftLength(num_drafts),
    )


def _token_loop(
    engine: AggregateEngine[C],
    prompt_tokens: list[int],
    decoding: CorpusDecoding,
    curator: CorpusCurator,
    request_id: str,
    num_steps: int,
    stop_tokens: frozenset[int],
    draft_length: DraftLength,
) -> Iterator[GeneratedToken]:
    context = engine.open(prompt_tokens)
    coins = PublicCoins.fresh()
    for step in range(num_steps):
        [aggregate] = aggregate_step(engine, [context], curator.settings)
        if isinstance(aggregate, Exception):
            raise aggregate
        released = curator.release(aggregate, request=request_id, step=step, temperature=decoding.temperature)
        yield GeneratedToken(released.token, _NOT_COUNTED, released.charge_units)
        if released.token in stop_tokens or step + 1 == num_steps:
            return
        request = VoteRequest(decoding, coins, step + 1)
        extend_with_drafts(
            engine, [context], [Continuation(released.token, request, num_steps - step - 1, draft_length)]
        )
