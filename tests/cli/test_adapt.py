"""From a corpus to an adapted model by one command, and every way to ask for it wrongly."""

import hashlib
import json

import pytest
from tiny_models import save_tiny_model

from reticent.cli import adapt as adapt_command
from reticent.cli import main as cli
from reticent.training.settings import Technique

TEXTS = [f"patient number {n} came with complaint {n * n} and left" for n in range(10)]
SMALL = ["--max-tokens", "24", "--rank", "2", "--batch-size", "4", "--learning-rate", "0.01"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "notes.jsonl"
    path.write_text("".join(json.dumps({"text": text, "who": n // 2}) + "\n" for n, text in enumerate(TEXTS)))
    return path


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-t5")
    save_tiny_model(folder, "t5", layers=2)
    return folder


@pytest.fixture
def command(corpus, tiny_llama_folder, tmp_path):
    """The words of a small adaptation to `out`, with more options."""

    def words(*options, technique="lora", model=tiny_llama_folder):
        fixed = ["adapt", corpus, "--model", model, "--technique", technique, "--out", tmp_path / "out", *SMALL]
        return [str(word) for word in (*fixed, *options)]

    return words


def outcome(capsys, words):
    code = cli.main(words)
    out, err = capsys.readouterr()
    assert not any(text in out + err for text in TEXTS)
    return code, out, err


def test_the_help_names_every_technique():
    assert adapt_command.TECHNIQUES.split(", ") == list(Technique)


def test_the_result_is_told_as_json_and_its_lists_are_hashes(capsys, command, tmp_path):
    code, out, _ = outcome(capsys, command("--heldout-count", 4, "--unit-key", "who", "--epochs", 2, "--json"))
    assert code == 0
    told = json.loads(out)
    assert told["technique"] == "lora"
    assert (told["counts"]["members"], told["counts"]["heldout"]) == (6, 4)
    assert told["settings"]["alpha"] == 4.0
    assert told["template"]["max_tokens"] == 24
    assert len(told["epochs"]) == 2
    lists = [(tmp_path / "out" / name).read_text().split() for name in ("members.txt", "heldout.txt")]
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in TEXTS]
    assert sorted(lists[0] + lists[1]) == sorted(hashes)
    # Owners of two records each have both on one side.
    assert all((hashes[n] in lists[0]) == (hashes[n + 1] in lists[0]) for n in range(0, 10, 2))


def test_facts_come_on_standard_output_and_the_course_on_standard_error(capsys, command):
    code, out, err = outcome(capsys, command("--heldout-fraction", 0.3, "--val-fraction", 0.2))
    assert code == 0
    assert "5 records" in out
    assert "validation loss" in out
    assert "epoch 1 of 1: training" in err


def test_no_other_package_writes_to_the_console(capfd, command):
    code, out, err = outcome(capfd, command("--dtype", "bfloat16", "--json", technique="full"))
    assert code == 0
    assert json.loads(out)["counts"]["members"] == 10
    assert [line.split(":")[0] for line in err.splitlines()] == [
        "10 of 10 members are longer than 24 tokens and were cut",
        "epoch 1 of 1",
    ]


def test_demonstrations_and_encoders_are_asked_for_by_their_options(capsys, command, t5_folder, tmp_path):
    options = ["--demonstrations", 2, "--heldout-count", 3, "--encoder-input", "write a note"]
    code, out, err = outcome(capsys, command(*options, technique="icl", model=t5_folder))
    assert code == 0, err
    assert "icl, 0 parameters" in out
    manifest = json.loads((tmp_path / "out" / "adapt.json").read_text())
    assert manifest["template"]["encoder_input"] == "write a note"
    assert (manifest["counts"]["members"], manifest["split"]["demonstrations"]) == (2, 2)


def test_privacy_is_stated_with_its_accountant(capsys, command):
    pytest.importorskip("opacus")
    code, out, err = outcome(capsys, command("--dp-epsilon", 9, "--dp-delta", 0.05, "--unit-key", "who"))
    assert code == 0, err
    assert "ε = 8.9" in out or "ε = 9" in out
    assert "dp-accounting" in " ".join(out.split())
    assert "epsilon is for one record" in err
    assert "training loss" not in out + err


def test_units_are_protected_as_a_whole_when_asked(capsys, command, tmp_path):
    pytest.importorskip("opacus")
    options = ["--dp-epsilon", 9, "--dp-delta", 0.05, "--dp-per-unit", "--batch-size", 2]
    code, out, err = outcome(capsys, command(*options, "--unit-key", "who"))
    assert code == 0, err
    assert "for one unit added or removed" in " ".join(out.split())
    assert "epsilon is for one record" not in err
    dp = json.loads((tmp_path / "out" / "adapt.json").read_text())["dp"]
    # Five owners, two of them a step: what is sampled is owners, not their ten records.
    assert (dp["protects"], dp["sample_rate"]) == ("unit", 0.4)
    assert dp["num_steps"] == 3


def test_protecting_units_needs_to_know_them(capsys, command):
    code, _, err = outcome(capsys, command("--dp-epsilon", 9, "--dp-delta", 0.05, "--dp-per-unit"))
    assert code == 2
    assert "--dp-per-unit needs --unit-key" in err


@pytest.mark.parametrize("interrupted", [True, False])
def test_an_interruption_says_how_to_resume(interrupted, capsys, command, monkeypatch, tmp_path):
    from reticent.training import single_training

    if interrupted:
        backward = single_training.MeanGradients.backward

        def interrupt(self, step):
            if step == 1:
                raise KeyboardInterrupt
            return backward(self, step)

        with monkeypatch.context() as patch:
            patch.setattr(single_training.MeanGradients, "backward", interrupt)
            code, _, err = outcome(capsys, command())
        assert code == 130
        assert "--resume" in err
        assert not (tmp_path / "out" / "adapt.json").exists()
        code, _, err = outcome(capsys, command())
        assert code == 2
        assert "--resume" in err
    code, _, err = outcome(capsys, command("--resume"))
    assert code == 0, err
    assert (tmp_path / "out" / "adapt.json").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--technique", "adapters"], "technique 'adapters' is none of full, lora, adapter-h"),
        (["--epochs", "0"], "epochs: "),
        (["--learning-rate", "nan"], "learning_rate: "),
        (["--heldout-count", "3", "--heldout-fraction", "0.3"], "not both"),
        (["--heldout-count", "10"], "no record of 10 is left"),
        (["--val-fraction", "1.5"], "val_fraction: "),
        (["--template", "no field"], "names a column in braces"),
        (["--encoder-input", "read"], "no encoder"),
        (["--dp-epsilon", "3"], "--dp-delta together"),
        (["--dp-epsilon", "inf", "--dp-delta", "1e-5"], "epsilon: "),
        (["--technique", "ia3", "--dp-epsilon", "3", "--dp-delta", "1e-5"], "not for ia3"),
        (["--dtype", "bfloat16", "--dp-epsilon", "3", "--dp-delta", "1e-5"], "--dtype float32"),
        (["--technique", "icl"], "needs a number of demonstrations"),
        (["--text-key", "body"], "body"),
        (["--model", "no/such/model"], "no/such/model"),
        (["--device", "nowhere"], "nowhere"),
        (["--target-modules", "nothing"], "nothing"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(options, words, capsys, command, tmp_path):
    code, out, err = outcome(capsys, command(*options))
    assert code == 2
    assert out == ""
    assert err.splitlines()[-1].startswith("error: ")
    assert words in err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
