"""One model's votes against those that the worlds' own engine casts for the same model."""

import numpy as np
import pytest
import torch
from rounding import assert_largest
from tiny_models import build_tiny_model

from experiments.studies.model_votes import votes_of_model
from reticent.decoding.votes import Decoder
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import InvalidValueError
from reticent.evaluation.vote_casting import VoteSettings, votes_of_text
from reticent.evaluation.vote_tensor import concatenate_votes
from reticent.layers.adapters import StackedAdapters, select_modules
from reticent.layers.forward import batched_decoder
from reticent.randomness import PublicCoins

TEXTS = [[11, 200, 3, 77, 42, 9], [5, 250, 9], [33, 11, 8, 140, 99, 98, 97, 1, 2]]
SETTINGS = VoteSettings(num_candidates=20, candidate_counts=(5,), coin_seed=5, temperature=0.8)


@pytest.fixture(scope="module")
def model():
    return build_tiny_model("llama")


@pytest.fixture(scope="module")
def tensor(model):
    decoder = batched_decoder(model)
    modules = select_modules(decoder.architecture, ["attention"], 1)
    down = {m.path: 0.3 * torch.randn(2, 2, m.in_features) for m in modules}
    up = {m.path: 0.3 * torch.randn(2, m.out_features, 2) for m in modules}
    forcing = TeacherForcing(decoder, StackedAdapters(down, up, alpha=4.0))
    return concatenate_votes(
        [votes_of_text(forcing, tokens, PublicCoins.from_seed(5, i), SETTINGS) for i, tokens in enumerate(TEXTS)]
    )


def scores_by_hand(model, candidates_NK, decoder):
    """Each candidate's logit, plus temperature times its coin where votes are samples."""
    rows = []
    for text, tokens in enumerate(TEXTS):
        with torch.no_grad():
            logits_NV = model(input_ids=torch.tensor([tokens])).logits[0, :-1].double().numpy()
        for step, logits_V in enumerate(logits_NV):
            candidates_K = candidates_NK[len(rows)]
            coins_K = PublicCoins.from_seed(SETTINGS.coin_seed, text).gumbel(step, len(candidates_K))
            is_sample = decoder is Decoder.GUMBEL
            rows.append(logits_V[candidates_K] + SETTINGS.temperature * coins_K * is_sample)
    return np.array(rows)


@pytest.mark.parametrize("decoder", Decoder)
def test_the_base_votes_as_the_public_row_does(model, tensor, decoder):
    found = votes_of_model(model, TEXTS, tensor, decoder, SETTINGS)
    candidates_NK = np.sort(tensor.candidates_NK, axis=1)
    scores_NK = scores_by_hand(model, candidates_NK, decoder)
    for votes_N in (found, tensor.votes(decoder).public_N):
        assert (candidates_NK == votes_N[:, None]).sum(1).tolist() == [1] * len(votes_N)
        assert_largest((candidates_NK == votes_N[:, None]).argmax(1), scores_NK)


def test_other_texts_are_refused(model, tensor):
    with pytest.raises(InvalidValueError):
        votes_of_model(model, TEXTS[1:], tensor, Decoder.GREEDY, SETTINGS)
