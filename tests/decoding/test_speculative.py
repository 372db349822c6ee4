"""Draft tokens: the same votes, releases and charges, fewer steps."""

import numpy as np
import pytest
from pac_oracles import MemoryStore
from rounding import decided_votes
from tiny_adapters import NUM_WORLDS, random_adapters
from tiny_models import FAMILIES, build_tiny_model

from reticent.decoding.engines import VoteRequest
from reticent.decoding.generate import generate
from reticent.decoding.speculative import DraftLength
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.engine.engine import Engine
from reticent.layers.forward import batched_decoder
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.mechanism import ReleaseMechanism
from reticent.pac.posterior import Posterior
from reticent.randomness import PublicCoins, SeededNoise

PROMPT = [11, 200, 3, 77]
NUM_TOKENS = 30


def make_engine(family="llama", records=False):
    decoder = batched_decoder(build_tiny_model(family))
    adapters = random_adapters(decoder, ["attention"], 3, 2)
    # Small enough that drafts are often accepted, large enough that they are often rejected.
    for up in adapters.up.values():
        up *= 0.3
    return Engine(decoder, adapters, capture_graphs=records)


class Counting:
    """An engine whose steps are counted, and whose drafts can be spoilt."""

    def __init__(self, engine, spoil=lambda draft: draft):
        self.engine, self.spoil = engine, spoil
        self.computed = []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def draft(self, *arguments):
        return [self.spoil(draft) for draft in self.engine.draft(*arguments)]

    def extend(self, contexts, tokens, drafts=None):
        self.computed.append(not self.engine.has_draft(contexts[0], tokens[0]))
        self.engine.extend(contexts, tokens, drafts)


def stream(engine, settings, num_drafts, max_tokens=NUM_TOKENS, seed=5):
    """Tokens, posterior, dissent and charge of one generation whose coins and noise are seeded."""
    state = CuratorState(1, Posterior.uniform(NUM_WORLDS).log_weights)
    curator = Curator.for_experiments(state, MemoryStore(), SeededNoise(seed))
    coins = PublicCoins.from_seed(seed, 0)
    tokens = generate(engine, PROMPT, settings, curator, coins, "r", max_tokens, num_drafts=num_drafts)
    said = [(token.token, token.num_active) for token in tokens]
    return said, curator.state.log_posterior, curator.account.spent_units


def decided_seed(engine, settings, max_tokens=NUM_TOKENS):
    """A seed of a generation in which rounding decides no vote: with drafts, steps have other shapes."""
    for seed in range(5, 40):
        said, _, _ = stream(engine, settings, 0, max_tokens, seed)
        context, coins = engine.open(PROMPT), PublicCoins.from_seed(seed, 0)
        for step, (token, _) in enumerate(said):
            if not decided_votes(engine, context, settings, coins, step).all():
                break
            if step + 1 < len(said):
                engine.extend([context], [token])
        else:
            return seed
    raise AssertionError("every seed has a vote that is nearly tied")


@pytest.mark.parametrize("kind", list(ReleaseMechanism))
@pytest.mark.parametrize("decoder", list(Decoder))
@pytest.mark.parametrize(("family", "records"), [*((family, False) for family in FAMILIES), ("llama", True)])
def test_drafts_change_no_release(family, records, decoder, kind, monkeypatch):
    monkeypatch.setattr("reticent.engine.engine._CAPTURED_CACHE_BLOCK", 8)
    settings = DecodingSettings(decoder, 2.0**-6, num_candidates=40, release_mechanism=kind)
    seed = decided_seed(make_engine(family), settings)
    expected, posterior, spent = stream(make_engine(family), settings, 0, seed=seed)
    for num_drafts in (1, 2, 5):
        engine = Counting(make_engine(family, records))
        said, updated, charged = stream(engine, settings, num_drafts, seed=seed)
        assert (said, charged) == (expected, spent)
        np.testing.assert_allclose(updated, posterior, rtol=1e-9, atol=1e-12)
        assert sum(engine.computed) < NUM_TOKENS - 1


@pytest.mark.parametrize("spoilt", ["wrong", "wrong at the second", "too few"])
def test_rejected_drafts_leave_no_trace(spoilt):
    spoil = {
        "wrong": lambda draft: [(token + 1) % 250 for token in draft],
        "wrong at the second": lambda draft: [*draft[:1], *((token + 1) % 250 for token in draft[1:])],
        "too few": lambda draft: draft[:1],
    }[spoilt]
    settings = DecodingSettings(Decoder.GUMBEL, 2.0**-6, num_candidates=40)
    seed = decided_seed(make_engine(), settings)
    expected = stream(make_engine(), settings, 0, seed=seed)
    engine = Counting(make_engine(), spoil)
    said, posterior, spent = stream(engine, settings, 4, seed=seed)
    assert (said, spent) == (expected[0], expected[2])
    np.testing.assert_allclose(posterior, expected[1], rtol=1e-9, atol=1e-12)
    # Only where every first draft token is rejected is each token computed.
    assert all(engine.computed) == (spoilt == "wrong")


def test_a_context_whose_public_model_fails_has_a_shorter_draft_and_no_other_has():
    engine, settings = make_engine(), DecodingSettings(Decoder.GREEDY, 2.0**-6, num_candidates=40)
    contexts = [engine.open(PROMPT), engine.open(PROMPT[:3])]
    requests = [VoteRequest(settings, PublicCoins.from_seed(0, 0), 1)] * 2
    whole = engine.draft(contexts, [1, 2], requests, [3, 3])
    logits, calls = engine._decoder.logits, []

    def poisoned(hidden_ND):
        found = logits(hidden_ND)
        calls.append(len(found))
        if len(calls) == 2:
            found[0] = float("nan")
        return found

    engine._decoder.logits = poisoned
    assert engine.draft(contexts, [1, 2], requests, [3, 3]) == [whole[0][:1], whole[1]]
    assert calls == [2, 2, 1]


def test_worlds_dissent_in_these_tests():
    """Or agreement of the streams would say little."""
    said, _, _ = stream(make_engine(), DecodingSettings(Decoder.GUMBEL, 2.0**-6, num_candidates=40), 0)
    assert 3 <= sum(num_active > 1 for _, num_active in said) <= NUM_TOKENS - 3


def test_nothing_is_drafted_that_no_token_can_use():
    engine, asked = make_engine(), []
    draft = engine.draft
    engine.draft = lambda contexts, tokens, requests, counts: (
        asked.append(counts) or draft(contexts, tokens, requests, counts)
    )
    settings = DecodingSettings(Decoder.GREEDY, 2.0**-6, num_candidates=40)
    for max_tokens, most in [(1, []), (2, []), (3, [[1]])]:
        asked.clear()
        stream(engine, settings, 8, max_tokens)
        assert asked == most


def test_the_length_of_drafts_follows_what_is_accepted():
    length, lengths = DraftLength(6), []
    for num_accepted in (0, 1, 2, 4, 6, 6, 3, 2, 0, 1):
        lengths.append(length.next_length())
        length.num_accepted = num_accepted
    assert lengths == [1, 1, 2, 4, 6, 6, 6, 3, 2, 1]
    assert length.next_length() == 2


def test_the_context_window_ends_drafts():
    engine = make_engine()
    window = engine.context_length
    settings = DecodingSettings(Decoder.GREEDY, 2.0**-6, num_candidates=40)
    seed = decided_seed(engine, settings, window)
    expected, _, _ = stream(engine, settings, 0, window, seed)
    said, _, _ = stream(engine, settings, 7, window, seed)
    assert said == expected
    assert len(said) == window - len(PROMPT)


def test_several_contexts_are_drafted_and_computed_together():
    engine, plain = make_engine(), make_engine()
    prompts = [PROMPT, PROMPT[:2], [*PROMPT, 9, 8]]
    ours, theirs = ([each.open(prompt) for prompt in prompts] for each in (engine, plain))
    candidates = np.arange(engine.vocab_size)
    tokens = [1, 2, 3]
    requests = [VoteRequest(DecodingSettings(Decoder.GREEDY, 2.0**-6), PublicCoins.from_seed(0, 0), 1)] * 3
    drafts = engine.draft(ours, tokens, requests, [1, 3, 2])
    assert [len(draft) for draft in drafts] == [1, 3, 2]
    # The second context's draft is accepted, the others' are rejected.
    engine.extend(ours, tokens, drafts)
    plain.extend(theirs, tokens)
    after = [(drafts[0][0] + 1) % 250, drafts[1][0], (drafts[2][0] + 1) % 250]
    assert [engine.has_draft(context, token) for context, token in zip(ours, after, strict=True)] == [
        False,
        True,
        False,
    ]
    for each, contexts in ((engine, ours), (plain, theirs)):
        each.extend(contexts, after)
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(
            engine.world_logits(one, candidates), plain.world_logits(other, candidates), rtol=2e-4, atol=2e-4
        )
        np.testing.assert_allclose(engine.public_logits(one), plain.public_logits(other), rtol=2e-4, atol=2e-4)
