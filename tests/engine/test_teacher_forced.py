"""Whole texts at once, against the engine one token at a time and against PEFT."""

import numpy as np
import pytest
import torch
from rounding import assert_largest
from test_engine_parity import peft_logits
from tiny_adapters import random_adapters
from tiny_models import FAMILIES, build_tiny_model

from reticent.engine.engine import Engine
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import InvalidValueError
from reticent.layers.forward import batched_decoder

TOKENS = [11, 200, 3, 77, 42, 9, 140, 5, 250, 33, 11, 200]
NUM_CANDIDATES = 20
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def one_block(forcing, tokens=TOKENS, k=NUM_CANDIDATES, **options):
    (block,) = forcing.blocks(tokens, k, **options)
    return block


def by_token(block, name):
    """A block's logits at all tokens, in ascending order of token id; [..., N, V]."""
    logits, order = getattr(block, name), block.candidates_NK.argsort(1)
    return np.take_along_axis(logits, np.broadcast_to(order, logits.shape), axis=-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("names", "top"), [(["attention"], None), (["all-linear"], 2)])
def test_every_position_is_what_the_engine_and_peft_compute(family, names, top):
    decoder = batched_decoder(build_tiny_model(family))
    worlds = random_adapters(decoder, names, 3, top)
    full = random_adapters(decoder, names, 3, top, seed=7).one(0)
    block = one_block(TeacherForcing(decoder, worlds, full))
    engine = Engine(decoder, worlds)
    context = engine.open(TOKENS[:1])
    every_logit = np.stack([peft_logits(family, worlds, j, TOKENS[:-1], torch.float32) for j in range(4)])
    full_logit = peft_logits(family, full, 0, TOKENS[:-1], torch.float32)

    np.testing.assert_allclose(
        block.worlds_log_normaliser_MP, np.logaddexp.reduce(every_logit, axis=2), rtol=2e-4, atol=2e-4
    )
    assert_largest(block.full_argmax_N, full_logit)
    for position, token in enumerate(TOKENS[1:]):
        candidates_K = block.candidates_NK[position]
        public_V = engine.public_logits(context)
        assert candidates_K.size == NUM_CANDIDATES
        assert_largest(candidates_K, public_V[None])
        assert_largest(candidates_K[:1], public_V[None])
        np.testing.assert_allclose(block.public_NK[position], public_V[candidates_K], **CLOSE)
        np.testing.assert_allclose(block.worlds_MNK[:, position], engine.world_logits(context, candidates_K), **CLOSE)
        np.testing.assert_allclose(block.worlds_MNK[:, position], every_logit[:, position, candidates_K], **CLOSE)
        np.testing.assert_allclose(block.full_NK[position], full_logit[position, candidates_K], **CLOSE)
        if position + 2 < len(TOKENS):
            engine.extend([context], [token])


def test_worlds_in_parts_and_positions_in_blocks_are_the_same_numbers(monkeypatch):
    decoder = batched_decoder(build_tiny_model("llama"))
    forcing = TeacherForcing(decoder, random_adapters(decoder, ["attention"], 3, 2))
    everything = forcing.vocab_size
    whole = one_block(forcing, k=everything)
    monkeypatch.setattr("reticent.engine.teacher_forced._TOKENS_AT_ONCE", 3 * len(TOKENS))
    monkeypatch.setattr("reticent.engine.teacher_forced._POSITIONS_AT_ONCE", 5)
    monkeypatch.setattr("reticent.engine.teacher_forced._LOGIT_ROWS_AT_ONCE", 3)
    blocks = list(forcing.blocks(TOKENS, everything, normalise_every=4))
    assert [block.start for block in blocks] == [0, 5, 10]
    assert [(block.start + block.normalised_P).tolist() for block in blocks] == [[0, 4], [8], []]
    for name in ("public_NK", "worlds_MNK"):
        found = np.concatenate([by_token(block, name) for block in blocks], axis=-2)
        np.testing.assert_allclose(found, by_token(whole, name), **CLOSE)
    normalisers = np.concatenate([b.worlds_log_normaliser_MP for b in blocks], axis=1)
    np.testing.assert_allclose(normalisers, whole.worlds_log_normaliser_MP[:, ::4], **CLOSE)
    assert whole.full_NK is None


def test_some_positions_alone_are_those_among_all():
    decoder = batched_decoder(build_tiny_model("llama"))
    forcing = TeacherForcing(
        decoder,
        random_adapters(decoder, ["attention"], 3, 2),
        random_adapters(decoder, ["attention"], 3, 2, seed=7).one(0),
    )
    everything, some = forcing.vocab_size, np.array([3, 4, 9])
    whole, part = one_block(forcing, k=everything), one_block(forcing, k=everything, positions=some)
    for name in ("public_NK", "worlds_MNK", "full_NK"):
        np.testing.assert_allclose(by_token(part, name), by_token(whole, name)[..., some, :], **CLOSE)
    np.testing.assert_allclose(part.worlds_log_normaliser_MP, whole.worlds_log_normaliser_MP[:, some], **CLOSE)


def test_fewer_candidates_are_the_first_of_more():
    decoder = batched_decoder(build_tiny_model("gpt2"))
    forcing = TeacherForcing(decoder, random_adapters(decoder, ["attention"], 1, 1))
    few, many = (one_block(forcing, k=k).candidates_NK for k in (7, forcing.vocab_size))
    np.testing.assert_array_equal(few, many[:, :7])
    assert (np.sort(many, axis=1) == np.arange(forcing.vocab_size)).all()


@pytest.mark.parametrize(
    ("tokens", "k", "words"), [([1], 5, "1 tokens"), ([1] * 97, 5, "97 tokens"), ([1, 2], 0, "candidates")]
)
def test_what_cannot_be_read_is_refused(tokens, k, words):
    decoder = batched_decoder(build_tiny_model("llama"))
    forcing = TeacherForcing(decoder, random_adapters(decoder, ["attention"], 1, 1))
    with pytest.raises(InvalidValueError, match=words):
        next(forcing.blocks(tokens, k))
