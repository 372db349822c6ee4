"""Recorded decode steps against plain ones, over everything that makes a recording invalid."""

import gc
import weakref

import numpy as np
import pytest
import torch
from test_engine_parity import PROMPT
from tiny_adapters import random_adapters
from tiny_models import FAMILIES, build_tiny_model

from reticent.engine import cuda_graphs as recording
from reticent.engine.engine import Engine
from reticent.layers.forward import batched_decoder

PROMPTS = [PROMPT, PROMPT[:2], [*PROMPT, 8, 8], PROMPT[3:]]
# Which contexts decode in each step: they come back, join, leave and change places, and their caches grow meanwhile.
TOGETHER = [(0, 1)] * 4 + [(0, 1, 2)] * 3 + [(2, 1, 0)] * 3 + [(0, 1)] * 4 + [(3,), (3,), (0, 1), (3,)] * 2 + [(1,)] * 3


@pytest.fixture
def recordings(monkeypatch):
    """How many contexts each recording was of; and caches grow every 8 positions."""
    monkeypatch.setattr("reticent.engine.engine._CAPTURED_CACHE_BLOCK", 8)
    record, made = recording._capture_on_host, []

    def counted(step, contexts, tokens, positions):
        made.append(len(contexts))
        return record(step, contexts, tokens, positions)

    monkeypatch.setattr(recording, "_capture_on_host", counted)
    return made


def pair_of_engines(family="llama"):
    decoder = batched_decoder(build_tiny_model(family))
    adapters = random_adapters(decoder, ["attention"], 3, 2)
    return Engine(decoder, adapters), Engine(decoder, adapters, capture_graphs=True)


def compare(plain, recorded, tolerance):
    candidates = np.arange(plain.vocab_size)
    theirs, ours = ([engine.open(prompt) for prompt in PROMPTS] for engine in (plain, recorded))
    for step, numbers in enumerate(TOGETHER):
        tokens = [step + 50 * number for number in numbers]
        plain.extend([theirs[number] for number in numbers], tokens)
        recorded.extend([ours[number] for number in numbers], tokens)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(
                recorded.world_logits(one, candidates),
                plain.world_logits(other, candidates),
                rtol=tolerance,
                atol=tolerance,
            )


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_steps_are_the_same_steps(family, recordings):
    compare(*pair_of_engines(family), tolerance=2e-4)
    assert len(recordings) > 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_steps_on_cuda_match_the_processor(monkeypatch):
    monkeypatch.setattr("reticent.engine.engine._CAPTURED_CACHE_BLOCK", 8)
    plain, _ = pair_of_engines()
    decoder = batched_decoder(build_tiny_model("llama").cuda())
    compare(plain, Engine(decoder, random_adapters(decoder, ["attention"], 3, 2)), tolerance=1e-3)


def test_contexts_that_take_turns_are_recorded_once_each(recordings, monkeypatch):
    monkeypatch.setattr("reticent.engine.engine._CAPTURED_CACHE_BLOCK", 64)
    _, engine = pair_of_engines()
    contexts = [engine.open(prompt) for prompt in PROMPTS]
    for step in range(10):
        engine.extend(contexts[:1], [step])
        engine.extend(contexts[1:], [step] * 3)
    assert recordings == [1, 3]


def test_what_is_recorded_keeps_no_context(recordings):
    _, engine = pair_of_engines()
    contexts = [engine.open(prompt) for prompt in PROMPTS]
    for step in range(3):
        engine.extend(contexts, [step] * len(contexts))
    assert recordings
    caches = [weakref.ref(cache) for context in contexts for cache in context.caches]
    tensors = [weakref.ref(contexts[0].caches[0].key_GTHC)]
    del contexts
    gc.collect()
    assert not any(cache() for cache in caches)
    engine.open(PROMPT)
    gc.collect()
    assert tensors[0]() is None


def test_a_recording_that_fails_is_tried_again(recordings, monkeypatch):
    plain, engine = pair_of_engines()
    mine, other = engine.open(PROMPT[:2]), plain.open(PROMPT[:2])
    engine.extend([mine], [1])
    record = recording._capture_on_host

    def fails(*arguments):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(recording, "_capture_on_host", fails)
    with pytest.raises(torch.OutOfMemoryError):
        engine.extend([mine], [2])
    monkeypatch.setattr(recording, "_capture_on_host", record)
    engine.extend([mine], [2])
    for token in (1, 2):
        plain.extend([other], [token])
    candidates = np.arange(plain.vocab_size)
    np.testing.assert_allclose(
        engine.world_logits(mine, candidates), plain.world_logits(other, candidates), rtol=2e-4, atol=2e-4
    )
