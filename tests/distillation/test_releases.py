"""Tokens released on public texts: the realised world's own choices, in their places, never past the cap."""

import numpy as np
import pytest
import torch
from rounding import assert_largest
from tiny_models import EOS, build_tiny_model

from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.distillation.releases import ContinuationRelease, LabelledText, LabelRelease, release_texts
from reticent.engine.engine import Engine
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import StorageError
from reticent.layers.adapters import StackedAdapters, select_modules
from reticent.layers.forward import batched_decoder
from reticent.pac.charging import ChargingRule
from reticent.pac.curator import Curator, CuratorState
from reticent.randomness import SeededNoise
from reticent.text.template import IGNORED_LABEL

WORLDS, RANK, ALPHA, SECRET = 4, 2, 4.0, 3
TEXTS = [np.array([11, 200, 3, 77, 42, 9]), np.array([5, 250, 9]), np.array([33, 11, 8, 140, 99, 98, 97, 1, 2])]
CLEAR = 2.0**10
"""A step budget at which no noise is left: what leaves is the realised world's vote."""


@pytest.fixture(scope="module")
def model():
    return build_tiny_model("llama")


@pytest.fixture(scope="module")
def worlds(model):
    generator = torch.Generator().manual_seed(4)
    modules = select_modules(batched_decoder(model).architecture, ["attention"], 1)
    down = {m.path: 0.5 * torch.randn(WORLDS, RANK, m.in_features, generator=generator) for m in modules}
    up = {m.path: 0.5 * torch.randn(WORLDS, m.out_features, RANK, generator=generator) for m in modules}
    return StackedAdapters(down, up, alpha=ALPHA)


@pytest.fixture(scope="module")
def forcing(model, worlds):
    return TeacherForcing(batched_decoder(model), worlds)


class ListStore:
    def __init__(self):
        self.batches = []

    def commit(self, state, records):
        self.batches.append(list(records))


class FailingStore(ListStore):
    def commit(self, state, records):
        raise StorageError("the disk is full")


def settings(rule=ChargingRule.FIXED, step_budget=CLEAR, decoder=Decoder.GREEDY):
    return DecodingSettings(decoder, step_budget, num_candidates=258, charging_rule=rule)


def curator(store, rule=ChargingRule.FIXED, cap=None):
    initial = CuratorState.initial(WORLDS, SeededNoise(0), cap, rule)
    state = CuratorState(SECRET, initial.log_posterior, cap_units=initial.cap_units, charging_rule=rule)
    return Curator.for_experiments(state, store, SeededNoise(1))


def logits_of_realised_world(worlds, tokens):
    """The realised world's logits at each position, from a model of `transformers` with the adapter added in."""
    merged = build_tiny_model("llama")
    with torch.no_grad():
        for path in worlds.down:
            weight = merged.get_submodule(path).weight
            weight += ALPHA / RANK * worlds.up[path][SECRET] @ worlds.down[path][SECRET]
        return merged(input_ids=torch.tensor([tokens.tolist()])).logits[0].double().numpy()


def test_without_noise_labels_are_the_choices_of_the_realised_world(forcing, worlds):
    for tokens in TEXTS:
        store = ListStore()
        text = LabelRelease(forcing, curator(store), settings())(tokens, 100)
        assert text.labels[0] == IGNORED_LABEL
        assert text.num_public == len(tokens)
        assert text.token_ids.tolist() == tokens.tolist()
        logits_NV = logits_of_realised_world(worlds, tokens)[:-1]
        assert_largest(text.labels[1:], logits_NV)
        assert [len(batch) for batch in store.batches] == [len(tokens) - 1], "a text is one commit"


def test_samples_differ_from_choices_and_keep_their_coins(forcing):
    store = ListStore()
    text = LabelRelease(forcing, curator(store), settings(decoder=Decoder.GUMBEL))(TEXTS[2], 100)
    greedy = LabelRelease(forcing, curator(ListStore()), settings())(TEXTS[2], 100)
    assert text.labels.tolist() != greedy.labels.tolist()
    assert len({record.coin_key for record in store.batches[0]}) == 1
    assert [record.step for record in store.batches[0]] == list(range(len(TEXTS[2]) - 1))


def test_continuations_stand_behind_their_prompts(model, worlds):
    release = ContinuationRelease(
        Engine(batched_decoder(model), worlds), curator(ListStore()), settings(), 3, 8, frozenset({EOS})
    )
    text = release(TEXTS[2], 100)
    assert text.num_public == 3
    assert text.token_ids[:3].tolist() == TEXTS[2][:3].tolist()
    assert 1 <= text.num_released <= 5
    assert text.labels[:3].tolist() == [IGNORED_LABEL] * 3
    assert text.labels[3:].tolist() == text.token_ids[3:].tolist()
    logits_NV = logits_of_realised_world(worlds, text.token_ids)
    assert_largest(text.token_ids[3:], logits_NV[2:-1])


@pytest.mark.parametrize("mode", ["label", "continue"])
def test_the_cap_ends_the_release_and_what_left_before_stands(mode, model, worlds, forcing, tmp_path):
    step_budget, covered = 2.0**-10, 4
    held = curator(ListStore(), cap=covered * step_budget)
    chosen = settings(step_budget=step_budget)
    release = LabelRelease(forcing, held, chosen)
    if mode == "continue":
        release = ContinuationRelease(Engine(batched_decoder(model), worlds), held, chosen, 2, 5, frozenset())
    texts = [TEXTS[1], *TEXTS] if mode == "label" else TEXTS
    released = release_texts(release, texts, 1000, tmp_path, Silent())
    assert sum(text.num_released for text in released) == covered
    assert [text.is_exhausted for text in released] == [False] * (len(released) - 1) + [True]
    assert len(released) == 2
    assert held.account.spent_nats == covered * step_budget


def test_free_tokens_behind_a_refused_one_are_left_out(forcing):
    tokens = np.array([7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20] * 3)
    step_budget = 2.0**-10
    store = ListStore()
    held = curator(store, ChargingRule.DISSENT, 2 * step_budget)
    text = LabelRelease(forcing, held, settings(ChargingRule.DISSENT, step_budget))(tokens, 100)
    assert text.is_exhausted
    kept = text.labels[1:] != IGNORED_LABEL
    assert 0 < kept.sum() < len(kept)
    assert kept.tolist() == sorted(kept.tolist(), reverse=True), "nothing after the first refused token"
    assert held.account.spent_nats == 2 * step_budget


def test_no_more_tokens_are_released_than_asked_for(forcing, tmp_path):
    store = ListStore()
    released = release_texts(LabelRelease(forcing, curator(store), settings()), TEXTS, 6, tmp_path, Silent())
    assert [text.num_released for text in released] == [5, 1]
    assert sum(len(batch) for batch in store.batches) == 6


def test_a_text_on_disk_is_not_released_again(forcing, tmp_path):
    first, again = ListStore(), ListStore()
    begun = release_texts(LabelRelease(forcing, curator(first), settings()), TEXTS[:2], 100, tmp_path, Silent())
    whole = release_texts(LabelRelease(forcing, curator(again), settings()), TEXTS, 100, tmp_path, Silent())
    assert [len(batch) for batch in again.batches] == [len(TEXTS[2]) - 1]
    for one, other in zip(begun, whole[:2], strict=True):
        assert one.labels.tolist() == other.labels.tolist()


def test_nothing_is_kept_of_a_text_whose_charges_are_not_durable(forcing, tmp_path):
    with pytest.raises(StorageError):
        release_texts(LabelRelease(forcing, curator(FailingStore()), settings()), TEXTS, 100, tmp_path, Silent())
    assert list(tmp_path.iterdir()) == []


def test_a_released_text_comes_back_from_disk(tmp_path):
    text = LabelledText(np.array([1, 2, 3]), np.array([IGNORED_LABEL, 5, 6]), 3, is_exhausted=True)
    text.save(tmp_path / "text.npz")
    found = LabelledText.load(tmp_path / "text.npz")
    assert (found.token_ids.tolist(), found.labels.tolist()) == ([1, 2, 3], [IGNORED_LABEL, 5, 6])
    assert (found.num_public, found.is_exhausted, found.num_released) == (3, True, 2)


class Silent:
    def note(self, line):
        pass

    def begin(self, what, num_tokens):
        pass

    def advance(self, num_tokens):
        pass
