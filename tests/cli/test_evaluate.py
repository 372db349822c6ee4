"""`reticent evaluate` from a built run to its report, and every way to ask for it wrongly."""

import json
import shutil

import numpy as np
import pytest
from cli.built_runs import build_small_run

from reticent.cli import main as cli
from reticent.evaluation.run_evaluation import Evaluation
from reticent.pac.bounds import attack_success
from reticent.pac.wording import NOT_BOUNDED

RECORDS = [
    "the quick brown fox jumps over it",
    "a stitch in time saves nine",
    "more haste less speed in all that you do",
    "still waters run deep in every well",
]
TEST = ["a rolling stone gathers no moss at all", "the early bird catches the worm", "too many cooks spoil the broth"]
SMALL = ["--budgets", "2^-32,2^-6", "--candidates", "50", "--draws", "6", "--sessions", "40", "--queries", "4",
         "--query-tokens", "8"]  # fmt: skip


def write_texts(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("corpus") / "notes.jsonl", RECORDS)


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus, tiny_llama_folder):
    return build_small_run(corpus, tiny_llama_folder, tmp_path_factory.mktemp("runs") / "run", max_tokens=40)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("test") / "test.jsonl", TEST)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, run, held_out):
    out = tmp_path_factory.mktemp("evaluations") / "one"
    assert cli.main(["evaluate", str(run), "--test", str(held_out), "--out", str(out), *SMALL]) == 0
    return out


def outcome(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def assert_refused(capsys, arguments, *words):
    code, out, err = outcome(capsys, *arguments)
    assert code == 2
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in err
    for word in words:
        assert word in last


def test_report_and_result_say_the_same(evaluated):
    result = Evaluation.model_validate_json((evaluated / "evaluation.json").read_bytes())
    assert [found.decoder.value for found in result.utility] == ["greedy", "gumbel"]
    for found in result.utility:
        assert 0.0 <= found.row("gaussian", 2.0**-32).accuracy.value <= 1.0
        assert found.row("noiseless").accuracy.num_samples == len(TEST)
        assert found.row("full-data").accuracy.num_samples == len(TEST)
    assert [row.num_candidates for row in result.stability.rows] == [10, 20, 50, 100, 200]
    masses = [row.mass.value for row in result.stability.rows]
    assert masses == sorted(masses)
    for row in result.composition:
        assert row.num_tokens == 32
        assert row.membership_bound == attack_success(32 * row.step_budget, 0.5)
    for row in result.leakage:
        if row.step_budget == 2.0**-32 and row.mechanism.value == "gaussian":
            spread = 5 * row.share_of_charge.standard_error
            assert row.share_of_charge.value == pytest.approx(row.dissent.value, abs=spread)
    assert result.run["num_worlds"] == 4
    assert any("--corpus" in warning for warning in result.warnings)
    page = (evaluated / "report.html").read_text()
    assert "<script" not in page
    assert NOT_BOUNDED in page
    for table in ("utility-gumbel", "stability", "composition", "leakage", "operations-greedy", "fidelity"):
        assert (evaluated / "tables" / f"{table}.csv").is_file()
    for text in (*TEST, *RECORDS):
        assert text not in page
        assert text not in (evaluated / "evaluation.json").read_text()


def test_votes_are_reused_for_other_budgets_and_give_the_same_numbers(capsys, run, held_out, evaluated, tmp_path):
    again = shutil.copytree(evaluated, tmp_path / "again")
    written = (again / "votes" / "votes.npz").stat().st_mtime_ns
    options = ["--study", "utility", "--json", "--decoder", "gumbel"]
    code, out, err = outcome(capsys, "evaluate", run, "--test", held_out, "--out", again, *SMALL, *options)
    assert code == 0, err
    result = json.loads(out)
    first = json.loads((evaluated / "evaluation.json").read_text())
    assert result["utility"] == first["utility"][1:]
    assert result["stability"] is None
    assert result["composition"] == []
    assert (again / "votes" / "votes.npz").stat().st_mtime_ns == written
    assert_refused(
        capsys, ["evaluate", run, "--test", held_out, "--out", again, *SMALL, "--seed", 1], "settings", "--out"
    )


def test_two_evaluations_are_bit_equal(capsys, run, held_out, evaluated, tmp_path):
    assert outcome(capsys, "evaluate", run, "--test", held_out, "--out", tmp_path / "two", *SMALL)[0] == 0
    first, second = (json.loads((folder / "evaluation.json").read_text()) for folder in (evaluated, tmp_path / "two"))
    for key in ("utility", "stability", "fidelity", "composition", "leakage", "warnings"):
        assert first[key] == second[key], key


def test_texts_of_the_corpus_are_refused_and_near_duplicates_left_out(capsys, run, corpus, tmp_path):
    mixed = write_texts(tmp_path / "mixed.jsonl", [*TEST, RECORDS[2]])
    assert_refused(capsys, ["evaluate", run, "--test", mixed, "--out", tmp_path / "a", *SMALL], "1 of 4 test texts")
    alike_once_cut = "more haste less speed in all that you do at any time"
    near = write_texts(tmp_path / "near.jsonl", [*TEST, RECORDS[2] + "!", alike_once_cut])
    options = ["--corpus", corpus, "--study", "stability", "--json"]
    code, out, err = outcome(capsys, "evaluate", run, "--test", near, "--out", tmp_path / "b", *SMALL, *options)
    assert code == 0, err
    result = json.loads(out)
    assert result["data"]["near_duplicates_left_out"] == 2
    assert result["data"]["test_texts"] == len(TEST)
    other = write_texts(tmp_path / "other.jsonl", ["something else altogether"])
    assert_refused(
        capsys, ["evaluate", run, "--test", near, "--out", tmp_path / "c", "--corpus", other, *SMALL], "0 of the 4"
    )
    only = write_texts(tmp_path / "only.jsonl", [RECORDS[0] + "?"])
    assert_refused(
        capsys, ["evaluate", run, "--test", only, "--out", tmp_path / "d", "--corpus", corpus, *SMALL], "every test"
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--budgets", "2^-32,x"], "budget in nats"),
        (["--budgets", "2^11"], "step_budget"),
        (["--study", "utilty"], "utility"),
        (["--candidates", "0"], "candidates"),
        (["--candidates", "259"], "num_candidates"),
        (["--draws", "0"], "num_sessions"),
        (["--temperature", "nan"], "temperature"),
        (["--sessions", "0"], "sessions"),
        (["--max-tokens", "1"], "max-tokens"),
        (["--test", "nowhere.jsonl"], "nowhere"),
    ],
)
def test_wrong_options_are_refused(capsys, run, held_out, tmp_path, options, word):
    assert_refused(capsys, ["evaluate", run, "--test", held_out, "--out", tmp_path / "out", *options], word)


def test_a_folder_of_something_else_is_left_alone(capsys, run, held_out, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert_refused(capsys, ["evaluate", run, "--test", held_out, "--out", tmp_path, *SMALL], "no evaluation")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_run_without_the_full_adapter_or_membership_is_evaluated_with_less(capsys, run, held_out, tmp_path):
    bare = shutil.copytree(run, tmp_path / "bare")
    manifest = json.loads((bare / "manifest.json").read_text())
    for name in ("full.safetensors", "membership.npz"):
        del manifest["files"][name]
        (bare / name).unlink()
    (bare / "manifest.json").write_text(json.dumps(manifest))
    options = ["--study", "utility,composition", "--json"]
    code, out, err = outcome(capsys, "evaluate", bare, "--test", held_out, "--out", tmp_path / "out", *SMALL, *options)
    assert code == 0, err
    result = json.loads(out)
    assert all(row["membership"] is None for row in result["composition"])
    assert "full-data" not in {row["method"] for row in result["utility"][0]["rows"]}
    assert any("nobody can say" in warning for warning in result["warnings"])
    assert np.isfinite(result["utility"][0]["gain"]["value"])
