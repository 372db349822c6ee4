"""Free-running text against the token loop of deployments, and quality rows against what they are made of."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import build_tiny_model

from experiments.studies.free_text import ByControl, ByCurator, FixedWorld, PublicAsWorld, free_texts
from experiments.studies.quality import QualityModels, QualitySettings, measure_quality
from experiments.studies.reference_model import token_log_probabilities
from experiments.studies.text_quality import distinct, repetition
from reticent.decoding.generate import generate
from reticent.decoding.votes import Decoder, DecodingSettings
from reticent.engine.engine import Engine
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control
from reticent.evaluation.discarding_store import DiscardingStore
from reticent.layers.adapters import StackedAdapters, select_modules
from reticent.layers.forward import batched_decoder
from reticent.pac.curator import Curator, CuratorState
from reticent.pac.mechanism import ReleaseMechanism
from reticent.randomness import PublicCoins, SeededNoise

WORLDS, PROMPTS = 4, [[11, 200, 3], [5, 250, 9, 7], [33]]
DECODING = DecodingSettings(Decoder.GUMBEL, 2.0**-4, num_candidates=30)


def adapters(decoder, count, seed):
    generator = torch.Generator().manual_seed(seed)
    modules = select_modules(decoder.architecture, ["attention"], 2)
    down = {m.path: 0.15 * torch.randn(count, 2, m.in_features, generator=generator) for m in modules}
    up = {m.path: 0.15 * torch.randn(count, m.out_features, 2, generator=generator) for m in modules}
    return StackedAdapters(down, up, alpha=4.0)


@pytest.fixture(scope="module")
def model():
    return build_tiny_model("llama")


@pytest.fixture(scope="module")
def engine(model):
    decoder = batched_decoder(model)
    return Engine(decoder, adapters(decoder, WORLDS, 1))


@pytest.mark.parametrize("mechanism", ReleaseMechanism)
def test_texts_in_lockstep_are_those_of_the_token_loop(engine, mechanism):
    decoding = replace(DECODING, release_mechanism=mechanism)
    found = free_texts(
        engine, PROMPTS, 10, decoding, [ByCurator(decoding, WORLDS, SeededNoise(i)) for i in range(3)], 7
    )
    for text, prompt in enumerate(PROMPTS):
        noise = SeededNoise(text)
        curator = Curator.for_experiments(CuratorState.initial(WORLDS, noise), DiscardingStore(), noise)
        coins = PublicCoins.from_seed(7, text)
        alone = list(generate(engine, prompt, decoding, curator, coins, "x", 10))
        assert found.tokens[text] == [token.token for token in alone]
        assert found.dissent[text] == sum(token.num_active > 1 for token in alone) / 10


def test_texts_do_not_depend_on_how_many_grow_together(engine):
    together, apart = (
        free_texts(engine, PROMPTS, 6, DECODING, [FixedWorld(2)] * 3, 0, texts_at_once=at_once) for at_once in (3, 1)
    )
    assert together.tokens == apart.tokens


def test_the_public_model_as_a_world_samples_by_the_same_coins(model, engine):
    greedy = DecodingSettings(Decoder.GREEDY, 1.0, num_candidates=1)
    found = free_texts(PublicAsWorld(engine), PROMPTS, 8, greedy, [FixedWorld()] * 3, 0)
    for prompt, tokens in zip(PROMPTS, found.tokens, strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None)
        assert tokens == expected[0, len(prompt) :].tolist()


def test_reference_probabilities_are_the_models(model):
    tokens = [11, 200, 3, 77, 42]
    with torch.no_grad():
        expected = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)
    wanted = [float(expected[n, tokens[n + 1]]) for n in range(4)]
    np.testing.assert_allclose(token_log_probabilities(model, tokens), wanted, rtol=1e-5)


@pytest.fixture(scope="module")
def quality(model, engine):
    decoder = batched_decoder(model)
    full = Engine(decoder, adapters(decoder, 1, 2))
    texts = np.random.default_rng(0).integers(0, 256, size=(3, 20)).tolist()
    settings = QualitySettings(
        prompt_tokens=4, num_tokens=12, decoding=DECODING, budgets=(2.0**-32, 2.0**8), texts_at_once=2, seed=3
    )
    told = []
    return texts, told, measure_quality(QualityModels(engine, full, model), texts, settings, told.append)


def test_every_method_has_a_row(quality):
    _, told, found = quality
    methods = ["human", "public-greedy", "public", "full-data", "noiseless", "plurality", "fresh-world"]
    mechanisms = [(mechanism.value, budget) for mechanism in ReleaseMechanism for budget in (2.0**8, 2.0**-32)]
    assert [(row.method, row.step_budget) for row in found.rows] == [(m, None) for m in methods] + mechanisms
    assert len(told) == len(found.rows) - 1
    assert found.row("human").dissent is None
    assert found.row("full-data").dissent is None
    assert found.row("gaussian", 2.0**-32).dissent.value > 0


def test_the_human_row_is_made_of_the_texts_themselves(model, quality):
    texts, _, found = quality
    human = [text[4:16] for text in texts]
    row = found.row("human")
    assert row.repetition == repetition(human, 3)
    assert row.distinct == tuple(distinct(human, n) for n in (1, 2, 3))
    surprise = -np.mean([token_log_probabilities(model, text[:16])[3:].mean() for text in texts])
    assert row.reference_nats.value == pytest.approx(surprise)
    assert row.perplexity == pytest.approx(math.exp(surprise))


def test_greedy_text_is_the_least_surprising(quality):
    *_, found = quality
    greedy = found.row("public-greedy").reference_nats.value
    assert all(row.reference_nats.value > greedy for row in found.rows if row.method != "public-greedy")


def test_what_cannot_be_generated_is_refused(model, engine):
    models = QualityModels(engine, None, model)
    for texts in ([], [[1] * 10]):
        with pytest.raises(InvalidValueError, match="every text"):
            measure_quality(models, texts, QualitySettings(prompt_tokens=4, num_tokens=12))
    with pytest.raises(InvalidValueError, match="chooser"):
        free_texts(engine, PROMPTS, 4, DECODING, [FixedWorld()], 0)
    with pytest.raises(InvalidValueError, match="room"):
        free_texts(engine, [[1] * 94], 4, DECODING, [ByControl(Control.PLURALITY, np.random.default_rng(0))], 0)
