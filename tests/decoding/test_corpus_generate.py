"""The token loop of a corpus deployment: charged, stopped and drawn as the curator alone decides."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare
from server.engine_parts import VOCABULARY, WORLDS, Arithmetic
from tiny_adapters import NUM_WORLDS, random_adapters
from tiny_models import build_tiny_model

from reticent.decoding.aggregates import CorpusDecoding
from reticent.decoding.corpus_generate import generate_from_corpus
from reticent.dp.curator import CorpusCurator, CorpusState
from reticent.dp.relations import Relation
from reticent.dp.release import CorpusSettings, integer_weights
from reticent.engine.corpus_engine import CorpusEngine
from reticent.errors import BudgetExhaustedError, InvalidValueError
from reticent.layers.forward import batched_decoder
from reticent.randomness import SystemNoise

SETTINGS = CorpusSettings(0.5, 4.0, 1.0, 6, WORLDS, Relation.REPLACEMENT)


class KeptInMemory:
    def __init__(self) -> None:
        self.records: list[object] = []

    def commit(self, state, records) -> None:
        self.records += records

    def reconcile(self, state):
        return state


def deployment(settings: CorpusSettings = SETTINGS, tokens: int | None = None) -> tuple[CorpusCurator, KeptInMemory]:
    store = KeptInMemory()
    cap = None if tokens is None else tokens * settings.charge_units
    return CorpusCurator(CorpusState(settings, cap_units=cap), store, SystemNoise()), store


def released(engine, curator: CorpusCurator, prompt, count: int, temperature: float = 1.0, **options) -> list[int]:
    decoding = CorpusDecoding(curator.settings, temperature)
    found = generate_from_corpus(engine, prompt, decoding, curator, "r", count, **options)
    return [each.token for each in found]


def test_every_token_is_charged_alike_and_recorded_in_order() -> None:
    curator, store = deployment()
    tokens = released(Arithmetic(), curator, [3, 1], 7)
    assert len(tokens) == 7
    assert [(record.request, record.step, record.charge_units) for record in store.records] == [
        ("r", step, SETTINGS.charge_units) for step in range(7)
    ]
    assert curator.account.spent_units == 7 * SETTINGS.charge_units


def test_it_ends_at_a_stop_token_at_the_cap_and_with_its_consumer() -> None:
    engine = Arithmetic()
    curator, store = deployment()
    stops = set(range(VOCABULARY))
    assert len(released(engine, curator, [3], 5, stop_tokens=stops)) == 1
    curator, _ = deployment(tokens=3)
    answer = generate_from_corpus(engine, [3], CorpusDecoding.of(SETTINGS), curator, "r", 5)
    for _ in range(3):
        next(answer)
    with pytest.raises(BudgetExhaustedError):
        next(answer)
    curator, store = deployment()
    next(generate_from_corpus(engine, [3], CorpusDecoding.of(SETTINGS), curator, "r", 5))
    assert len(store.records) == 1


@pytest.mark.parametrize(("prompt", "count", "drafts"), [([], 1, 0), ([3], 0, 0), ([3], 1, -1), ([VOCABULARY], 1, 0)])
def test_what_cannot_be_generated_is_refused_before_anything_is_charged(prompt, count, drafts) -> None:
    curator, store = deployment()
    with pytest.raises(InvalidValueError):
        released(Arithmetic(), curator, prompt, count, num_drafts=drafts)
    assert not store.records


@pytest.mark.parametrize("drafts", [0, 3])
def test_tokens_follow_the_weights_with_and_without_drafts(drafts: int) -> None:
    """The second token, given the first, against the weights of its aggregate, whatever was drafted there."""
    settings = CorpusSettings(1.0, 2.0, 1.0, 4, NUM_WORLDS, Relation.REPLACEMENT)
    decoder = batched_decoder(build_tiny_model("llama"))
    adapters = random_adapters(decoder, ["attention"], 3, None)
    engine = CorpusEngine(decoder, adapters, np.ones(NUM_WORLDS, dtype=bool))
    curator, _ = deployment(settings)
    pairs = Counter(tuple(released(engine, curator, [5, 9], 2, temperature=0.7, num_drafts=drafts)) for _ in range(400))
    first = engine.open([5, 9])
    [aggregate] = engine.aggregates([first], settings)
    expected = {}
    weights = integer_weights(aggregate, settings, 0.7)
    for token, weight in zip(aggregate.candidates_K.tolist(), weights, strict=True):
        second = engine.open([5, 9])
        engine.extend([second], [token])
        [after] = engine.aggregates([second], settings)
        of_second = integer_weights(after, settings, 0.7)
        for other, other_weight in zip(after.candidates_K.tolist(), of_second, strict=True):
            expected[token, other] = 400 * (weight / sum(weights)) * (other_weight / sum(of_second))
    assert set(pairs) <= set(expected)
    kinds = list(expected)
    assert chisquare([pairs[kind] for kind in kinds], [expected[kind] for kind in kinds]).pvalue > 1e-6
