"""`reticent worlds check`: every count against a corpus made by hand."""

import json

import pytest
from tiny_models import byte_tokenizer, save_tiny_model

from reticent.cli import main as cli

LONG = "the patient came on Monday with a cough and left on Friday without one"
ROWS = [
    {"who": "a", "text": "first note"},
    {"who": "a", "text": "second note!"},
    {"who": "b", "text": LONG},
    {"who": "c", "text": LONG},
    {"who": "d", "text": " "},
    {"who": "e", "text": "x" * 300},
]


@pytest.fixture
def corpus(tmp_path):
    save_tiny_model(tmp_path / "base", "llama", layers=1)
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def check(capsys, corpus, *options):
    words = ["worlds", "check", corpus / "notes.jsonl", "--model", corpus / "base", *options]
    code = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert LONG not in out + err
    return code, out, err


def test_counts_are_those_of_the_rows(capsys, corpus):
    code, out, _ = check(capsys, corpus, "--unit-key", "who", "--max-tokens", 100, "--worlds", "4,8", "--json")
    assert code == 0
    found = json.loads(out)
    lengths = sorted(len(row["text"]) + 1 for row in ROWS if row["text"].strip())
    expected = {"records": 5, "units": 3, "largest_unit": 2, "skipped_blank": 1, "repeats": 1, "merged_units": 1}
    assert {name: found[name] for name in expected} == expected
    assert found["tokens"] == [lengths[0], lengths[2], lengths[-1], lengths[-1]]
    assert (found["truncated"], found["unscored"], found["max_tokens"]) == (1, 0, 100)
    scored = sum(min(length, 100) - 1 for length in lengths)
    assert found["scored_tokens"] == scored
    assert sum(entry["count"] for entry in found["lengths"]) == 5
    for length in lengths:
        assert sum(entry["low"] <= length <= entry["high"] for entry in found["lengths"]) == 1
    assert [plan["training_tokens"] for plan in found["plans"]] == [3 * scored, 5 * scored]
    assert found["plans"][0]["records_per_world"] == 2.5


def test_facts_are_printed_with_a_histogram_and_nothing_is_written(capsys, corpus):
    before = sorted(corpus.rglob("*"))
    code, out, _ = check(capsys, corpus)
    assert code == 0
    assert "m = 128" in out
    assert "█" in out
    assert sorted(corpus.rglob("*")) == before


@pytest.mark.parametrize(("options", "words"), [(["--worlds", "3"], "even"), (["--worlds", "x"], "whole numbers")])
def test_numbers_that_cannot_be_are_refused(capsys, corpus, options, words):
    code, _, err = check(capsys, corpus, *options)
    assert code == 2
    assert words in err
    assert byte_tokenizer().eos_token not in err
