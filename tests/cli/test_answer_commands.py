"""Questions and answers from a file to a report: adapted or as worlds, and audited on the answers alone."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_models import save_tiny_model

from reticent.cli import main as cli
from reticent.text.corpus import text_hash
from reticent.text.fields import join_fields

GENERATOR = np.random.default_rng(5)
PAIRS = [
    tuple(" ".join("".join(chr(97 + c) for c in GENERATOR.integers(0, 26, 4)) for _ in range(4)) for _ in range(2))
    for _ in range(24)
]
COLUMNS = ["--answer-key", "answer", "--template", "Q: {question}\nA: {answer}"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    save_tiny_model(folder / "llama", "llama", layers=2)
    save_tiny_model(folder / "t5", "t5", layers=2)
    rows = [{"question": question, "answer": answer, "id": n} for n, (question, answer) in enumerate(PAIRS)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(capfd, *words):
    code = cli.main([str(word) for word in words])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert not any(part in out + err for pair in PAIRS for part in pair)
    return json.loads(out)


def scored(folder):
    return set(pq.read_table(folder / "scores.parquet").to_pydict()["text_hash"])


HASHES = {text_hash(join_fields([("answer", answer), ("question", question)])) for question, answer in PAIRS}
ATTACKS = "likelihood,reference,zlib,neighbourhood,min-k++,gradient-norm,rmia,recall"


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_an_adapted_model_is_audited_as_it_was_trained_without_being_told(capfd, place, tmp_path, family):
    template = COLUMNS
    if family == "t5":
        template = ["--answer-key", "answer", "--template", "A: {answer}", "--encoder-input", "Q: {question}"]
    adapted = run(
        capfd, "adapt", place / "pairs.jsonl", "--model", place / family, "--out", tmp_path / "adapted", *template,
        "--technique", "lora", "--rank", 2, "--heldout-count", 12, "--max-tokens", 80, "--json",
    )  # fmt: skip
    assert adapted["template"]["answer"] == "answer"
    attacks = ATTACKS if family == "llama" else ATTACKS.replace(",recall", "")
    report = run(
        capfd, "audit", tmp_path / "adapted", "--members", place / "pairs.jsonl", "--out", tmp_path / "audit",
        "--attacks", attacks, "--bootstrap", 50, "--neighbours", 3, "--shots", 2, "--json",
    )  # fmt: skip
    assert [attack["name"] for attack in report["attacks"]] == attacks.split(",")
    assert report["scoring"]["template"]["answer"] == "answer"
    assert (report["data"]["num_members"], report["data"]["num_nonmembers"]) == (12, 12)
    assert scored(tmp_path / "audit") == HASHES


def test_worlds_keep_their_template_and_one_is_audited_with_it(capfd, place, tmp_path):
    command = [
        "worlds", "build", place / "pairs.jsonl", "--model", place / "llama", "--out", tmp_path / "run", *COLUMNS,
        "--worlds", 4, "--max-tokens", 80, "--json",
    ]  # fmt: skip
    built = run(capfd, *command)
    asked = {"text": "Q: {question}\nA: {answer}", "encoder_input": "", "answer": "answer"}
    assert built["template"] == asked | {"max_tokens": 80, "add_eos": True}
    run(capfd, *command, "--resume")
    assert cli.main([str(word) for word in (*command[:-7], "--worlds", 4, "--max-tokens", 80, "--resume")]) == 2
    assert "template" in capfd.readouterr().err
    report = run(
        capfd, "audit", tmp_path / "run", "--world", 1, "--members", place / "pairs.jsonl", "--out", tmp_path / "audit",
        "--attacks", "likelihood,lira,rmia", "--bootstrap", 50, "--json",
    )  # fmt: skip
    assert scored(tmp_path / "audit") == HASHES
    assert (report["data"]["num_members"], report["data"]["num_nonmembers"]) == (12, 12)


def test_a_run_is_evaluated_on_the_answers_of_texts_it_has_not_seen(capfd, place, tmp_path):
    rows = [{"question": question, "answer": answer} for question, answer in PAIRS]
    for name, some in (("corpus", rows[:18]), ("test", rows[18:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    run(
        capfd, "worlds", "build", tmp_path / "corpus.jsonl", "--model", place / "llama", "--out", tmp_path / "run",
        *COLUMNS, "--worlds", 4, "--max-tokens", 80, "--json",
    )  # fmt: skip
    found = run(
        capfd, "evaluate", tmp_path / "run", "--test", tmp_path / "test.jsonl", "--corpus", tmp_path / "corpus.jsonl",
        "--out", tmp_path / "out", "--study", "utility", "--candidates", 20, "--draws", 2, "--json",
    )  # fmt: skip
    assert found["data"]["positions"] == sum(len(row["answer"].encode()) + 1 for row in rows[18:])
    assert found["data"]["truncated"] == 0


def test_a_template_that_names_no_such_column_is_refused(capfd, place, tmp_path):
    words = ["worlds", "build", place / "pairs.jsonl", "--model", place / "llama", "--out", tmp_path / "run"]
    for options, reason in (
        (["--template", "{question} {reply}"], "there is no key 'reply'"),
        (["--template", "Q: {question}", "--answer-key", "answer"], "the answer 'answer' is no column of the template"),
    ):
        assert cli.main([str(word) for word in (*words, *options)]) == 2
        err = capfd.readouterr().err
        assert reason in err
        assert "Traceback" not in err
    assert not (tmp_path / "run").exists()
