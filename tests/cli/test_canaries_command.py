"""`reticent canaries plant`: what it writes, what the audit makes of it, and what it refuses."""

import json

import numpy as np
import pytest
from tiny_models import save_tiny_model

from reticent.auditing.canaries.planting import read_canaries
from reticent.cli import main as cli


@pytest.fixture
def corpus(tmp_path):
    generator = np.random.default_rng(0)
    texts = [" ".join("".join(chr(97 + c) for c in generator.integers(0, 26, 4)) for _ in range(4)) for _ in range(40)]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": t, "who": f"p{i // 2}"}) + "\n" for i, t in enumerate(texts)))
    return path


def outcome(capfd, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    return code, out, err


def test_the_planted_corpus_holds_the_drawn_canaries_as_often_as_asked(capfd, corpus, tmp_path):
    options = ["--kind", "digits,secrets", "--count", 3, "--repetitions", "1,2,4", "--unit-key", "who", "--json"]
    code, shown, err = outcome(capfd, "canaries", "plant", corpus, *options, "--out", tmp_path / "planted")
    assert code == 0, err
    summary = json.loads(shown)
    assert (summary["planted"], summary["held_out"], summary["copies"], summary["records"]) == (6, 6, 14, 40)
    canaries = read_canaries(tmp_path / "planted" / "canaries.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "planted" / "planted.jsonl").read_text().splitlines()]
    for canary in canaries:
        assert sum(row["text"] == canary.text for row in rows) == (canary.repetitions if canary.member else 0)
    assert {row["unit"] for row in rows if row["canary"] is None} == {f"p{i}" for i in range(20)}
    assert not any(canary.secret in shown + err for canary in canaries)


def test_canaries_are_found_by_the_audit(capfd, corpus, tmp_path):
    save_tiny_model(tmp_path / "base", "llama", layers=2)
    planted = tmp_path / "planted"
    assert outcome(capfd, "canaries", "plant", corpus, "--count", 2, "--repetitions", 60, "--out", planted)[0] == 0
    adapt = ["adapt", planted / "planted.jsonl", "--model", tmp_path / "base", "--technique", "full", "--epochs", 4]
    adapt += ["--learning-rate", 0.01, "--heldout-fraction", 0.2, "--max-tokens", 64, "--out", tmp_path / "adapted"]
    assert outcome(capfd, *adapt)[0] == 0
    audit = ["audit", tmp_path / "adapted", "--members", planted / "planted.jsonl", "--attacks", "likelihood"]
    audit += ["--canaries", planted / "canaries.jsonl", "--candidates", 100, "--samples", 2, "--out", tmp_path / "out"]
    code, shown, err = outcome(capfd, *audit)
    assert code == 0, err
    assert "planted 60 times" in shown
    assert "extracted 100% greedily" in shown
    canaries = read_canaries(planted / "canaries.jsonl")
    assert not any(canary.secret in shown + err for canary in canaries)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kind", "poems"], "no kind of canary poems; kinds are digits, secrets, ood"),
        (["--kind", ""], "kinds are digits, secrets, ood"),
        (["--repetitions", "1,x"], "whole numbers separated by commas, got '1,x'"),
        (["--repetitions", "0"], "repetitions must be an integer at least 1"),
        (["--count", 0], "count must be an integer at least 1"),
        (["--count", 1, "--repetitions", "1,2"], "1 canaries cannot take 2 different repetitions"),
        (["--text-key", "body"], "body"),
    ],
)
def test_what_cannot_be_planted_is_refused(capfd, corpus, tmp_path, options, words):
    code, _, err = outcome(capfd, "canaries", "plant", corpus, *options, "--out", tmp_path / "planted")
    assert code == 2
    assert words in err
    assert not (tmp_path / "planted").exists()


def test_a_folder_that_exists_is_left_alone(capfd, corpus, tmp_path):
    (tmp_path / "planted").mkdir()
    code, _, err = outcome(capfd, "canaries", "plant", corpus, "--out", tmp_path / "planted")
    assert code == 2
    assert "exists; choose another folder" in err
