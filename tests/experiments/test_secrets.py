"""The table of three secrets on votes made by hand: who is found out, who is bounded, and which cells say why not."""

import numpy as np
import pytest
from hand_made_votes import tensor_of
from pydantic import ValidationError

from experiments.studies.secrets import Candidates, SecretsCell, SecretsSettings, model_row, secrets_rows
from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.pac.bounds import attack_success
from reticent.stats.estimate import Estimate
from reticent.worlds.assignment import membership_matrix

WORLDS, RECORDS, LENGTH = 16, 40, 12
TINY, LARGE = 2.0**-32, 2.0**4


@pytest.fixture(scope="module")
def candidates():
    """Half of the records are in the corpus; a world that holds one knows its tokens, which the public model does not.

    Worlds differ on other positions too, by their number alone, and records outside are like those for worlds
    without them.
    """
    generator = np.random.default_rng(0)
    members_UM = membership_matrix(RECORDS // 2, WORLDS, 3)
    in_corpus = np.arange(RECORDS) % 2 == 0
    targets = generator.integers(0, 4, RECORDS * LENGTH)
    votes = np.where(generator.random((RECORDS * LENGTH, WORLDS)) < 0.05, 6, 7)
    for record in np.flatnonzero(in_corpus):
        here = slice(record * LENGTH, (record + 1) * LENGTH)
        votes[here, members_UM[record // 2]] = targets[here, None]
    public = np.where(generator.random(targets.size) < 0.3, targets, 5)
    full = np.where(np.repeat(in_corpus, LENGTH), targets, 7)
    tensor = tensor_of(votes, targets, public, full=full, lengths=[LENGTH] * RECORDS)
    return Candidates(tensor, Decoder.GUMBEL, in_corpus, np.full(targets.size, 2.0), members_UM)


@pytest.fixture(scope="module")
def rows(candidates):
    settings = SecretsSettings(budgets=(TINY, LARGE), num_deployments=24, num_token_deployments=12)
    found = secrets_rows(candidates, settings, lambda method, budget: SecretsCell(reason="not asked"))
    return {(row.method, row.step_budget): row for row in found}


def test_every_protection_has_a_row(rows):
    controls = ["plurality", "fresh-world", "request-world"]
    mechanisms = [(mechanism, budget) for mechanism in ("gaussian", "mixture") for budget in (LARGE, TINY)]
    assert list(rows) == [(m, None) for m in ("public", "full-data", "noiseless", *controls)] + mechanisms


def test_unprotected_tokens_name_the_realised_world(rows):
    assert rows["noiseless", None].tokens.estimate.value > 0.99
    for mechanism in ("gaussian", "mixture"):
        assert rows[mechanism, LARGE].curator.estimate.value > 0.95
        assert rows[mechanism, LARGE].tokens.estimate.value > 0.9


def test_a_small_budget_and_the_controls_hide_it(rows):
    for mechanism in ("gaussian", "mixture"):
        row = rows[mechanism, TINY]
        assert row.bound == attack_success(TINY * RECORDS * LENGTH, 0.5)
        assert row.bounded_secret == 1
        for cell in (row.curator, row.tokens):
            assert cell.estimate.low < 0.53
    for control in ("plurality", "fresh-world", "request-world"):
        assert rows[control, None].tokens.estimate.low < 0.53
        assert "not used" in rows[control, None].curator.reason


def test_but_nothing_that_votes_hides_who_is_in_the_corpus(rows):
    """Every record is in half of the worlds: budgets for S do not reach this secret."""
    for key in (("fresh-world", None), ("gaussian", TINY), ("mixture", TINY)):
        assert rows[key].corpus_auc.estimate.low > 0.8
    # One world alone knows half of the corpus; of the other half an attacker learns nothing.
    assert rows["noiseless", None].corpus_auc.estimate.value == pytest.approx(0.75, abs=0.08)
    assert rows["full-data", None].corpus_auc.estimate.value == 1.0
    assert rows["public", None].corpus_auc.estimate.value == 0.5
    assert rows["public", None].corpus_accuracy.estimate.value == 0.5


def test_cells_hold_an_estimate_or_a_reason(rows):
    for row in rows.values():
        assert row.extraction.reason == "not asked"
    assert "no realised world" in rows["full-data", None].tokens.reason
    estimate = Estimate(value=0.5, low=0.4, high=0.6, confidence=0.95)
    for wrong in ({}, {"estimate": estimate, "reason": "both"}):
        with pytest.raises(ValidationError):
            SecretsCell(**wrong)


def test_another_protection_brings_its_own_tokens_and_reference(candidates):
    tensor = candidates.tensor
    draws = np.stack([tensor.gumbel.public_N] * 3, axis=1)
    chance = np.full(tensor.num_positions, 0.3)
    row = model_row(
        candidates, "pmixed", draws, SecretsCell(reason="-"), 0, step_budget=TINY, bound=0.51, public_match_N=chance
    )
    assert (row.bound, row.bounded_secret) == (0.51, 2)
    assert row.corpus_auc.estimate.low < 0.5 < row.corpus_auc.estimate.high


def test_candidates_must_fit_their_votes(candidates):
    with pytest.raises(InvalidValueError):
        Candidates(candidates.tensor, Decoder.GUMBEL, candidates.members_I[1:], candidates.surprise_N, np.ones((2, 16)))
