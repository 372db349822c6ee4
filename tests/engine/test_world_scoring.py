"""Every world's likelihood of every text, in batches, against PEFT a world and a text at a time."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from test_engine_parity import peft_logits
from tiny_adapters import NUM_WORLDS, random_adapters
from tiny_models import FAMILIES, build_tiny_model, byte_tokenizer

from reticent.engine import world_scoring
from reticent.engine.world_scoring import WorldScorer
from reticent.errors import InvalidValueError
from reticent.layers.forward import batched_decoder
from reticent.text.template import TextTemplate, encode

TEXTS = ["alpha beta", "gamma", "", "delta epsilon zeta eta", "theta", "x"]
TEMPLATE = TextTemplate(max_tokens=64)


def scorer_of(family="llama", names=("attention",), top=2):
    decoder = batched_decoder(build_tiny_model(family))
    adapters = random_adapters(decoder, list(names), 3, top)
    return WorldScorer(decoder, adapters, byte_tokenizer(), TEMPLATE, "run"), adapters


def peft_logp(family, adapters, world, text):
    (encoded,) = encode(byte_tokenizer(), TEMPLATE, [text])
    ids = encoded.token_ids.tolist()
    log_p = log_softmax(peft_logits(family, adapters, world, ids[:-1], torch.float32).astype(np.float64), axis=1)
    return log_p[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("names", "top"), [(["attention"], None), (["all-linear"], 1)])
def test_means_are_those_of_peft_world_by_world(family, names, top):
    scorer, adapters = scorer_of(family, names, top)
    means = scorer.mean_logps(TEXTS)
    assert means.shape == (len(TEXTS), NUM_WORLDS)
    for number, text in enumerate(TEXTS):
        for world in range(NUM_WORLDS):
            if text == "":
                assert np.isnan(means[number, world])
            else:
                expected = peft_logp(family, adapters, world, text).mean()
                np.testing.assert_allclose(means[number, world], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("texts_at_once", "rows_at_once"), [(1, 1), (30, 60), (4096, 4096)])
def test_means_do_not_depend_on_what_is_computed_together(texts_at_once, rows_at_once, monkeypatch):
    scorer, _ = scorer_of()
    expected = scorer.mean_logps(TEXTS)
    monkeypatch.setattr(world_scoring, "_TEXT_TOKENS", texts_at_once)
    monkeypatch.setattr(world_scoring, "_ROW_TOKENS", rows_at_once)
    steps = []
    np.testing.assert_allclose(scorer.mean_logps(TEXTS, steps.append), expected, rtol=1e-5)
    np.testing.assert_allclose(scorer.mean_logps(TEXTS[::-1])[::-1], expected, rtol=1e-5)
    assert sum(steps) == len(TEXTS)


@pytest.mark.parametrize("world", [0, NUM_WORLDS - 1])
def test_one_world_scores_its_own_tokens(world):
    scorer, adapters = scorer_of()
    for text, signals in zip(TEXTS, scorer.world(world).score(TEXTS), strict=True):
        if text == "":
            assert signals is None
        else:
            np.testing.assert_allclose(signals.logp, peft_logp("llama", adapters, world, text), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(signals.entropy, -signals.mu)


def test_worlds_have_fingerprints_of_their_own():
    scorer, _ = scorer_of()
    other = WorldScorer(batched_decoder(build_tiny_model("llama")), scorer_of()[1], byte_tokenizer(), TEMPLATE, "other")
    found = {one.fingerprint for one in (scorer.world(0), scorer.world(1), other.world(0), scorer)}
    assert len(found) == 4
    assert not scorer.world(0).is_white_box


def test_no_texts_and_texts_that_do_not_fit():
    scorer, _ = scorer_of()
    assert scorer.mean_logps([]).shape == (0, NUM_WORLDS)
    long = WorldScorer(
        batched_decoder(build_tiny_model("llama")),
        scorer_of()[1],
        byte_tokenizer(),
        TextTemplate(max_tokens=200),
        "run",
    )
    with pytest.raises(InvalidValueError, match="context of 96"):
        long.mean_logps(["a" * 100])
    with pytest.raises(InvalidValueError, match="world must be"):
        scorer.world(NUM_WORLDS)
