"""Whole audits over scorers without a model: what is checked first, what is written, and what is never shown."""

import dataclasses
import hashlib
import json

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from fake_targets import Notes, WordScorer, fake_target, random_texts
from tiny_models import build_tiny_model, byte_tokenizer

from reticent.auditing.artifacts import read_audit_result
from reticent.auditing.attacks.registry import parse_attacks
from reticent.auditing.inputs.gathering import GatheringSettings
from reticent.auditing.run import AuditRequest, run_audit
from reticent.auditing.targets.endpoint import RemoteScorer
from reticent.auditing.targets.endpoint_client import EndpointClient, EndpointSettings
from reticent.auditing.targets.http_retries import RetryingClient
from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.targets import Target, TargetKind
from reticent.errors import AuditError
from reticent.text.corpus import text_hash
from reticent.text.template import TextTemplate

MEMBERS, NONMEMBERS = random_texts(40, seed=1), random_texts(40, seed=2)
CHEAP = "likelihood,reference,zlib,min-k,min-k++"


def request(tmp_path, target=None, attacks=CHEAP, members=MEMBERS, nonmembers=NONMEMBERS, **changes):
    target = target or fake_target(WordScorer("t", MEMBERS, 3.0), WordScorer("r"))
    return AuditRequest(
        target=target,
        members=members,
        nonmembers=nonmembers,
        attacks=parse_attacks(attacks),
        out=tmp_path / "out",
        gathering=GatheringSettings(cache=tmp_path / "cache"),
        num_resamples=100,
        **{"attacks_named": attacks != "all", **changes},
    )


def scores_of(tmp_path):
    table = pq.read_table(tmp_path / "out" / "scores.parquet").to_pydict()
    return table, dict(zip(table["text_hash"], table["likelihood"], strict=True))


def test_scores_are_those_of_the_text_with_that_hash_whatever_the_order(tmp_path):
    target = fake_target(WordScorer("t"), WordScorer("r"))
    run_audit(request(tmp_path, target), Notes())
    table, scores = scores_of(tmp_path)
    for text in (*MEMBERS, *NONMEMBERS):
        assert scores[text_hash(text)] == pytest.approx(target.scorer.signals(text).logp.mean())
    assert [table["is_member"][table["text_hash"].index(text_hash(t))] for t in (MEMBERS[3], NONMEMBERS[3])] == [
        True,
        False,
    ]
    again = tmp_path / "again"
    again.mkdir()
    run_audit(request(again, target, members=MEMBERS[::-1], nonmembers=NONMEMBERS[::-1]), Notes())
    assert scores_of(again)[1] == scores


def test_the_result_is_read_back_as_it_was_and_the_attacks_tell_members(tmp_path):
    result = run_audit(request(tmp_path), Notes())
    assert read_audit_result(tmp_path / "out") == result
    by_name = {attack.name: attack for attack in result.attacks}
    assert list(by_name) == CHEAP.split(",")
    assert by_name["reference"].auc.value > 0.8
    assert (result.data.num_members, result.data.num_nonmembers) == (40, 40)
    assert result.data.members_hash == hashlib.sha256("\n".join(sorted(map(text_hash, MEMBERS))).encode()).hexdigest()
    assert result.blind is not None
    assert result.settings["attacks"] == CHEAP.split(",")


def test_mistake_results_are_lost_because_a_numpy_scalar_does_not_serialise(tmp_path):
    target = fake_target(WordScorer("t"), WordScorer("r"))
    target.record.update(rank=np.int64(8), rate=np.float32(0.5), sizes=np.arange(2), template=TextTemplate())
    run_audit(request(tmp_path, target, settings={"seed of data": np.uint8(3)}), Notes())
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (content["target"]["rank"], content["target"]["rate"], content["target"]["sizes"]) == (8, 0.5, [0, 1])
    assert content["settings"]["seed of data"] == 3


def test_mistake_private_texts_are_printed(tmp_path, capfd):
    progress = Notes()
    nonmembers = [*NONMEMBERS, "short"]
    run_audit(request(tmp_path, attacks="all", nonmembers=nonmembers), progress)
    captured = capfd.readouterr()
    said = captured.out + captured.err + repr(progress.events)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (*MEMBERS, *NONMEMBERS):
        assert text not in said
        assert text.encode() not in written
    assert "text" not in pq.read_schema(tmp_path / "out" / "scores.parquet").names


def test_texts_are_in_the_scores_where_asked_for_and_nowhere_else(tmp_path):
    run_audit(request(tmp_path, show_texts=True), Notes())
    table, _ = scores_of(tmp_path)
    assert set(table["text"]) == {*MEMBERS, *NONMEMBERS}
    assert MEMBERS[0] not in (tmp_path / "out" / "report.json").read_text()


def test_mistake_a_score_is_missing_without_a_reason(tmp_path):
    nonmembers = [*NONMEMBERS, "one", "", "two words"]
    result = run_audit(request(tmp_path, nonmembers=nonmembers), Notes())
    table, scores = scores_of(tmp_path)
    for text in ("one", ""):
        row = table["text_hash"].index(text_hash(text))
        assert scores[text_hash(text)] is None
        assert table["likelihood missing"][row] == "the text has no token that the model predicts"
    assert scores[text_hash("two words")] is not None
    likelihood = result.attacks[0]
    assert {entry.text_hash for entry in likelihood.missing} == {text_hash("one"), text_hash("")}
    assert likelihood.num_nonmembers == 41
    columns = {name for name in table if name not in ("text_hash", "is_member") and not name.endswith(" missing")}
    for name in columns:
        for value, reason in zip(table[name], table[f"{name} missing"], strict=True):
            assert (value is None) == (reason is not None)


def test_overlapping_sets_are_refused_before_anything_is_scored(tmp_path):
    target = fake_target(WordScorer("t"), WordScorer("r"))
    with pytest.raises(AuditError, match=r"1 text\(s\) are in both sets"):
        run_audit(request(tmp_path, target, nonmembers=[*NONMEMBERS, MEMBERS[0]]), Notes())
    assert target.scorer.asked == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("members", "nonmembers"), [([], NONMEMBERS), (MEMBERS, [])])
def test_empty_sets_are_refused(tmp_path, members, nonmembers):
    with pytest.raises(AuditError, match="is empty"):
        run_audit(request(tmp_path, members=members, nonmembers=nonmembers), Notes())


def test_near_duplicates_are_reported_before_anything_is_scored(tmp_path):
    progress = Notes()
    near = MEMBERS[0].upper() + " ."
    result = run_audit(request(tmp_path, nonmembers=[*NONMEMBERS, near]), progress)
    assert progress.events[0] == ("note", result.warnings[1])
    assert "1 of 41 non-members nearly repeat a member" in result.warnings[1]
    (pair,) = result.data.near_duplicates
    assert (pair.member_hash, pair.nonmember_hash) == (text_hash(MEMBERS[0]), text_hash(near))


def test_a_non_member_that_the_model_reads_as_it_read_a_member_is_reported(tmp_path):
    module = build_tiny_model("llama")
    scorers = [
        ModelScorer(module, byte_tokenizer(), TextTemplate(text="Note: {text}", max_tokens=40), name) for name in "tr"
    ]
    twin = MEMBERS[7][:36] + " ended in quite another way, with other words that no model ever read"
    result = run_audit(request(tmp_path, fake_target(*scorers), nonmembers=[*NONMEMBERS, twin]), Notes())
    (pair,) = result.data.near_duplicates
    assert (pair.member_hash, pair.nonmember_hash) == (text_hash(MEMBERS[7]), text_hash(twin))


def test_repeats_within_a_set_count_once(tmp_path):
    result = run_audit(request(tmp_path, members=[*MEMBERS, *MEMBERS[:5]]), Notes())
    assert (result.data.num_members, result.data.num_repeated) == (40, 5)
    assert result.attacks[0].num_members == 40


def test_mistake_rows_held_out_for_validation_are_members(tmp_path):
    # Of 40 texts said to be members the target was trained on 37; one was held out, two served for validation.
    lists = {
        "member_hashes": frozenset(map(text_hash, MEMBERS[3:])),
        "heldout_hashes": frozenset([text_hash(MEMBERS[0])]),
    }
    target = fake_target(WordScorer("t"), WordScorer("r"), **lists)
    with pytest.raises(AuditError) as caught:
        run_audit(request(tmp_path, target), Notes())
    message = str(caught.value)
    assert message.startswith("3 of 40 members were not trained on (1 were held out")
    assert text_hash(MEMBERS[1])[:12] in message
    assert target.scorer.asked == []


def test_non_members_that_were_trained_on_are_refused(tmp_path):
    lists = {"member_hashes": frozenset(map(text_hash, [*MEMBERS, NONMEMBERS[7]])), "heldout_hashes": frozenset()}
    target = fake_target(WordScorer("t"), WordScorer("r"), **lists)
    with pytest.raises(
        AuditError, match=f"1 of 40 non-members were trained on: SHA-256 {text_hash(NONMEMBERS[7])[:12]}"
    ):
        run_audit(request(tmp_path, target), Notes())


def test_non_members_from_elsewhere_are_warned_of(tmp_path):
    lists = {
        "member_hashes": frozenset(map(text_hash, MEMBERS)),
        "heldout_hashes": frozenset(map(text_hash, NONMEMBERS[:30])),
    }
    result = run_audit(request(tmp_path, fake_target(WordScorer("t"), WordScorer("r"), **lists)), Notes())
    assert any("10 of 40 non-members are not among the texts held out" in warning for warning in result.warnings)


def test_a_target_that_does_not_know_its_members_is_warned_of(tmp_path):
    result = run_audit(request(tmp_path), Notes())
    assert any("labels are taken as given" in warning for warning in result.warnings)


def test_attacks_that_cannot_run_are_left_out_with_the_reason(tmp_path):
    result = run_audit(request(tmp_path, fake_target(WordScorer("t")), attacks="all"), Notes())
    assert {attack.name for attack in result.attacks} == {"likelihood", "zlib", "min-k", "min-k++"}
    reasons = {skipped.name: skipped.reason for skipped in result.skipped}
    assert "--reference" in reasons["reference"]
    assert "--shadow" in reasons["rmia"]
    assert "--mlm" in reasons["neighbourhood"]
    assert {*reasons, *(attack.name for attack in result.attacks)} == {attack.name for attack in parse_attacks("all")}
    assert result.reference is None


def test_a_named_attack_that_cannot_run_is_refused(tmp_path):
    target = fake_target(WordScorer("t"))
    with pytest.raises(AuditError, match=r"attack wbc cannot run on this target: .*--reference"):
        run_audit(request(tmp_path, target, attacks="likelihood,wbc"), Notes())
    assert target.scorer.asked == []


def test_a_killed_audit_goes_on_where_it_stopped(tmp_path):
    members, nonmembers = random_texts(150, seed=3), random_texts(150, seed=4)
    killed = WordScorer("t")
    killed.dies_after = 128
    asked = request(tmp_path, fake_target(killed), "likelihood", members, nonmembers)
    with pytest.raises(KeyboardInterrupt):
        run_audit(asked, Notes())
    survivor = WordScorer("t")
    resumed = run_audit(dataclasses.replace(asked, target=fake_target(survivor)), Notes())
    assert len(survivor.asked) == 300 - 128
    assert not set(survivor.asked) & set(killed.asked)
    whole = tmp_path / "whole"
    whole.mkdir()
    uninterrupted = run_audit(request(whole, fake_target(WordScorer("t")), "likelihood", members, nonmembers), Notes())
    assert resumed.attacks == uninterrupted.attacks


def test_a_second_run_and_a_further_attack_ask_the_model_nothing(tmp_path):
    run_audit(request(tmp_path, fake_target(WordScorer("t"), WordScorer("r")), "reference"), Notes())
    target = fake_target(WordScorer("t"), WordScorer("r"))
    run_audit(request(tmp_path, target, CHEAP), Notes())
    assert (target.scorer.asked, target.reference.asked) == ([], [])


def test_mistake_a_cache_that_ignores_the_model_scores_another_one(tmp_path):
    run_audit(request(tmp_path, fake_target(WordScorer("t")), "likelihood"), Notes())
    other = fake_target(WordScorer("another"))
    run_audit(request(tmp_path, other, "likelihood"), Notes())
    assert set(other.scorer.asked) == {*MEMBERS, *NONMEMBERS}


def test_a_target_that_scores_nothing_is_an_error_that_says_why(tmp_path):
    with pytest.raises(AuditError, match="scored none of 4 texts: the text has no token"):
        run_audit(request(tmp_path, members=["a", "b"], nonmembers=["c", "d"]), Notes())


def test_sets_that_differ_in_kind_are_warned_of(tmp_path):
    members = [f"patient {text}" for text in MEMBERS]
    result = run_audit(request(tmp_path, members=members), Notes())
    assert result.blind.beats_chance
    assert any("separated without any model" in warning for warning in result.warnings)


def test_a_target_worse_than_its_reference_on_its_members_is_warned_of(tmp_path):
    target = fake_target(WordScorer("t"), WordScorer("r", MEMBERS, 2.0))
    result = run_audit(request(tmp_path, target), Notes())
    assert any("training has collapsed the model" in warning for warning in result.warnings)


def test_too_few_non_members_for_a_rate_are_said_to_be_too_few(tmp_path):
    result = run_audit(request(tmp_path), Notes())
    rates = {rate.fpr: rate for rate in result.attacks[0].rates}
    assert rates[0.001].tpr is None
    assert "3000" in rates[0.001].unavailable.replace(",", "")


def endpoint(tmp_path, fails_after):
    """A server that scores so many texts and then answers 429 for ever."""
    answered = []

    def serve(http):
        prompt = json.loads(http.content)["prompt"]
        if len(answered) > fails_after:
            return httpx.Response(429)
        answered.append(prompt)
        values = [None, *(-0.1 * len(word) for word in prompt.split()[1:])]
        choice = {"text": prompt, "logprobs": {"token_logprobs": values, "top_logprobs": None}}
        return httpx.Response(200, json={"choices": [choice], "usage": {"prompt_tokens": len(values)}})

    settings = EndpointSettings("http://h", "m", attempts=2, concurrency=1)
    retrying = RetryingClient(httpx.Client(transport=httpx.MockTransport(serve)), 2, lambda seconds: None)
    client = EndpointClient(settings, retrying)
    scorer = RemoteScorer(client, TextTemplate())
    return Target(TargetKind.ENDPOINT, {"name": "server"}, scorer, scorer.template, client=client)


def test_a_server_that_goes_away_leaves_a_partial_result_that_says_so_and_can_be_resumed(tmp_path):
    result = run_audit(request(tmp_path, endpoint(tmp_path, 50), "likelihood"), Notes())
    (warning,) = [warning for warning in result.warnings if "partial result" in warning]
    assert "the server scored 50 of 80 texts" in warning
    assert "status 429 after 2 attempts" in warning
    assert len(result.attacks[0].missing) == 30
    whole = run_audit(request(tmp_path, endpoint(tmp_path, 30), "likelihood"), Notes())
    assert not any("partial result" in warning for warning in whole.warnings)
    assert whole.attacks[0].missing == ()


@pytest.mark.parametrize("name", ["gradient-norm", "spv"])
def test_white_box_attacks_are_refused_on_servers(tmp_path, name):
    with pytest.raises(AuditError, match=f"attack {name} cannot run on this target: a server shows no weights"):
        run_audit(request(tmp_path, endpoint(tmp_path, 99), name), Notes())


def test_all_attacks_on_a_server_leave_out_what_a_server_cannot_show(tmp_path):
    result = run_audit(request(tmp_path, endpoint(tmp_path, 99), "all"), Notes())
    assert {attack.name for attack in result.attacks} == {"likelihood", "zlib", "min-k"}
    reasons = {skipped.name: skipped.reason for skipped in result.skipped}
    assert "distribution over the vocabulary" in reasons["min-k++"]
    assert result.scoring["first token"] == "not scored"
