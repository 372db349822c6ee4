"""One attack's failure costs no other, and what could not be finished is said and has an exit code of its own."""

import dataclasses

import pytest
import torch
from fake_targets import Notes, WordScorer, fake_target, random_texts
from test_audit_run import MEMBERS, NONMEMBERS, endpoint, request
from tiny_models import BOS, EOS, VOCABULARY, byte_tokenizer, save_tiny_model
from transformers import AutoModelForCausalLM, LlamaConfig, MambaConfig, Phi3Config

from reticent.auditing import run
from reticent.auditing.artifacts import read_audit_result
from reticent.auditing.attacks.registry import ATTACKS, AttackName, parse_attacks
from reticent.auditing.canaries.planting import CanaryKind, draw_canaries
from reticent.auditing.failures import describe_failure
from reticent.auditing.inputs.gathering import Gatherer, GatheringSettings
from reticent.auditing.run import AuditRequest, run_audit
from reticent.auditing.targets.targets import TargetOptions, open_target
from reticent.errors import AuditError, ModelError, StorageError

SECRET = MEMBERS[0]


def fail(*_):
    raise RuntimeError(f"cannot read {SECRET}")


def names(entries):
    return [entry.name for entry in entries]


def test_what_cannot_be_gathered_costs_only_the_attacks_that_need_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Gatherer, "_reference", fail)
    result = run_audit(request(tmp_path, attacks="all"), Notes())
    assert names(result.attacks) == ["likelihood", "zlib", "min-k", "min-k++", "rmia"]
    reasons = {skipped.name: skipped.reason for skipped in result.skipped}
    assert "RuntimeError in auditing.inputs.gathering.gather" in reasons["wbc"]
    assert SECRET not in str(result)
    assert result.incomplete == ()
    assert read_audit_result(tmp_path / "out") == result


def test_an_attack_that_fails_costs_no_other(tmp_path, monkeypatch):
    broken = dataclasses.replace(ATTACKS[AttackName.ZLIB], compute=fail)
    monkeypatch.setitem(ATTACKS, AttackName.ZLIB, broken)
    result = run_audit(request(tmp_path, attacks="all"), Notes())
    assert {"likelihood", "reference", "min-k"} <= set(names(result.attacks))
    assert "zlib" in names(result.skipped)
    assert SECRET not in str(result)


def test_a_named_attack_that_fails_keeps_the_others_and_makes_the_result_partial(tmp_path, monkeypatch):
    monkeypatch.setattr(Gatherer, "_reference", fail)
    result = run_audit(request(tmp_path, attacks="likelihood,wbc"), Notes())
    assert names(result.attacks) == ["likelihood"]
    (reason,) = result.incomplete
    assert "attack wbc failed" in reason
    assert reason in result.warnings


def test_canaries_that_cannot_be_measured_keep_the_attacks_and_make_the_result_partial(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "audit_canaries", fail)
    canaries = draw_canaries(CanaryKind.DIGITS, 4, (1,), seed=0)
    result = run_audit(request(tmp_path, canaries=canaries), Notes())
    assert len(result.attacks) == 5
    (reason,) = result.incomplete
    assert "canaries were not measured" in reason


def test_a_full_disk_is_no_attacks_failure(tmp_path, monkeypatch):
    def full(*_):
        raise StorageError("no space left")

    monkeypatch.setattr(Gatherer, "_reference", full)
    with pytest.raises(StorageError):
        run_audit(request(tmp_path, attacks="all"), Notes())


def test_a_message_made_to_be_read_is_the_reason_and_no_other():
    assert describe_failure(AuditError("too few shots")) == "too few shots"
    assert SECRET not in describe_failure(ValueError(SECRET))


def test_a_server_that_goes_away_was_asked_about_both_sets(tmp_path):
    result = run_audit(request(tmp_path, endpoint(tmp_path, 15), "likelihood"), Notes())
    (likelihood,) = result.attacks
    assert {likelihood.num_members, likelihood.num_nonmembers} == {7, 8}
    (reason,) = result.incomplete
    assert "partial result" in reason
    assert run_audit(request(tmp_path, endpoint(tmp_path, 99), "likelihood"), Notes()).incomplete == ()


def test_sets_of_unequal_size_are_asked_about_in_turn(tmp_path):
    target = fake_target(WordScorer("t"))
    run_audit(request(tmp_path, target, "likelihood", nonmembers=NONMEMBERS[:3]), Notes())
    expected = [MEMBERS[0], NONMEMBERS[0], MEMBERS[1], NONMEMBERS[1], MEMBERS[2], NONMEMBERS[2], *MEMBERS[3:]]
    assert target.scorer.asked == expected


COMMON = {"vocab_size": VOCABULARY, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": EOS}
HEADS = {"intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96}


def save(folder, config):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def audit_all(tmp_path, folder):
    """Reasons for leaving attacks out, but for LiRA, without shadow models here, and what only a server is asked."""
    save_tiny_model(tmp_path / "reference", "llama", layers=1)
    options = TargetOptions(template={"max_tokens": 48}, reference=str(tmp_path / "reference"))
    members, nonmembers = random_texts(6, 1, 6), random_texts(6, 2, 6)
    settings = GatheringSettings(tmp_path / "cache", num_neighbours=2, num_paraphrases=2, num_shots=2)
    target = open_target(str(folder), options)
    out = tmp_path / "out"
    result = run_audit(
        AuditRequest(target, members, nonmembers, parse_attacks("all"), out, settings, num_resamples=50), Notes()
    )
    assert {*names(result.attacks), *names(result.skipped)} == set(ATTACKS)
    elsewhere = {"lira", "samia", "petal", "petal-reference"}
    return {skipped.name: skipped.reason for skipped in result.skipped if skipped.name not in elsewhere}


def test_all_attacks_on_a_model_that_cannot_be_adapted_leave_out_what_adapts_it(tmp_path):
    config = Phi3Config(hidden_size=48, num_hidden_layers=2, **HEADS, **COMMON)
    reasons = audit_all(tmp_path, save(tmp_path / "phi3", config))
    assert list(reasons) == ["spv"]
    assert "Phi3ForCausalLM" in reasons["spv"]


def test_all_attacks_on_a_model_without_keys_and_values_leave_out_the_prefix(tmp_path):
    config = MambaConfig(hidden_size=48, state_size=4, num_hidden_layers=2, **COMMON)
    reasons = audit_all(tmp_path, save(tmp_path / "mamba", config))
    assert set(reasons) == {"spv", "recall"}
    assert "keeps no keys and values" in reasons["recall"]


def test_a_tokenizer_larger_than_the_embedding_is_refused_for_that_reason(tmp_path):
    config = LlamaConfig(hidden_size=48, num_hidden_layers=1, **HEADS, **dict.fromkeys(COMMON, 0) | {"vocab_size": 250})
    with pytest.raises(ModelError, match=r"gives token 25[67], and the model knows those below 250"):
        audit_all(tmp_path, save(tmp_path / "small", config))
