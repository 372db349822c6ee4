import json
from collections import Counter

import numpy as np
import pytest
import torch
from peft import PeftModel
from small_grids import RecordingProgress, distinct_texts, small_grid

from reticent.auditing.attacks.registry import ATTACKS, AttackName
from reticent.auditing.canaries.planting import read_canaries
from reticent.benchmark.cell import _groups, run_cell
from reticent.benchmark.grid import CellWork
from reticent.benchmark.settings import AttackChoice
from reticent.errors import ModelError
from reticent.models.base import resolve_base_model
from reticent.text.corpus import text_hash
from reticent.text.template import encode
from reticent.training.adapted_folder import AdaptedFolder

TOML = """
name = "cell"
members = 8
nonmembers = 6
max_tokens = 40
keep_models = {keep}
[training]
epochs = 1
[[models]]
name = "m"
family = "{family}"
tiny = true
[[datasets]]
name = "notes"
domain = "notes"
path = "unused.jsonl"
encoder_input = "Note:"
[attacks]
names = ["likelihood", "reference", "gradient-norm", "lira"]
limits = {{ gradient-norm = 3 }}
[[techniques]]
technique = "{technique}"
{more}
"""


@pytest.fixture
def work(tmp_path):
    def make(technique="lora", family="llama", more="", keep="true"):
        grid = small_grid(TOML.format(technique=technique, family=family, more=more, keep=keep))
        corpus = tmp_path / "corpus.jsonl"
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in distinct_texts(14)))
        cell = next(grid.cells())
        return CellWork(cell, grid, corpus, tmp_path / "cells" / cell.name, tmp_path)

    return make


def test_a_cell_is_adapted_and_audited_on_the_trainers_own_lists(work):
    one = work()
    result, facts = run_cell(one, RecordingProgress())
    adapted = AdaptedFolder.open(one.folder / "adapted")
    hashes = {text_hash(text) for text in distinct_texts(14)}
    assert set(adapted.member_hashes) | set(adapted.heldout_hashes) == hashes
    assert (result.data.num_members, result.data.num_nonmembers) == (8, 6)
    assert [attack.name for attack in result.attacks] == ["likelihood", "reference", "gradient-norm"]
    counts = {attack.name: (attack.num_members, attack.num_nonmembers) for attack in result.attacks}
    assert counts == {"likelihood": (8, 6), "reference": (8, 6), "gradient-norm": (3, 3)}
    assert [skipped.name for skipped in result.skipped] == ["lira"]
    assert (facts.num_members, facts.num_nonmembers, facts.epochs) == (8, 6, 1)
    assert facts.mean_tokens == pytest.approx(39)  # 40 tokens, of which the first is not predicted
    base = resolve_base_model(str(one.shared / "models" / "tiny-llama")).load()
    assert facts.num_parameters == sum(parameter.numel() for parameter in base.parameters())
    assert 0 < facts.num_trained < facts.num_parameters


def test_in_context_learning_has_its_demonstrations_as_members_and_no_gradient(work):
    result, facts = run_cell(work("icl", more="demonstrations = 3"), RecordingProgress())
    assert (facts.num_members, facts.num_nonmembers, facts.num_trained, facts.epochs) == (3, 6, 0, 0)
    assert facts.learning_rate is None
    assert {skipped.name for skipped in result.skipped} == {"lira", "gradient-norm"}


def test_an_encoder_decoder_reads_the_data_sets_input(work):
    one = work(family="t5")
    result, facts = run_cell(one, RecordingProgress())
    assert AdaptedFolder.open(one.folder / "adapted").template.encoder_input == "Note:"
    assert facts.mean_tokens == pytest.approx(40)
    assert result.attacks


def test_models_are_dropped_where_they_are_not_to_be_kept(work):
    one = work(keep="false")
    run_cell(one, RecordingProgress())
    assert not (one.folder / "adapted" / "weights").exists()
    assert (one.folder / "adapted" / "members.txt").is_file()


def test_a_reference_scores_each_text_once_for_all_cells(work):
    def folders():
        return {path.name for path in (work().shared / "signals").iterdir()}

    run_cell(work("lora"), RecordingProgress())
    first = folders()
    run_cell(work("ia3"), RecordingProgress())
    assert len(folders() - first) == 1  # the new target's; the reference's was there


def test_a_cell_goes_on_from_a_finished_training(work, monkeypatch):
    def broken(*args, **kwargs):
        raise ModelError("out of memory")

    one = work()
    with monkeypatch.context() as patch:
        patch.setattr("reticent.benchmark.cell.run_audit", broken)
        with pytest.raises(ModelError):
            run_cell(one, RecordingProgress())
    before = (one.folder / "adapted" / "adapt.json").read_bytes()
    run_cell(one, RecordingProgress())
    assert (one.folder / "adapted" / "adapt.json").read_bytes() == before


def test_limits_divide_attacks_by_how_many_texts_they_get():
    names = (AttackName.LIKELIHOOD, AttackName.NEIGHBOURHOOD, AttackName.GRADIENT_NORM, AttackName.RECALL)
    choice = AttackChoice(names=names, limits={"neighbourhood": 5, "gradient-norm": 99, "recall": 5}, shots=4)
    groups = _groups(tuple(ATTACKS[name] for name in names), choice, 20, 30)
    assert [(counts, [str(attack.name) for attack in group]) for counts, group in groups] == [
        ((20, 30), ["likelihood", "gradient-norm"]),
        ((5, 9), ["recall"]),
        ((5, 5), ["neighbourhood"]),
    ]


def test_canaries_are_trained_on_and_no_text_of_the_attacks(work):
    one = work(more='epochs = 2\nattacks = ["zlib"]\n[canaries]\ncount = 3\nrepetitions = [1, 5]\ncandidates = 8')
    result, facts = run_cell(one, RecordingProgress())
    planted = read_canaries(one.folder / "planted" / "canaries.jsonl")
    trained_on = AdaptedFolder.open(one.folder / "adapted").member_hashes
    copies = [canary for canary in planted if canary.member for _ in range(canary.repetitions)]
    assert [canary.repetitions for canary in planted if canary.member] == [1, 5, 1]
    assert Counter(trained_on) >= Counter(canary.hash for canary in copies)
    assert len(trained_on) == 8 + len(copies)
    assert not {canary.hash for canary in planted if not canary.member} & set(trained_on)
    assert (result.data.num_members, result.data.num_nonmembers) == (facts.num_members, facts.num_nonmembers) == (8, 6)
    assert {canary.repetitions: canary.num_canaries for canary in result.canaries} == {0: 3, 1: 2, 5: 1}
    assert "zlib" in {attack.name for attack in result.attacks}
    again, _ = run_cell(one, RecordingProgress())
    assert again.canaries == result.canaries


def test_the_gain_is_what_adaptation_added_to_the_texts_log_probability(work):
    one = work()
    _, facts = run_cell(one, RecordingProgress())
    adapted = AdaptedFolder.open(one.folder / "adapted")
    base = resolve_base_model(str(one.shared / "models" / "tiny-llama"))
    tokenizer = base.load_tokenizer()

    def mean_loss(model, text):
        ids = encode(tokenizer, adapted.manifest.template, [text])[0].token_ids
        batch = torch.tensor(np.array([ids]))
        return float(model(input_ids=batch, labels=batch).loss)

    plain = base.load()
    tuned = PeftModel.from_pretrained(base.load(), adapted.weights)
    for hashes, gain in ((adapted.member_hashes, facts.member_gain), (adapted.heldout_hashes, facts.heldout_gain)):
        texts = [text for text in distinct_texts(14) if text_hash(text) in hashes]
        by_hand = [mean_loss(plain, text) - mean_loss(tuned, text) for text in texts]
        assert gain.value == pytest.approx(np.mean(by_hand), abs=1e-5)
        assert gain.low < gain.value < gain.high


def test_private_training_states_its_epsilon(work):
    _, facts = run_cell(work(more="dp_epsilon = 4.0"), RecordingProgress())
    assert 0 < facts.dp_epsilon <= 4.0
    assert facts.dp_delta == pytest.approx(0.1 / 8)
