"""Aggregates of a step: the sum of votes by hand, errors for the public row alone, engines that give something else."""

import math

import numpy as np
import pytest
from server.engine_parts import VOCABULARY, WORLDS, Arithmetic

from reticent.decoding.aggregates import CorpusDecoding, aggregate_step
from reticent.dp.relations import Relation
from reticent.dp.release import Aggregate, CorpusSettings
from reticent.errors import InvalidValueError

SETTINGS = CorpusSettings(0.5, 1.0, 1.0, 4, WORLDS, Relation.ADD_REMOVE)


def normalised(logits):
    return [x - math.log(sum(math.exp(y) for y in logits)) for x in logits]


def test_a_step_adds_up_what_each_world_says_beyond_the_public_model():
    engine = Arithmetic()
    contexts = [engine.open(prompt) for prompt in ([3, 1], [2])]
    for context, found in zip(contexts, aggregate_step(engine, contexts, SETTINGS), strict=True):
        logits = engine.public_logits(context).astype(float)
        best = sorted(sorted(range(VOCABULARY), key=lambda token: (-logits[token], token))[:4])
        assert found.candidates_K.tolist() == best
        public = normalised(logits[best])
        assert found.public_logp_K == pytest.approx(public, abs=1e-12)
        expected = [0] * 4
        for row in engine.world_logits(context, np.array(best)).astype(float):
            for place, own in enumerate(normalised(row)):
                expected[place] += max(-(2**23), min(2**23, round((own - public[place]) * 2**24)))
        assert found.sum_K.tolist() == pytest.approx(expected, abs=WORLDS)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_a_world_that_is_not_finite_raises_nothing_and_the_public_row_does(poison):
    class Poisoned(Arithmetic):
        def world_logits(self, context, candidates_K):
            logits_MK = super().world_logits(context, candidates_K)
            logits_MK[1, 2] = poison
            return logits_MK

    engine = Poisoned()
    engine.poisoned = {9}
    contexts = [engine.open([3]), engine.open([9]), engine.open([4])]
    first, second, third = aggregate_step(engine, contexts, SETTINGS)
    assert isinstance(second, InvalidValueError)
    assert isinstance(first, Aggregate)
    assert isinstance(third, Aggregate)


@pytest.mark.parametrize(
    "made",
    [
        lambda k, m: Aggregate(np.arange(k - 1), np.zeros(k - 1), np.zeros(k - 1, np.int64)),
        lambda k, m: Aggregate(np.arange(k) + VOCABULARY, np.zeros(k), np.zeros(k, np.int64)),
        lambda k, m: Aggregate(np.arange(k) - 1, np.zeros(k), np.zeros(k, np.int64)),
        lambda k, m: Aggregate(np.arange(k), np.zeros(k), np.full(k, m * 2**23 + 1)),
    ],
    ids=["too few", "beyond the vocabulary", "negative", "more votes than worlds"],
)
def test_what_is_no_aggregate_of_these_settings_is_an_error_of_its_context(made):
    engine = Arithmetic()
    engine.aggregates = lambda contexts, settings: [made(4, WORLDS)]
    [found] = aggregate_step(engine, [engine.open([1])], SETTINGS)
    assert isinstance(found, InvalidValueError)


def test_an_engine_that_fails_as_a_whole_fails_each_context():
    engine = Arithmetic()
    contexts = [engine.open([1]), engine.open([2])]
    engine.aggregates = lambda contexts, settings: []
    assert [type(found) for found in aggregate_step(engine, contexts, SETTINGS)] == [InvalidValueError] * 2


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_an_answers_temperature_is_positive(temperature):
    with pytest.raises(InvalidValueError, match="temperature"):
        CorpusDecoding(SETTINGS, temperature)
    assert CorpusDecoding.of(SETTINGS).reserve_units == SETTINGS.charge_units
