"""Servers that show text alone: what is asked, what is kept, what follows, and what a spent budget costs."""

import dataclasses
import json

import httpx
import pytest
from fake_targets import Notes
from test_audit_run import MEMBERS, endpoint, request
from text_server import TextServer, client_of, text_target

from reticent.auditing.attacks.evidence import Missing
from reticent.auditing.attacks.samia import samia
from reticent.auditing.canaries.planting import CanaryKind, draw_canaries
from reticent.auditing.inputs.samples import halves_of
from reticent.auditing.inputs.text_store import TextStore
from reticent.auditing.run import run_audit
from reticent.auditing.targets.continuations import Continuer, Prompt
from reticent.auditing.targets.http_retries import ServerGoneError
from reticent.errors import AuditError


def test_samia_is_the_share_of_the_other_halfs_words_that_are_written():
    assert samia("a b b c", ["B, b! x"]) == 0.5
    assert samia("a b b c", ["b"]) == 0.25
    assert samia("a b b c", ["b b", "c a", "", "a b b b c"]) == (0.5 + 0.5 + 0.0 + 1.0) / 4
    assert isinstance(samia("...", ["a"]), Missing)
    assert isinstance(samia("a", []), Missing)


def test_a_text_is_halved_between_words():
    assert halves_of("one two  three\nfour", 99) == ("one two", "  three\nfour")
    assert halves_of("one two three", 99) == ("one two", " three")
    assert halves_of("one two three four", 2) == ("one", " two")
    assert halves_of("one", 99) is None


def test_a_server_of_text_alone_is_attacked_by_what_it_writes(tmp_path):
    server = TextServer(MEMBERS)
    result = run_audit(request(tmp_path, text_target(server), "all"), Notes())
    assert [attack.name for attack in result.attacks] == ["samia"]
    assert result.attacks[0].auc.value == 1.0
    assert result.incomplete == ()
    reasons = {skipped.name: skipped.reason for skipped in result.skipped}
    assert reasons["likelihood"] == reasons["min-k++"] == "the server shows no log-probabilities, only text"
    sampled = [body for body in server.bodies if "echo" not in body]
    assert len(sampled) == 80
    assert {(body["n"], body["temperature"]) for body in sampled} == {(10, 1.0)}


def test_an_attack_on_log_probabilities_that_is_named_is_refused(tmp_path):
    with pytest.raises(AuditError, match="likelihood cannot run on this target: the server shows no log-prob"):
        run_audit(request(tmp_path, text_target(TextServer()), "likelihood"), Notes())


def test_a_spent_budget_leaves_a_partial_result_of_both_sets_and_nothing_is_asked_twice(tmp_path):
    server = TextServer(MEMBERS, budget=21)
    result = run_audit(request(tmp_path, text_target(server), "all"), Notes())
    (attack,) = result.attacks
    assert {attack.num_members, attack.num_nonmembers} == {10, 11}
    (reason,) = result.incomplete
    assert "the server continued 21 of 80 texts" in reason
    assert "budget or the key's quota is spent" in reason
    assert len([body for body in server.bodies if "echo" not in body]) == 22, "a spent budget is not asked again"
    again = TextServer(MEMBERS)
    whole = run_audit(request(tmp_path, text_target(again), "all"), Notes())
    assert whole.incomplete == ()
    assert len(again.answered) == 59
    assert not set(again.answered) & set(server.answered)


def test_a_budget_that_is_spent_from_the_start_is_an_error(tmp_path):
    with pytest.raises(AuditError, match=r"none of 80 texts: .*budget"):
        run_audit(request(tmp_path, text_target(TextServer(budget=0)), "all"), Notes())


@pytest.mark.parametrize("mark", [{"source": "public"}, {"source": "private", "ended_by": "quota"}])
def test_an_answer_that_is_not_the_private_models_own_is_none_of_the_audited_model(mark):
    server = TextServer(["a b c"])
    continuer = Continuer(client_of(server))
    assert continuer.continue_all([Prompt("a", 2)]) == [(" b c",)]
    server.marks = {"reticent": mark}
    assert continuer.continue_all([Prompt("a b", 2), Prompt("x", 2)]) == [None, None]
    assert server.answered == ["a", "a b"]
    assert "spent" in continuer.client.incomplete


@pytest.mark.parametrize("refused", [(), ("n",), ("seed",), ("n", "seed")])
def test_what_a_server_refuses_beside_the_prompt_is_left_out(refused):
    server = TextServer(["a b c"], refused=refused)
    continuer = Continuer(client_of(server))
    assert continuer.continue_all([Prompt("a", 9, 3, seed=5)]) == [(" b c",) * 3]
    asked = len(server.bodies)
    assert continuer.continue_all([Prompt("x", 9, 3)]) == [(" something else",) * 3]
    assert len(server.bodies) - asked == (3 if "n" in refused else 1), "what was refused once is not tried again"
    assert continuer.failures == {}


def test_separate_answers_have_separate_seeds_and_answers_are_kept_without_their_prompts(tmp_path):
    server = TextServer(["a b c"], refused=["n"])
    store = TextStore(tmp_path / "answers.jsonl")
    Continuer(client_of(server), store).continue_all([Prompt("a", 9, 3, seed=5)])
    assert [body["seed"] for body in server.bodies if body["n"] == 1] == [5, 6, 7]
    asked = len(server.bodies)
    assert Continuer(client_of(server), store).continue_all([Prompt("a", 9, 3, seed=5)]) == [(" b c",) * 3]
    assert len(server.bodies) == asked
    assert (tmp_path / "answers.jsonl").stat().st_mode & 0o777 == 0o600
    assert len({Prompt("a", 9, 3, 5).key, Prompt("a", 9, 3, 6).key, Prompt("a", 9).key, Prompt("a", 8).key}) == 4


def test_a_limit_that_blames_a_field_is_no_reason_to_wait():
    def serve(http):
        blamed = {"error": {"code": "rate_limit_exceeded", "param": "max_tokens"}}
        return httpx.Response(429, json=blamed)

    client = client_of(serve)
    continuer = Continuer(client)
    assert continuer.continue_all([Prompt("a", 9)]) == [None]
    assert client.incomplete is None


def test_a_key_that_is_taken_back_ends_the_requests_and_keeps_what_was_answered():
    statuses = iter([200, 401])
    client = client_of(lambda http: httpx.Response(next(statuses), json={"choices": [{"text": "b"}]}))
    client.complete(prompt="a")
    with pytest.raises(ServerGoneError, match="status 401"):
        client.complete(prompt="a")
    with pytest.raises(ServerGoneError, match="not sent"):
        client.complete(prompt="a")


def test_canaries_on_a_server_of_text_alone_are_extracted_and_what_was_not_asked_is_said(tmp_path):
    canaries = draw_canaries(CanaryKind.DIGITS, 4, (1,), seed=0)
    known = [canary.text for canary in canaries if canary.member]
    server = TextServer([*MEMBERS, *known])
    result = run_audit(request(tmp_path, text_target(server), "all", canaries=canaries), Notes())
    found = {group.repetitions: group for group in result.canaries}
    assert (found[1].extracted_greedy.value, found[0].extracted_greedy.value) == (1.0, 0.0)
    assert (found[1].extracted_sampled.value, found[0].extracted_sampled.value) == (1.0, 0.0)
    assert result.incomplete == ()
    poor = TextServer([*MEMBERS, *known], budget=85)
    partial = run_audit(request(tmp_path / "poor", text_target(poor), "all", canaries=canaries), Notes())
    assert partial.attacks[0].num_members == 40
    assert "partial result: 3 of 8 canaries were not continued greedily" in partial.incomplete
    assert "partial result: 8 of 8 canaries were not continued at random" in partial.incomplete


@pytest.mark.parametrize("status", [401, 403, 402])
def test_a_reference_server_that_refuses_midway_makes_any_audit_partial(tmp_path, status):
    statuses = iter([200] * 31 + [status] * 999)

    def serve(http):
        prompt = json.loads(http.content)["prompt"]
        values = [None, *(-1.0 for _ in prompt.split()[1:])]
        choice = {"text": prompt, "logprobs": {"token_logprobs": values, "top_logprobs": None}}
        return httpx.Response(next(statuses), json={"choices": [choice], "usage": {"prompt_tokens": len(values)}})

    whole = endpoint(tmp_path, 999)
    target = dataclasses.replace(whole, reference=text_target(serve).scorer, reference_record={"name": "server"})
    result = run_audit(request(tmp_path, target, "all"), Notes())
    (reason,) = result.incomplete
    assert "reference: partial result: the server scored 30 of 80 texts" in reason
    assert {"likelihood", "reference"} <= {attack.name for attack in result.attacks}


def test_a_reference_server_that_answers_no_more_log_probabilities_makes_any_audit_partial(tmp_path):
    answers = iter([True] * 31 + [False] * 999)

    def serve(http):
        prompt = json.loads(http.content)["prompt"]
        values = [None, *(-1.0 for _ in prompt.split()[1:])]
        logprobs = {"token_logprobs": values, "top_logprobs": None} if next(answers) else None
        choice = {"text": prompt, "logprobs": logprobs}
        return httpx.Response(200, json={"choices": [choice], "usage": {"prompt_tokens": len(values)}})

    whole = endpoint(tmp_path, 999)
    target = dataclasses.replace(whole, reference=text_target(serve).scorer, reference_record={"name": "server"})
    result = run_audit(request(tmp_path, target, "all"), Notes())
    (reason,) = result.incomplete
    assert "partial result: http://h/v1/completions returns no log-probabilities" in reason
    assert "likelihood" in {attack.name for attack in result.attacks}
