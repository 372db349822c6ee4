from dataclasses import replace

import numpy as np
import pytest
from logit_engines import LogitVotes

from reticent.decoding.generate import GeneratedToken, generate
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.errors import BudgetExhaustedError, InvalidValueError, StorageError
from reticent.pac.accounting import charge_units, units_to_nats
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.mechanism import ReleaseMechanism
from reticent.randomness import PublicCoins, SeededNoise

WORLDS, VOCAB, WINDOW = 6, 11, 16
COINS = PublicCoins.from_seed(7, 0)


class BigramContext:
    def __init__(self, tokens):
        self.tokens = tokens

    @property
    def length(self):
        return len(self.tokens)


class BigramEnsemble(LogitVotes):
    """Row 0 is the public model; the next token depends on the last one and on the length. Records every call."""

    num_worlds, vocab_size, context_length = WORLDS, VOCAB, WINDOW

    def __init__(self, table=None):
        if table is None:
            table = np.random.default_rng(2).normal(size=(WORLDS + 1, VOCAB, VOCAB))
        self.table = table.astype(np.float32)
        self.calls = []

    def _rows(self, context):
        return self.table[:, context.tokens[-1]] + np.float32(0.1) * np.float32(context.length % 3)

    def open(self, prompt):
        self.calls.append(("open", tuple(prompt)))
        return BigramContext(list(prompt))

    def extend(self, contexts, tokens, drafts=None):
        self.calls.append(("extend", tuple(tokens)))
        for context, token in zip(contexts, tokens, strict=True):
            context.tokens.append(token)

    def public_logits(self, context):
        self.calls.append(("public", context.length))
        return self._rows(context)[0]

    def world_logits(self, context, candidates_K):
        self.calls.append(("worlds", context.length, tuple(candidates_K)))
        return self._rows(context)[1:, candidates_K]


class ListStore:
    def __init__(self):
        self.states, self.records = [], []

    def commit(self, state, records):
        self.states.append(state)
        self.records.extend(records)


def curator_at(secret, store, noise_seed=0, total_budget=None):
    initial = CuratorState.initial(WORLDS, SeededNoise(0), total_budget)
    state = CuratorState(secret, initial.log_posterior, cap_units=initial.cap_units)
    return Curator.for_experiments(state, store, SeededNoise(noise_seed))


def show(stream, shown):
    for token in stream:
        shown.append(token)


def settings_for(decoder, step_budget=0.05, kind=ReleaseMechanism.GAUSSIAN):
    return DecodingSettings(Decoder(decoder), step_budget, temperature=0.8, num_candidates=5, release_mechanism=kind)


def naive_generation(decoder, kind, prompt, secret, noise_seed, length):
    """Recompute everything from the definitions, with scalar loops and a fresh ensemble call for every token."""
    ensemble, curator = BigramEnsemble(), curator_at(secret, ListStore(), noise_seed)
    tokens, answer = list(prompt), []
    for step in range(length):
        rows = ensemble._rows(BigramContext(tokens))
        candidates = sorted(sorted(range(VOCAB), key=lambda c: (-rows[0][c], c))[:5])
        coins = COINS.gumbel(step, 5) if decoder is Decoder.GUMBEL else np.zeros(5)
        temperature = 0.8 if decoder is Decoder.GUMBEL else 1.0
        votes = []
        for row in rows[1:].astype(np.float64):
            scores = {c: row[c] / temperature + u for c, u in zip(candidates, coins, strict=True)}
            votes.append(max(candidates, key=lambda c: (scores[c], -c)))
        released = curator.release(np.array(votes), Charging(0.05), request="naive", step=step, release_mechanism=kind)
        answer.append(GeneratedToken(released.token, len(set(votes)), charge_units(0.05)))
        tokens.append(released.token)
    return answer


@pytest.mark.parametrize("decoder", list(Decoder))
@pytest.mark.parametrize("kind", list(ReleaseMechanism))
@pytest.mark.parametrize("secret", [0, 4])
def test_the_loop_agrees_with_one_that_recomputes_everything(decoder, kind, secret):
    expected = naive_generation(decoder, kind, [3, 1], secret, 5, 12)
    store = ListStore()
    curator = curator_at(secret, store, 5)
    found = list(generate(BigramEnsemble(), [3, 1], settings_for(decoder, kind=kind), curator, COINS, "r", 12))
    assert found == expected
    assert {token.num_active for token in found} - {1}
    assert len(store.states) == 12
    assert store.states[-1].spent_units == 12 * charge_units(0.05)
    assert [record.step for record in store.records] == list(range(12))
    assert {record.coin_key for record in store.records} == {COINS.key if decoder is Decoder.GUMBEL else None}


def test_each_token_is_committed_before_it_is_yielded_and_nothing_runs_ahead():
    store, ensemble = ListStore(), BigramEnsemble()
    stream = generate(ensemble, [0], settings_for(Decoder.GUMBEL), curator_at(1, store), COINS, "r", 8)
    assert not ensemble.calls
    for shown, _ in enumerate(stream, start=1):
        assert len(store.states) == shown
        assert sum(call[0] == "worlds" for call in ensemble.calls) == shown
        if shown == 5:
            break
    assert len(store.states) == 5


def test_the_stop_token_is_released_charged_and_last():
    full = [
        t.token
        for t in generate(BigramEnsemble(), [0], settings_for("greedy"), curator_at(2, ListStore()), COINS, "r", 9)
    ]
    stop = full[4]
    store, ensemble = ListStore(), BigramEnsemble()
    found = list(generate(ensemble, [0], settings_for("greedy"), curator_at(2, store), COINS, "r", 9, {stop}))
    assert [t.token for t in found] == full[: full.index(stop) + 1]
    assert len(store.states) == len(found)


def test_generation_ends_where_the_context_window_does():
    ensemble = BigramEnsemble()
    found = list(
        generate(ensemble, [0] * (WINDOW - 3), settings_for("gumbel"), curator_at(0, ListStore()), COINS, "r", 99)
    )
    assert len(found) == 3
    assert max(call[1] for call in ensemble.calls if call[0] == "public") == WINDOW - 1


def test_what_the_ensemble_sees_does_not_depend_on_the_secret_when_worlds_agree():
    agreeing = np.tile(np.random.default_rng(4).normal(size=(1, VOCAB, VOCAB)), (WORLDS + 1, 1, 1))
    transcripts = set()
    for secret in range(WORLDS):
        ensemble = BigramEnsemble(agreeing)
        curator = curator_at(secret, ListStore(), noise_seed=secret)
        tokens = tuple(generate(ensemble, [5], settings_for(Decoder.GUMBEL), curator, COINS, "r", 10))
        assert {token.num_active for token in tokens} == {1}
        transcripts.add((tokens, tuple(ensemble.calls)))
    assert len(transcripts) == 1


def test_what_the_ensemble_and_the_votes_are_depends_on_the_secret_through_released_tokens_only(monkeypatch):
    fixed = [4, 9, 0, 0, 7, 3]
    seen = set()
    release = Curator.release

    for secret in range(WORLDS):
        ensemble, votes = BigramEnsemble(), []

        def forced(self, votes_M, *rest, votes=votes, **named):
            released = release(self, votes_M, *rest, **named)
            votes.append(tuple(votes_M.tolist()))
            return replace(released, token=fixed[named["step"]])

        monkeypatch.setattr(Curator, "release", forced)
        shown = list(
            generate(ensemble, [5], settings_for(Decoder.GUMBEL), curator_at(secret, ListStore()), COINS, "r", 6)
        )
        assert [token.token for token in shown] == fixed
        seen.add((tuple(votes), tuple(ensemble.calls), tuple(token.num_active for token in shown)))
    assert len(seen) == 1


def test_an_exhausted_budget_ends_the_stream_and_what_was_released_stands():
    store = ListStore()
    curator = curator_at(0, store, total_budget=0.05 * 3.5)
    stream = generate(BigramEnsemble(), [0], settings_for(Decoder.GUMBEL), curator, COINS, "r", 9)
    shown = []
    with pytest.raises(BudgetExhaustedError):
        show(stream, shown)
    assert len(shown) == len(store.states) == 3
    assert units_to_nats(store.states[-1].spent_units) <= 0.05 * 3.5


def test_a_store_that_fails_shows_nothing():
    class FullDisk(ListStore):
        def commit(self, state, records):
            if len(self.states) == 2:
                raise StorageError("disk full")
            super().commit(state, records)

    shown = []
    stream = generate(BigramEnsemble(), [0], settings_for("gumbel"), curator_at(0, FullDisk()), COINS, "r", 9)
    with pytest.raises(StorageError):
        show(stream, shown)
    assert len(shown) == 2


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 5, "empty"),
        ([0] * WINDOW, 5, r"16 tokens and leaves no room.*window of 16 tokens.*at most 15"),
        ([VOCAB], 5, "outside the vocabulary"),
        ([-1], 5, "outside the vocabulary"),
        ([0], 0, "max_tokens"),
    ],
)
def test_a_prompt_that_cannot_be_continued_is_refused_before_anything_is_computed(prompt, max_tokens, message):
    ensemble, store = BigramEnsemble(), ListStore()
    with pytest.raises(InvalidValueError, match=message):
        generate(ensemble, prompt, settings_for("greedy"), curator_at(0, store), COINS, "r", max_tokens)
    assert not ensemble.calls
    assert not store.states


def test_more_candidates_than_tokens_are_refused():
    settings = DecodingSettings(Decoder.GREEDY, 0.05, num_candidates=VOCAB + 1)
    with pytest.raises(InvalidValueError, match="vocabulary size 11"):
        generate(BigramEnsemble(), [0], settings, curator_at(0, ListStore()), COINS, "r", 1)
