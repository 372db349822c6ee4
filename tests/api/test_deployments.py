"""The front door to a deployment: what it releases is charged and durable, as the ledger and the bounds say."""

import contextlib
import json

import pytest

import reticent
from reticent.api.deployments import read_ledger
from reticent.errors import BudgetExhaustedError, DeploymentStateError, InvalidValueError, RunDirectoryError
from reticent.pac.bounds import attack_success
from reticent.pac.charging import ChargingRule

STEP = 2.0**-10


def is_deployed(run):
    return (run.folder / "ledger.sqlite").exists()


def test_the_example_of_the_front_page(run, capsys):
    with run.deploy(step_budget="2^-10", total_budget=0.5, release="mixture") as deployment:
        assert deployment.is_new
        for token in deployment.generate("the", max_tokens=5):
            print(token.text, end="")
        released = deployment.tokens_released
        assert 1 <= released <= 5
        assert deployment.spent == released * STEP
        assert deployment.left == 0.5 - released * STEP
        assert deployment.total_budget == 0.5
        assert deployment.bounds() == reticent.Bounds(
            attack_success(released * STEP, 0.5), attack_success(released * STEP, 0.25)
        )
    assert capsys.readouterr().out
    with read_ledger(run.folder, None) as reader:
        assert (reader.state.tokens_released, reader.state.spent_units) == (released, released << 54)


def test_a_second_opening_continues_the_same_account(run):
    with run.deploy(step_budget=STEP) as deployment:
        first = deployment.generate("the", max_tokens=3)
        first.read()
    with run.deploy(step_budget=STEP) as deployment:
        assert not deployment.is_new
        second = deployment.generate("a", max_tokens=4)
        second.read()
        assert deployment.spent == first.charged + second.charged == (first.num_tokens + second.num_tokens) * STEP
        assert deployment.left is None


def test_an_answer_counts_its_tokens_and_joins_its_pieces(run):
    with run.deploy(decoder="greedy") as deployment:
        answer = deployment.generate("the", max_tokens=6)
        assert (answer.text, answer.num_tokens, answer.stopped_by) == ("", 0, None)
        tokens = list(answer)
        assert "".join(token.text for token in tokens) == answer.text
        numbered = [token for token in tokens if token.id is not None]
        assert len(numbered) == answer.num_tokens
        assert sum(token.num_active > 1 for token in numbered) == answer.num_dissenting
        assert answer.stopped_by in (reticent.StopReason.LENGTH, reticent.StopReason.END_OF_TEXT)
        assert answer.coin_key is None
        assert list(answer) == []


def test_an_iteration_that_is_broken_off_charges_nothing_more(run):
    with run.deploy(step_budget=STEP) as deployment:
        answer = deployment.generate("the", max_tokens=6)
        next(answer)
        assert deployment.spent == answer.charged == STEP


def test_answers_in_turn_are_charged_each_for_its_own(run):
    with run.deploy(step_budget=STEP) as deployment:
        one, other = deployment.generate("the", max_tokens=3), deployment.generate("a", max_tokens=3)
        next(one), next(other), next(other)
        assert (one.charged, other.charged, deployment.spent) == (STEP, 2 * STEP, 3 * STEP)


def test_a_seed_fixes_the_public_coins_alone(run):
    with run.deploy() as deployment:
        keys = [deployment.generate("the", seed=seed).coin_key for seed in (1, 1, 2, None, None)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_an_exhausted_budget_ends_an_answer_with_an_error_and_keeps_its_text(run):
    with run.deploy(step_budget=STEP, total_budget=2 * STEP) as deployment:
        answer = deployment.generate("the", max_tokens=50)
        pieces = []
        with pytest.raises(BudgetExhaustedError, match="total budget"):
            pieces.extend(token.text for token in answer)
        assert (answer.num_tokens, answer.stopped_by) == (2, reticent.StopReason.BUDGET)
        assert "".join(pieces) == answer.text
        assert deployment.left == 0.0


def test_a_closed_deployment_releases_nothing(run):
    with run.deploy() as deployment:
        answer = deployment.generate("the", max_tokens=5)
    with pytest.raises(DeploymentStateError, match="closed"):
        next(answer)
    deployment.close()
    with read_ledger(run.folder, None) as reader:
        assert reader.state.tokens_released == 0


def test_a_deployment_in_use_is_refused_to_another(run):
    with run.deploy(), pytest.raises(DeploymentStateError):
        run.deploy()
    run.deploy().close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step_budget": "many"}, "2^-32"),
        ({"step_budget": float("nan")}, "step_budget"),
        ({"total_budget": float("nan")}, "total_budget"),
        ({"total_budget": "-1"}, "positive"),
        ({"release": "loud"}, "gaussian, mixture"),
        ({"decoder": "beam"}, "greedy, gumbel"),
        ({"candidates": 10**6}, "vocabulary"),
        ({"drafts": -1}, "drafts"),
        ({"temperature": 0.0}, "temperature"),
        ({"dtype": "float8"}, "float32, bfloat16"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_a_refused_setting_draws_no_secret(run, options, words):
    with pytest.raises(InvalidValueError, match=words.replace("^", r"\^")):
        run.deploy(**options)
    assert not is_deployed(run)


def test_a_refused_prompt_is_refused_before_it_is_iterated(run):
    with run.deploy() as deployment:
        with pytest.raises(InvalidValueError, match="prompt"):
            deployment.generate("the " * 100)
        with pytest.raises(InvalidValueError, match="max_tokens"):
            deployment.generate("the", max_tokens=0)
        assert deployment.tokens_released == 0


def test_nothing_that_is_shown_of_a_deployment_holds_its_secret(run):
    with run.deploy() as deployment:
        deployment.generate("the", max_tokens=2).read()
        shown = repr(deployment)
    assert "ledger" in shown.lower()
    assert "secret" not in shown
    assert "posterior" not in shown


def test_worlds_of_unknown_membership_are_not_deployed(run):
    (run.folder / "membership.npz").unlink()
    manifest = run.folder / "manifest.json"

    content = json.loads(manifest.read_text())
    del content["files"]["membership.npz"]
    manifest.write_text(json.dumps(content))
    opened = reticent.open_run(run.folder)
    assert opened.num_worlds == 4
    with pytest.raises(RunDirectoryError, match="who is in which world"):
        opened.deploy()
    assert not is_deployed(opened)


def test_disjoint_shards_are_not_deployed(tmp_path, tiny_llama_folder):
    options = reticent.BuildOptions(assignment="disjoint", rank=1, adapt_layers="top:1", max_tokens=8)
    texts = ["one fox", "two dogs are here", "three cats", "four mice run"]
    shards = reticent.build_worlds(texts, model=tiny_llama_folder, worlds=2, out=tmp_path / "shards", options=options)
    with pytest.raises(RunDirectoryError, match="disjoint"):
        shards.deploy()


def test_a_deployment_that_charges_dissent_keeps_its_rule_and_stops_at_a_dissenting_token(run):
    """Agreement is free, before and after the cap is spent; an answer ends at the first dissent that is not covered."""
    with run.deploy(step_budget=STEP, total_budget=2.5 * STEP, charging="dissent") as deployment:
        assert deployment.charging is ChargingRule.DISSENT
        for number in range(200):
            answer = deployment.generate("the", max_tokens=12, seed=number)
            with contextlib.suppress(BudgetExhaustedError):
                answer.read()
            assert answer.charged == STEP * answer.num_dissenting
            if answer.stopped_by is reticent.StopReason.BUDGET:
                break
        assert (deployment.spent, answer.stopped_by) == (2 * STEP, reticent.StopReason.BUDGET)
        assert deployment.tokens_released > 2
    with pytest.raises(InvalidValueError, match="charges by the rule dissent"):
        run.deploy(charging="fixed")
    with run.deploy() as deployment:
        assert deployment.charging is ChargingRule.DISSENT
    with pytest.raises(InvalidValueError, match="charging must be one of fixed, dissent, got 'free'"):
        run.deploy(charging="free")
