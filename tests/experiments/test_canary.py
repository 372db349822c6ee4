"""Emission of canaries on votes made by hand, where every rate is known; token boundaries on a real tokenizer."""

import numpy as np
import pytest
from hand_made_votes import tensor_of
from tiny_models import byte_tokenizer

from experiments.studies.canary import (
    CanaryStudySettings,
    CanaryTexts,
    canary_study,
    canary_texts,
    count_single_emissions,
    emission_row,
)
from reticent.auditing.canaries.planting import CanaryKind, draw_canaries
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control
from reticent.pac.mechanism import ReleaseMechanism

WORLDS = 8
# One prefix token, then a secret of two. Canary 0 is in worlds 0-3, canary 1 in none.
TEXTS = CanaryTexts(
    tokens=[[0, 1, 5, 6], [0, 1, 2, 3]],
    first_secret_I=np.array([2, 2]),
    canary_I=np.array([0, 1]),
    members_CM=np.array([[True] * 4 + [False] * 4, [False] * 8]),
)


def votes():
    """Worlds that hold canary 0 know it by heart; the others, and all worlds for canary 1, say 7."""
    rows = np.full((6, WORLDS), 7)
    rows[0] = rows[3] = 1
    rows[1, :4], rows[2, :4] = 5, 6
    return tensor_of(rows, [1, 5, 6, 1, 2, 3], [1, 5, 7, 1, 7, 7], full=[1, 5, 6, 1, 7, 7], lengths=[3, 3])


@pytest.fixture(scope="module")
def study():
    settings = CanaryStudySettings(budgets=(2.0**-32, 4.0), num_deployments=4000)
    return canary_study(votes(), Decoder.GREEDY, TEXTS, settings)


def test_memorisation_was_forced(study):
    assert (study.learnt_with, study.learnt_without) == (1.0, 0.0)
    assert (study.num_canaries, study.num_prompts, study.num_deployments) == (1, 1, 4000)


def test_a_noiseless_world_emits_what_it_holds_and_so_gives_itself_away(study):
    row = study.row("noiseless")
    assert row.membership.whole_with.value == row.membership.tokens_with.value == 1.0
    assert row.membership.whole_without.value == row.membership.tokens_without.value == 0.0
    assert row.membership.advantage.value == 1.0
    assert row.extraction.value == pytest.approx(0.5, abs=0.04)
    assert row.never_planted.value == 0.0


@pytest.mark.parametrize("mechanism", ReleaseMechanism)
def test_a_small_budget_emits_each_token_every_second_time_whoever_is_realised(study, mechanism):
    row = study.row(mechanism.value, 2.0**-32)
    for mean in (row.membership.tokens_with, row.membership.tokens_without):
        assert mean.value == pytest.approx(0.5, abs=4 * mean.standard_error)
    for rate in (row.membership.whole_with, row.membership.whole_without):
        assert rate.low < 0.25 < rate.high
    assert row.membership.advantage.low < 0.0 < row.membership.advantage.high
    assert row.membership.token_advantage.low < 0.0 < row.membership.token_advantage.high


@pytest.mark.parametrize("mechanism", ReleaseMechanism)
def test_a_large_budget_protects_nobody(study, mechanism):
    assert study.row(mechanism.value, 4.0).membership.advantage.low > 0.9


def test_controls_emit_without_regard_to_s(study):
    # Four against four: the plurality takes the lower id, which is the secret's.
    plurality = study.row(Control.PLURALITY.value)
    assert plurality.extraction.value == plurality.membership.whole_without.value == 1.0
    for control, whole in ((Control.FRESH_WORLD, 0.25), (Control.REQUEST_WORLD, 0.5)):
        row = study.row(control.value)
        assert row.extraction.value == pytest.approx(whole, abs=0.04)
        assert row.membership.advantage.low < 0.0 < row.membership.advantage.high


def test_single_models_have_no_realised_world(study):
    assert study.row("public").membership is None
    assert study.row("public").tokens.value == 0.5
    assert (study.row("full-data").extraction.value, study.row("full-data").never_planted.value) == (1.0, 0.0)


def test_other_protections_fit_the_same_table():
    tokens = np.tile(np.array([[9, 5, 6, 9, 9, 9]]).T, (1, 3))
    tokens[1, 2] = 9
    row = emission_row("pmixed", count_single_emissions(votes(), TEXTS, tokens), TEXTS)
    assert row.extraction.value == pytest.approx(2 / 3)
    assert row.tokens.value == pytest.approx((2 + 2 + 1) / 6)
    assert row.never_planted.value == 0.0


def test_a_greedy_model_asked_twice_is_one_answer():
    twice = CanaryTexts([TEXTS.tokens[0]] * 2, np.array([2, 2]), np.array([0, 0]), TEXTS.members_CM[:1])
    tensor = tensor_of(np.full((6, WORLDS), 7), [1, 5, 6] * 2, [1, 5, 7] * 2, lengths=[3, 3])
    for has_coins, answers in ((True, 2), (False, 1)):
        emissions = count_single_emissions(tensor, twice, tensor.gumbel.public_N[:, None], has_coins=has_coins)
        assert emissions.tokens_A.tolist() == [0.5] * answers


def test_secrets_begin_where_the_prefix_ends():
    canaries = draw_canaries(CanaryKind.DIGITS, 2, [3], seed=1)
    tokenizer = byte_tokenizer()
    members = np.zeros((4, WORLDS), dtype=bool)
    texts = canary_texts(tokenizer, canaries, members, num_prompts=2)
    assert texts.canary_I.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for tokens, first, canary in zip(texts.tokens, texts.first_secret_I, texts.canary_I, strict=True):
        assert tokenizer.decode(tokens[:first]) == canaries[canary].prefix
        assert tokenizer.decode(tokens[first:]) == " " + canaries[canary].secret


@pytest.mark.parametrize(
    "texts",
    [
        CanaryTexts(TEXTS.tokens, TEXTS.first_secret_I, TEXTS.canary_I, np.zeros((2, WORLDS), bool)),
        CanaryTexts(TEXTS.tokens, TEXTS.first_secret_I, TEXTS.canary_I, np.ones((2, 4), bool)),
        CanaryTexts([[0, 1, 5], [0, 1, 2, 3]], TEXTS.first_secret_I, TEXTS.canary_I, TEXTS.members_CM),
    ],
)
def test_votes_of_other_texts_are_refused(texts):
    with pytest.raises(InvalidValueError):
        canary_study(votes(), Decoder.GREEDY, texts)
