"""The contract that every engine must pass; another implementation is an entry of `ENGINES`."""

import numpy as np
import pytest
from server.engine_parts import Arithmetic
from tiny_adapters import random_adapters
from tiny_models import build_tiny_model

from reticent.decoding.engines import VoteRequest, cast_public_step, cast_step
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.engine.engine import Engine
from reticent.errors import InvalidValueError
from reticent.layers.forward import batched_decoder
from reticent.randomness import PublicCoins

PROMPTS = [[3, 1, 4, 1, 5], [2], [7, 7, 7]]


def local_engine(captures):
    decoder = batched_decoder(build_tiny_model("llama"))
    return Engine(decoder, random_adapters(decoder, ["attention"], 3, 2), capture_graphs=captures)


ENGINES = {
    "local": lambda: local_engine(False),
    "local, steps captured": lambda: local_engine(True),
    "arithmetic": Arithmetic,
}


@pytest.fixture(params=ENGINES)
def engine(request):
    return ENGINES[request.param]()


def request_for(decoder=Decoder.GUMBEL, step=0, seed=0):
    return VoteRequest(DecodingSettings(decoder, 0.1, num_candidates=8), PublicCoins.from_seed(seed, 0), step)


def drained(parts):
    count = 0
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize("decoder", list(Decoder))
def test_a_step_has_one_vote_a_world_for_each_context(engine, decoder):
    contexts = [engine.open(prompt) for prompt in PROMPTS]
    requests = [request_for(decoder, step, seed=step) for step in range(3)]
    votes = engine.votes(contexts, requests)
    assert [(row.shape, row.dtype) for row in votes] == [((engine.num_worlds,), np.dtype(np.int64))] * 3
    assert all(0 <= row.min() <= row.max() < engine.vocab_size for row in votes)
    assert all(0 <= token < engine.vocab_size for token in engine.public_votes(contexts, requests))
    assert [context.length for context in contexts] == [5, 1, 3]


def test_votes_are_of_context_and_request_whoever_shares_the_step(engine):
    contexts = [engine.open(prompt) for prompt in PROMPTS]
    requests = [request_for(seed=seed) for seed in range(3)]
    together = engine.votes(contexts, requests)
    public = engine.public_votes(contexts, requests)
    for place in (2, 0, 1):
        [alone] = engine.votes([contexts[place]], [requests[place]])
        np.testing.assert_array_equal(alone, together[place])
        assert engine.public_votes([contexts[place]], [requests[place]]) == [public[place]]
    assert list(engine.votes([], [])) == []


def test_coins_are_those_of_the_step(engine):
    context = engine.open(PROMPTS[0])
    rows = {tuple(engine.votes([context], [request_for(step=step)])[0].tolist()) for step in range(12)}
    assert len(rows) > 1
    [first], [again] = (engine.votes([context], [request_for(step=5)]) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_a_request_that_cannot_be_met_is_the_error_of_its_context_alone(engine):
    contexts = [engine.open(prompt) for prompt in PROMPTS]
    good, bad = request_for(), request_for()
    bad = VoteRequest(DecodingSettings(Decoder.GREEDY, 0.1, num_candidates=engine.vocab_size + 1), good.coins, 0)
    for cast, whole in ((engine.votes, cast_step), (engine.public_votes, cast_public_step)):
        found = cast(contexts, [good, bad, good])
        assert [isinstance(each, Exception) for each in found] == [False, True, False]
        again = whole(engine, contexts, [good, bad, good])
        assert [isinstance(each, Exception) for each in again] == [False, True, False]


def test_a_prompt_read_in_parts_is_the_prompt(engine):
    (count, context), (again, _) = (
        drained(engine.prefill_in_chunks([4, 5, 6])),
        drained(engine.prefill_in_chunks([9] * 3)),
    )
    assert count == again
    assert context.length == 3
    [ours], [theirs] = (engine.votes([each], [request_for()]) for each in (context, engine.open([4, 5, 6])))
    np.testing.assert_array_equal(ours, theirs)


def test_drafts_are_short_enough_and_leave_the_context_as_it_was(engine):
    contexts = [engine.open(prompt) for prompt in PROMPTS]
    before = engine.votes(contexts, [request_for()] * 3)
    drafts = engine.draft(contexts, [1, 2, 3], [request_for(step=1)] * 3, [2, 0, 3])
    assert all(len(draft) <= most for draft, most in zip(drafts, [2, 0, 3], strict=True))
    assert [context.length for context in contexts] == [5, 1, 3]
    for one, other in zip(before, engine.votes(contexts, [request_for()] * 3), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_accepted_draft_is_known_and_a_rejected_one_is_dropped(engine):
    [context] = contexts = [engine.open(PROMPTS[0])]
    drafts = engine.draft(contexts, [1], [request_for(step=1)], [3])
    engine.extend(contexts, [1], drafts)
    assert context.length == 6
    for token in drafts[0][:1]:
        assert engine.has_draft(context, token)
        assert not engine.has_draft(context, (token + 1) % engine.vocab_size)
        engine.extend(contexts, [(token + 1) % engine.vocab_size])
        assert context.length == 7
        assert not any(engine.has_draft(context, other) for other in range(engine.vocab_size))


class Faulty(Arithmetic):
    """An engine that answers as it is told."""

    def __init__(self, answer):
        super().__init__()
        self.votes = self.public_votes = answer


def raising(*_):
    raise OSError("the other machine is gone")


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (raising, OSError, "gone"),
        (lambda *_: [], InvalidValueError, "0 votes for 2 contexts"),
    ],
)
def test_an_engine_that_fails_as_a_whole_fails_for_each_context(answer, kind, message):
    for cast in (cast_step, cast_public_step):
        found = cast(Faulty(answer), [None, None], [request_for()] * 2)
        assert [type(error) for error in found] == [kind] * 2
        assert message in str(found[0])
        assert cast(Faulty(answer), [], []) == []


def test_malformed_votes_are_the_error_of_their_context():
    good = np.zeros(Arithmetic.num_worlds, np.int64)
    bad = [good[:-1], good - 1, good + Arithmetic.vocab_size, good.astype(np.float64)]
    found = cast_step(Faulty(lambda *_: [good, *bad]), [None] * 5, [request_for()] * 5)
    assert [isinstance(each, InvalidValueError) for each in found] == [False, True, True, True, True]
    found = cast_public_step(Faulty(lambda *_: [3, -1, Arithmetic.vocab_size]), [None] * 3, [request_for()] * 3)
    assert [isinstance(each, InvalidValueError) for each in found] == [False, True, True]
