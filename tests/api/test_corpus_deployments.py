"""The front door to a corpus deployment: charges, caps, constants that stay, and answers that stop where they must."""

import shutil

import pytest
from api.small_texts import TEXTS

import reticent
from reticent.api.deployments import read_ledger
from reticent.dp import bounds
from reticent.dp.accounting import units_to_rho
from reticent.dp.relations import Relation
from reticent.dp.release import CorpusSettings
from reticent.errors import BudgetExhaustedError, InvalidValueError, RunDirectoryError

WORLDS = len(TEXTS) + 2
OPTIONS = reticent.BuildOptions(
    guarantee="corpus", places=1, epochs=2, learning_rate=0.05, max_tokens=32, rank=2, adapt_layers="top:1"
)
CHARGE = CorpusSettings(0.1, 3.0, 1.5, 8, WORLDS, Relation.ADD_REMOVE).charge_units
TERMS = {"clip": 0.1, "gain": 3.0, "temperature": 1.5, "candidates": 8}


@pytest.fixture(scope="session")
def built_corpus(tmp_path_factory, tiny_llama_folder):
    out = tmp_path_factory.mktemp("front-door-corpus") / "run"
    return reticent.build_worlds(TEXTS, model=tiny_llama_folder, worlds=WORLDS, out=out, options=OPTIONS)


@pytest.fixture
def corpus_run(built_corpus, tmp_path):
    return reticent.open_run(shutil.copytree(built_corpus.folder, tmp_path / "corpus-run"))


def is_deployed(run):
    return (run.folder / "ledger.sqlite").exists()


def test_every_token_is_charged_alike_and_a_second_opening_continues_with_the_same_constants(corpus_run):
    assert corpus_run.guarantee is reticent.Guarantee.CORPUS
    with corpus_run.deploy_corpus(**TERMS, total_rho=1.0, delta=1e-3) as deployment:
        assert deployment.is_new
        answer = deployment.generate("the", max_tokens=5)
        tokens = list(answer)
        assert "".join(token.text for token in tokens) == answer.text
        first = answer.num_tokens
        assert answer.rho == deployment.spent == units_to_rho(first * CHARGE)
        assert {token.num_active for token in tokens} == {0}
    with corpus_run.deploy_corpus(drafts=3) as deployment:
        assert not deployment.is_new
        assert deployment.settings == CorpusSettings(0.1, 3.0, 1.5, 8, WORLDS, Relation.ADD_REMOVE)
        second = deployment.generate("a", max_tokens=6, temperature=0.3)
        second.read()
        assert deployment.tokens_released == first + second.num_tokens
        rho = units_to_rho(deployment.tokens_released * CHARGE)
        assert (deployment.spent, deployment.total_rho) == (rho, 1.0)
        assert deployment.epsilon == bounds.epsilon(rho, deployment.delta)
        assert deployment.membership_success == bounds.membership_success(rho)
    with read_ledger(corpus_run.folder, None) as reader:
        assert reader.corpus_state.spent_units == reader.verify().units == deployment.tokens_released * CHARGE


def test_an_answer_stops_at_the_cap_with_the_text_so_far(corpus_run):
    with corpus_run.deploy_corpus(**TERMS, total_rho=units_to_rho(CHARGE) * 2.5) as deployment:
        assert deployment.tokens_left == 2
        first = deployment.generate("the", max_tokens=1)
        first.read()
        second = deployment.generate("a", max_tokens=1)
        second.read()
        third = deployment.generate("the", max_tokens=4)
        with pytest.raises(BudgetExhaustedError):
            third.read()
        assert (third.text, third.num_tokens, third.stopped_by) == ("", 0, reticent.StopReason.BUDGET)
        assert (deployment.tokens_released, deployment.tokens_left) == (2, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gain": 0.0}, "gain"),
        ({"temperature": 0.0}, "temperature"),
        ({"clip": float("nan")}, "clip"),
        ({"candidates": 10**6}, "vocabulary"),
        ({"total_epsilon": 0.0}, "total epsilon"),
        ({"total_rho": 1.0, "membership_success": 0.6}, "one bound"),
        ({"delta": 0.5}, "below one over the number of places"),
        ({"drafts": -1}, "drafts"),
    ],
)
def test_bad_terms_are_refused_before_anything_is_deployed(corpus_run, options, words):
    with pytest.raises(InvalidValueError, match=words):
        corpus_run.deploy_corpus(**options)
    assert not is_deployed(corpus_run)


def test_each_kind_of_run_is_deployed_under_its_own_guarantee_alone(corpus_run, run):
    with pytest.raises(RunDirectoryError, match="carries the corpus guarantee"):
        corpus_run.deploy()
    with pytest.raises(RunDirectoryError):
        run.deploy_corpus()
    assert not is_deployed(corpus_run)
    assert not is_deployed(run)


def test_constants_stay_and_a_temperature_that_is_none_is_refused(corpus_run):
    with corpus_run.deploy_corpus(**TERMS) as deployment:
        assert (deployment.total_rho, deployment.tokens_left) == (None, None)
        with pytest.raises(InvalidValueError, match="temperature"):
            deployment.generate("the", temperature=0.0)
    with pytest.raises(InvalidValueError, match="gain"):
        corpus_run.deploy_corpus(gain=2.0)
