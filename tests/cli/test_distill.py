"""From a run to a model that needs no ledger: what it costs, what its card says and does not say, and every refusal."""

import json
import shutil

import pytest
import torch
from cli.built_runs import build_small_run
from peft import PeftModel
from transformers import AutoModelForCausalLM

from reticent.api.deployments import run_id
from reticent.cli import main as cli
from reticent.distillation.card import DistilledFolder
from reticent.pac.bounds import attack_success

RECORDS = ["the quick brown fox", "a stitch in time", "more haste less speed", "still waters run deep"]
PUBLIC = ["the early bird gets", "many hands make light", "a watched pot never", "look before you leap", "no pain"]


@pytest.fixture(autouse=True)
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def write_texts(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory, tiny_llama_folder):
    folder = tmp_path_factory.mktemp("runs")
    corpus = write_texts(folder / "notes.jsonl", RECORDS)
    return build_small_run(corpus, tiny_llama_folder, folder / "run", max_tokens=16)


@pytest.fixture
def run(built, tmp_path):
    return shutil.copytree(built, tmp_path / "run")


@pytest.fixture
def prompts(tmp_path):
    return write_texts(tmp_path / "public.jsonl", PUBLIC)


def outcome(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def result_of(capsys, *arguments):
    code, out, err = outcome(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def distil_options(run, prompts, out, *more):
    return ["distill", run, "--prompts", prompts, "--out", out, "--step-budget", "2^-10", *more]


def test_a_student_carries_the_bound_of_its_tokens_and_needs_no_ledger(capsys, run, prompts, tmp_path):
    out = tmp_path / "student"
    before = result_of(capsys, "generate", run, "--prompt", "the", "--max-tokens", 3, "--step-budget", "2^-10")
    made = result_of(capsys, *distil_options(run, prompts, out, "--tokens", 40, "--held-out", 1, "--keep-text"))
    state = result_of(capsys, "state", "show", run)
    assert made["num_tokens"] == 40
    assert state["tokens"] == 40 + before["tokens"]
    # All that the deployment released before counts, not the student's tokens alone.
    assert made["bound"]["nats"] == state["nats_charged"] == state["tokens"] * 2.0**-10
    assert made["bound"]["half_success"] == pytest.approx(attack_success(state["nats_charged"], 0.5))
    assert made["public_loss"]["num_tokens"] > 0
    lines = [json.loads(line) for line in (out / "released.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == PUBLIC[1 : 1 + made["num_texts"]]
    assert sum(label >= 0 for line in lines for label in line["labels"]) == 40

    shutil.rmtree(run)
    answer = result_of(capsys, "generate", out, "--prompt", "the", "--max-tokens", 5, "--seed", 1)
    assert answer == result_of(capsys, "generate", out, "--prompt", "the", "--max-tokens", 5, "--seed", 1)
    assert 1 <= answer["tokens"] <= 5
    assert answer["half_success"] == made["bound"]["half_success"]


def test_the_student_is_a_peft_adapter(capsys, run, prompts, tmp_path, tiny_llama_folder):
    out = tmp_path / "student"
    result_of(capsys, *distil_options(run, prompts, out, "--tokens", 40))
    distilled = DistilledFolder.open(out)
    ours, _ = distilled.adapted.load()
    base = AutoModelForCausalLM.from_pretrained(tiny_llama_folder, dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        public = base(input_ids=ids).logits
        theirs = PeftModel.from_pretrained(base, out / "weights").eval()(input_ids=ids).logits
        torch.testing.assert_close(ours(input_ids=ids).logits, theirs)
    assert not torch.allclose(public, theirs), "the student learnt something"


def test_a_full_student_is_a_whole_model_and_continuations_are_text(capsys, run, prompts, tmp_path):
    out = tmp_path / "student"
    options = ["--tokens", 12, "--mode", "continue", "--prompt-tokens", 4, "--technique", "full", "--keep-text"]
    made = result_of(capsys, *distil_options(run, prompts, out, *options))
    assert 1 <= made["num_tokens"] <= 12
    AutoModelForCausalLM.from_pretrained(out / "weights")
    lines = [json.loads(line) for line in (out / "released.jsonl").read_text().splitlines()]
    assert all(public.startswith(line["prompt"]) for public, line in zip(PUBLIC, lines, strict=False))
    code, text, err = outcome(capsys, "generate", out, "--prompt", "a", "--max-tokens", 3, "--decoder", "greedy")
    assert code == 0, err
    assert "nothing: a distilled model" in text


def test_the_cap_ends_the_release_and_the_student_is_made_of_what_left(capsys, run, prompts, tmp_path):
    options = ["--tokens", 1000, "--total-budget", 10 * 2.0**-10]
    code, out, err = outcome(capsys, *distil_options(run, prompts, tmp_path / "student", *options), "--json")
    assert code == 0, err
    assert json.loads(out)["num_tokens"] == 10
    assert "10 of 1,000 tokens were released: the total budget is spent" in " ".join(err.split())
    code, _, err = outcome(capsys, *distil_options(run, prompts, tmp_path / "second", "--tokens", 5))
    assert code == 2
    assert "covers no token" in err


def test_charges_that_depend_on_votes_are_published_as_the_cap(capsys, run, prompts, tmp_path):
    refused = distil_options(run, prompts, tmp_path / "student", "--tokens", 20, "--charging", "dissent")
    code, _, err = outcome(capsys, *refused)
    assert code == 2
    assert "--total-budget" in err
    assert result_of(capsys, "state", "show", run)["tokens"] == 0
    made = result_of(capsys, *refused, "--resume", "--total-budget", "1")
    state = result_of(capsys, "state", "show", run)
    assert made["bound"]["nats"] == 1.0
    assert state["nats_charged"] == state["dissenting_steps"] * 2.0**-10


@pytest.mark.parametrize("rule", ["fixed", "dissent"])
def test_what_is_published_says_nothing_of_the_run(capsys, run, prompts, tmp_path, rule):
    out = tmp_path / "student"
    name = run_id(run)
    result_of(capsys, *distil_options(run, prompts, out, "--tokens", 30, "--charging", rule, "--total-budget", "1"))
    manifest = json.loads((run / "manifest.json").read_text())
    secrets = [name, manifest["corpus"]["corpus_hash"], manifest["corpus"]["units_hash"], *manifest["files"].values()]
    published = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for path, content in published.items():
        for secret in secrets:
            assert secret.encode() not in content, path
        assert str(run).encode() not in content, path
        assert b"dissenting" not in content, path
    assert {path.name for path in out.iterdir()} == {
        "README.md", "adapt.json", "distilled.json", "members.txt", "heldout.txt", "weights",
    }  # fmt: skip
    card = (out / "README.md").read_text()
    assert "**Not bounded:** whether a record is in the corpus at all" in card


def test_a_training_that_was_stopped_goes_on_without_a_further_charge(capsys, run, prompts, tmp_path, monkeypatch):
    out = tmp_path / "student"
    options = distil_options(run, prompts, out, "--tokens", 30)

    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("reticent.api.distillation.train_student", interrupt)
        code, _, err = outcome(capsys, *options)
    assert code == 130
    assert "--resume" in err
    spent = result_of(capsys, "state", "show", run)
    code, _, err = outcome(capsys, *options)
    assert code == 2
    assert "--resume" in err
    # Other tokens of the deployment, released in between, are no part of the student.
    result_of(capsys, "generate", run, "--prompt", "the", "--max-tokens", 2, "--step-budget", "2^-10")
    made = result_of(capsys, *options, "--resume")
    assert made["bound"]["nats"] == spent["nats_charged"]
    assert result_of(capsys, *options, "--resume") == made
    code, _, err = outcome(capsys, *options, "--resume", "--epochs", 3)
    assert code == 2
    assert "epochs" in err


def test_private_texts_are_no_prompts(capsys, run, tmp_path):
    prompts = write_texts(tmp_path / "mixed.jsonl", [*PUBLIC, RECORDS[2]])
    code, _, err = outcome(capsys, *distil_options(run, prompts, tmp_path / "student", "--tokens", 30))
    assert code == 2
    assert "1 of 6 texts" in err
    assert "private corpus" in err
    assert RECORDS[2] not in err
    assert not (tmp_path / "student").exists()
    assert not (run / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokens", 0], "tokens"),
        (["--tokens", 5, "--mode", "both"], "mode must be one of label, continue"),
        (["--tokens", 5, "--technique", "prefix"], "lora or full"),
        (["--tokens", 5, "--held-out", 5], "none is left"),
        (["--tokens", 5, "--candidates", 259], "vocabulary"),
        (["--tokens", 5, "--max-tokens", 97], "context of 96"),
        (["--tokens", 5, "--mode", "continue", "--prompt-tokens", 16], "below max-tokens, 16"),
        (["--tokens", 5, "--target-modules", "nothing"], "nothing"),
        (["--tokens", 5, "--learning-rate", "nan"], "learning_rate"),
    ],
)
def test_what_cannot_be_met_is_refused_before_a_deployment_is_drawn(capsys, run, prompts, tmp_path, options, words):
    code, out, err = outcome(capsys, *distil_options(run, prompts, tmp_path / "student", *options))
    assert code == 2
    assert out == ""
    assert words in " ".join(err.split())
    assert not (run / "ledger.sqlite").exists()


def test_options_of_a_ledger_are_refused_for_a_student(capsys, run, prompts, tmp_path):
    out = tmp_path / "student"
    result_of(capsys, *distil_options(run, prompts, out, "--tokens", 20))
    code, _, err = outcome(capsys, "generate", out, "--prompt", "a", "--total-budget", "1")
    assert code == 2
    assert "--total-budget" in err
    card = out / "distilled.json"
    card.write_text(card.read_text().replace('"num_tokens": 20', '"num_tokens": "many"'))
    code, _, err = outcome(capsys, "generate", out, "--prompt", "a")
    assert code == 2
    assert "damaged" in err


def test_the_operators_report_holds_a_student_against_worlds_and_full_data(capsys, run, prompts, tmp_path):
    out = tmp_path / "student"
    result_of(capsys, *distil_options(run, prompts, out, "--tokens", 20))
    published = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    corpus = write_texts(tmp_path / "notes.jsonl", RECORDS)
    others = write_texts(tmp_path / "others.jsonl", ["all that glitters is", "birds of a feather", "easy come easy"])
    options = ["distill-report", out, "--run", run, "--corpus", corpus, "--nonmembers", others]
    found = result_of(capsys, *options, "--out", tmp_path / "report")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == published
    assert {row["attack"] for row in found["presence"]} == {"likelihood", "reference", "zlib", "min-k++"}
    assert all(row["members"] == 4 and row["nonmembers"] == 3 for row in found["presence"])
    for name in ("full", "worlds"):
        assert found[name] != pytest.approx(found["base"], abs=1e-4)
    # The public model's loss from its own logits.
    student, tokenizer = DistilledFolder.open(out).adapted.load()
    nats, count = 0.0, 0
    for text in json.loads("[" + ",".join(others.read_text().splitlines()) + "]"):
        ids = [*tokenizer(text["text"])["input_ids"], tokenizer.eos_token_id][:16]
        with torch.no_grad(), student.disable_adapter():
            logits = student(input_ids=torch.tensor([ids])).logits[0, :-1]
        nats += float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum"))
        count += len(ids) - 1
    assert (found["num_tokens"], found["base"]) == (count, pytest.approx(nats / count, rel=1e-4))
    code, _, err = outcome(capsys, *options, "--out", out / "report")
    assert code == 2
    assert "published" in err
