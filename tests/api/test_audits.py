"""Audits from Python: of folders, of a world of a run, and of models in memory; figures, reports, refusals."""

import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from api.small_texts import TEXTS as CORPUS
from peft import PeftModel
from tiny_models import build_tiny_model, byte_tokenizer, save_tiny_model

import reticent
from reticent.cli import main as cli
from reticent.errors import AuditError, CorpusError, InvalidValueError, ModelError
from reticent.models.base import resolve_base_model

FAST = reticent.AuditOptions(bootstrap=50, max_tokens=48)


def invented(count, seed):
    generator = np.random.default_rng(seed)
    return [" ".join("".join(map(chr, generator.integers(97, 123, 4))) for _ in range(5)) for _ in range(count)]


TEXTS = invented(40, seed=0)
MEMBERS, NONMEMBERS = TEXTS[:20], TEXTS[20:]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base, the members as a file, and a PEFT folder and an adapted folder trained on them."""
    folder = tmp_path_factory.mktemp("audits")
    save_tiny_model(folder / "base", "llama", layers=2)
    path = folder / "members.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in MEMBERS))
    options = ["--technique", "lora", "--rank", "8", "--target-modules", "all-linear", "--epochs", "25"]
    options += [
        "--learning-rate",
        "0.02",
        "--max-tokens",
        "48",
        "--model",
        folder / "base",
        "--out",
        folder / "adapted",
    ]
    assert cli.main(["adapt", str(path), *map(str, options)]) == 0
    return folder


@pytest.fixture(scope="module")
def peft_folder(place):
    return next(path.parent for path in (place / "adapted").rglob("adapter_config.json"))


def peft_model(place, peft_folder):
    return PeftModel.from_pretrained(resolve_base_model(str(place / "base")).load(), peft_folder)


def aucs(result):
    return {row["attack"]: row["auc"] for row in result.rows()}


def test_the_example_of_the_front_page(place, tmp_path):
    result = reticent.audit(
        place / "adapted", members=MEMBERS, nonmembers=NONMEMBERS, attacks=["reference", "min-k++"], options=FAST
    )
    assert list(aucs(result)) == ["reference", "min-k++"]
    assert aucs(result)["reference"] > 0.8
    assert result.folder is None
    saved = result.save(tmp_path / "audit")
    assert {path.name for path in saved.iterdir()} >= {"report.html", "report.json", "report.md", "scores.parquet"}
    table = pq.read_table(saved / "scores.parquet").to_pydict()
    assert sum(table["is_member"]) == len(MEMBERS)
    assert "text" not in table


def test_non_members_may_have_another_column(place, tmp_path):
    members, others = tmp_path / "members.jsonl", tmp_path / "others.jsonl"
    members.write_text("".join(json.dumps({"note": text}) + "\n" for text in MEMBERS))
    others.write_text("".join(json.dumps({"body": text}) + "\n" for text in NONMEMBERS))
    options = {"attacks": "likelihood", "options": FAST}
    found = reticent.audit(
        place / "adapted", members=members, nonmembers=others, text_key="note", nonmember_text_key="body", **options
    )
    same = reticent.audit(place / "adapted", members=MEMBERS, nonmembers=NONMEMBERS, **options)
    assert aucs(found) == aucs(same)
    with pytest.raises(CorpusError, match="note"):
        reticent.audit(place / "adapted", members=members, nonmembers=others, text_key="note", **options)


def test_owners_stay_together_and_are_attacked_as_a_whole(place, tmp_path):
    rows = [
        [{"text": text, "patient": f"{side}{number // 2}"} for number, text in enumerate(texts)]
        for side, texts in (("m", MEMBERS), ("n", NONMEMBERS))
    ]
    options = {"attacks": ["likelihood", "reference"], "options": FAST}
    found = reticent.audit(place / "adapted", members=rows[0], nonmembers=rows[1], unit_key="patient", **options).result
    alone = reticent.audit(place / "adapted", members=MEMBERS, nonmembers=NONMEMBERS, **options).result
    assert [each.auc.value for each in found.attacks] == [each.auc.value for each in alone.attacks]
    assert all(each.epsilon is None for each in found.attacks)
    assert found.owners.num_members == -(-len(MEMBERS) // 2)
    assert [each.name for each in found.owners.attacks] == ["likelihood", "reference"]
    assert found.owners.attacks[0].num_nonmembers == -(-len(NONMEMBERS) // 2)
    assert alone.owners is None
    both = [{"text": NONMEMBERS[0], "patient": "m0"}]
    with pytest.raises(AuditError, match="texts in both sets"):
        reticent.audit(place / "adapted", members=rows[0], nonmembers=both, unit_key="patient", **options)


def test_the_command_and_the_function_find_the_same(place, tmp_path, capfd):
    path = tmp_path / "nonmembers.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in NONMEMBERS))
    given = {"members": place / "members.jsonl", "nonmembers": path}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    arguments = [
        "audit",
        str(place / "adapted"),
        *options,
        "--attacks",
        "likelihood,zlib",
        "--out",
        str(tmp_path / "c"),
    ]
    assert cli.main([*arguments, "--bootstrap", "50", "--max-tokens", "48", "--json"]) == 0
    of_command = json.loads(capfd.readouterr().out)
    result = reticent.audit(
        str(place / "adapted"), **given, attacks="likelihood,zlib", out=tmp_path / "f", options=FAST
    )
    assert {attack["name"]: attack["auc"]["value"] for attack in of_command["attacks"]} == aucs(result)
    assert {path.name for path in (tmp_path / "c").iterdir()} == {path.name for path in result.folder.iterdir()}


def test_figures_are_a_frame_where_pandas_is_and_rows_where_it_is_not(place, monkeypatch):
    result = reticent.audit(
        place / "adapted", members=MEMBERS, nonmembers=NONMEMBERS, attacks="likelihood", options=FAST
    )
    [row] = result.rows()
    assert set(row) >= {"attack", "auc", "auc_low", "auc_high", "tpr_at_1_percent_fpr", "members", "nonmembers"}
    assert (row["members"], row["nonmembers"], row["tpr_at_1_percent_fpr"]) == (20, 20, None)

    class Pandas:
        @staticmethod
        def DataFrame(rows):  # noqa: N802
            return ("frame", rows)

    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pandas", Pandas)
        assert result.figures() == ("frame", [row])
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert result.figures() == [row]


def test_a_model_in_memory_scores_as_its_folder_does(place):
    model = resolve_base_model(str(place / "base")).load()
    arguments = {"members": MEMBERS, "nonmembers": NONMEMBERS, "attacks": ["likelihood", "gradient-norm"]}
    of_folder = reticent.audit(place / "base", **arguments, options=FAST)
    of_model = reticent.audit(model, tokenizer=byte_tokenizer(), **arguments, options=FAST)
    assert aucs(of_model) == aucs(of_folder)
    assert of_model.result.target["kind"] == "model"
    assert of_model.result.settings["members"] == "given as objects"


def test_the_reference_of_a_peft_model_in_memory_is_its_adapter_off(place, peft_folder):
    arguments = {"members": MEMBERS, "nonmembers": NONMEMBERS, "attacks": ["likelihood", "reference"]}
    of_folder = reticent.audit(peft_folder, **arguments, options=FAST)
    model = peft_model(place, peft_folder)
    of_model = reticent.audit(model, tokenizer=byte_tokenizer(), **arguments, options=FAST)
    assert aucs(of_model) == aucs(of_folder)
    assert of_model.result.target["adapter"] == "LORA"


def test_a_model_in_memory_is_left_as_it_was(place, peft_folder):
    model = peft_model(place, peft_folder).train()
    parameters = {name: (p.requires_grad, p.detach().clone()) for name, p in model.named_parameters()}
    reticent.audit(
        model, tokenizer=byte_tokenizer(), members=MEMBERS, nonmembers=NONMEMBERS,
        attacks=["likelihood", "reference", "gradient-norm"], options=FAST,
    )  # fmt: skip
    assert all(part.training for part in model.modules())
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == parameters[name][0]
        assert torch.equal(parameter, parameters[name][1])


def test_finished_passes_belong_to_weights_scale_and_active_adapter(place, peft_folder, tmp_path):
    """Two models of different behaviour never share a cache, though their numbers in memory are the same."""
    model = peft_model(place, peft_folder)
    fingerprints = set()
    for scale in (1.0, 0.5):
        for config in model.peft_config.values():
            config.lora_alpha = scale * config.lora_alpha
        result = reticent.audit(
            model, tokenizer=byte_tokenizer(), members=MEMBERS, nonmembers=NONMEMBERS, attacks="likelihood",
            options=FAST, out=tmp_path / "out",
        )  # fmt: skip
        fingerprints.add(result.result.scoring["fingerprint"])
    assert len(fingerprints) == 2


def test_an_attack_that_trains_the_base_again_must_be_told_which(place):
    arguments = {"tokenizer": byte_tokenizer(), "members": MEMBERS, "nonmembers": NONMEMBERS, "attacks": ["spv"]}
    model = resolve_base_model(str(place / "base")).load()
    with pytest.raises(AuditError, match="--model"):
        reticent.audit(model, **arguments, options=FAST)
    named = reticent.AuditOptions(model=str(place / "base"), bootstrap=50, max_tokens=48, paraphrases=2, shots=2)
    [row] = reticent.audit(model, **arguments, options=named).rows()
    assert (row["attack"], row["members"]) == ("spv", len(MEMBERS))


@pytest.mark.parametrize(
    ("target", "tokenizer", "options", "error", "words"),
    [
        (lambda _: build_tiny_model("llama"), None, {}, InvalidValueError, "tokenizer"),
        (lambda _: build_tiny_model("llama"), object(), {}, InvalidValueError, "tokenizer"),
        (lambda _: torch.nn.Linear(2, 2), byte_tokenizer(), {}, InvalidValueError, "Linear"),
        (lambda _: 7, byte_tokenizer(), {}, InvalidValueError, "int"),
        (lambda _: build_tiny_model("llama"), byte_tokenizer(), {"dtype": "bfloat16"}, InvalidValueError, "dtype"),
        (lambda _: build_tiny_model("llama"), byte_tokenizer(), {"world": 1}, InvalidValueError, "world"),
        (lambda make: make().get_base_model(), byte_tokenizer(), {}, ModelError, "PeftModel"),
        (lambda make: make().model.model, byte_tokenizer(), {}, ModelError, "PeftModel"),
    ],
)
def test_a_target_that_cannot_be_audited_is_refused(place, peft_folder, target, tokenizer, options, error, words):
    with pytest.raises(error, match=words):
        reticent.audit(
            target(lambda: peft_model(place, peft_folder)),
            tokenizer=tokenizer,
            members=MEMBERS,
            nonmembers=NONMEMBERS,
            options=reticent.AuditOptions(**options),
        )


def test_a_world_of_a_run_is_audited_with_the_others_as_its_shadows(run):
    options = reticent.AuditOptions(world=1, bootstrap=20)
    result = reticent.audit(run, members=CORPUS, attacks=["likelihood", "lira"], options=options)
    assert [row["attack"] for row in result.rows()] == ["likelihood", "lira"]
    with pytest.raises(AuditError, match="--world"):
        reticent.audit(run, members=CORPUS)


@pytest.mark.parametrize(
    "options", [{"seed": -1}, {"confidence": 1.0}, {"bootstrap": 0}, {"samples": -1}, {"timeout": float("nan")}]
)
def test_settings_out_of_range_are_named(options):
    with pytest.raises(InvalidValueError, match=next(iter(options))):
        reticent.AuditOptions(**options)


def test_texts_and_attacks_are_checked_before_a_model_is_opened(tmp_path):
    with pytest.raises(CorpusError, match="record 1"):
        reticent.audit(tmp_path / "no-model", members=[7])
    with pytest.raises(InvalidValueError, match="telepathy"):
        reticent.audit(tmp_path / "no-model", members=["x"], attacks=["telepathy"])
