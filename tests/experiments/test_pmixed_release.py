"""PMixED along a text, against its own distribution taken position by position."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from tiny_models import build_tiny_model

from experiments.studies.pmixed import PMixedSettings
from experiments.studies.pmixed_release import release_pmixed
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import InvalidValueError
from reticent.layers.adapters import StackedAdapters, select_modules
from reticent.layers.forward import batched_decoder

SHARDS, K, TEXT = 4, 6, [11, 200, 3, 77, 42, 9, 30, 30, 31]


@pytest.fixture(scope="module")
def forcing():
    decoder = batched_decoder(build_tiny_model("llama"))
    generator = torch.Generator().manual_seed(1)
    modules = select_modules(decoder.architecture, ["attention"], 2)
    down = {m.path: 0.2 * torch.randn(SHARDS, 2, m.in_features, generator=generator) for m in modules}
    up = {m.path: 0.2 * torch.randn(SHARDS, m.out_features, 2, generator=generator) for m in modules}
    return TeacherForcing(decoder, StackedAdapters(down, up, alpha=4.0))


@pytest.fixture(scope="module")
def block(forcing):
    return next(forcing.blocks(TEXT, K))


def frequencies(tokens_NR, candidates_NK):
    return (tokens_NR[:, :, None] == candidates_NK[:, None]).mean(axis=1)


def test_without_a_ball_the_public_model_speaks(forcing, block):
    found = release_pmixed(forcing, TEXT, [PMixedSettings(SHARDS, 0.5, 2, 0.0)], K, 4000, np.random.default_rng(0))
    public = softmax(block.public_NK.astype(float), axis=1)
    np.testing.assert_allclose(frequencies(found.tokens_NR[0], block.candidates_NK), public, atol=0.04)
    is_next = block.candidates_NK == np.array(TEXT[1:])[:, None]
    np.testing.assert_allclose(found.public_match_N, (public * is_next).sum(axis=1))


def test_with_a_wide_ball_the_mean_of_the_shards_speaks(forcing, block):
    wide = PMixedSettings(SHARDS, 1.0, 2, 60.0)
    found = release_pmixed(
        forcing, TEXT, [PMixedSettings(SHARDS, 0.5, 2, 0.0), wide], K, 4000, np.random.default_rng(0)
    )
    shards = softmax(block.worlds_MNK.astype(float), axis=2).mean(axis=0)
    public = softmax(block.public_NK.astype(float), axis=1)
    assert np.abs(shards - public).max() > 0.1
    np.testing.assert_allclose(frequencies(found.tokens_NR[1], block.candidates_NK), shards, atol=0.04)


def test_settings_must_be_for_these_shards(forcing):
    with pytest.raises(InvalidValueError, match="shards"):
        release_pmixed(forcing, TEXT, [PMixedSettings(8, 0.5, 2, 0.1)], K, 1, np.random.default_rng(0))
