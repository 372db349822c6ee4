"""From a corpus to private text by commands alone, and every way to ask for it wrongly."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli.built_runs import build_small_run
from tiny_models import CONTEXT, VOCABULARY

from reticent.cli import main as cli
from reticent.pac.bounds import attack_success
from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED

RECORDS = ["the quick brown fox", "a stitch in time", "more haste less speed", "still waters run deep"]


@pytest.fixture(autouse=True)
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "notes.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in RECORDS))
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory, corpus, tiny_llama_folder):
    return build_small_run(corpus, tiny_llama_folder, tmp_path_factory.mktemp("runs") / "run", max_tokens=16)


@pytest.fixture
def run(built, tmp_path):
    return shutil.copytree(built, tmp_path / "run")


def outcome(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def result_of(capsys, *arguments):
    code, out, err = outcome(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def assert_refused(capsys, arguments, *words):
    code, out, err = outcome(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in err
    for word in words:
        assert str(word) in err


def test_generated_tokens_are_charged_and_go_on_from_the_same_state(capsys, run):
    first = result_of(capsys, "generate", run, "--prompt", "the", "--max-tokens", 5, "--step-budget", "2^-10")
    assert set(first) >= {
        "text", "tokens", "dissenting_steps", "nats_charged", "half_success", "world_success",
        "milliseconds_per_token",
    }  # fmt: skip
    assert 1 <= first["tokens"] <= 5
    assert first["nats_charged"] == first["tokens"] * 2.0**-10
    assert first["half_success"] == pytest.approx(attack_success(first["nats_charged"], 0.5))
    assert first["world_success"] == pytest.approx(attack_success(first["nats_charged"], 0.25))

    second = result_of(
        capsys, "generate", run, "--prompt", "the", "--max-tokens", 3, "--step-budget", "2^-12", "--decoder", "greedy"
    )
    spent = first["nats_charged"] + second["nats_charged"]
    assert second["nats_charged_in_all"] == spent
    shown = result_of(capsys, "state", "show", run)
    assert shown["nats_charged"] == spent
    assert shown["tokens"] == first["tokens"] + second["tokens"]


def test_the_release_law_is_chosen_for_each_call_and_changes_no_charge(capsys, run):
    spent = 0.0
    for mechanism in ("mixture", "gaussian", "mixture"):
        result = result_of(
            capsys,
            "generate",
            run,
            "--prompt",
            "the",
            "--release",
            mechanism,
            "--max-tokens",
            4,
            "--step-budget",
            "2^-6",
        )
        assert result["release"] == mechanism
        assert result["nats_charged"] == result["tokens"] * 2.0**-6
        spent += result["nats_charged"]
        assert result["nats_charged_in_all"] == spent
    assert result_of(capsys, "generate", run, "--prompt", "the", "--max-tokens", 1)["release"] == "gaussian"
    code, _, err = outcome(capsys, "generate", run, "--release", "laplace")
    assert code == 2
    assert "mixture" in err


def test_text_comes_on_standard_output_and_facts_after_it(capsys, run):
    code, out, err = outcome(capsys, "generate", run, "--prompt", "the", "--max-tokens", 4, "--seed", 3)
    assert code == 0
    assert HALF_QUESTION in out
    assert NOT_BOUNDED in out
    assert "secret world is drawn" in err


def test_a_seed_fixes_the_coins_alone(capsys, run):
    key = [
        result_of(capsys, "generate", run, "--prompt", "the", "--max-tokens", 1, "--seed", seed)["coin_key"]
        for seed in (3, 3, 4)
    ]
    assert key[0] == key[1] != key[2]


def test_the_cap_stops_generation_and_stays(capsys, run):
    code, out, err = outcome(
        capsys,
        "generate",
        run,
        "--prompt",
        "the",
        "--max-tokens",
        9,
        "--step-budget",
        "2^-4",
        "--total-budget",
        "0.13",
        "--json",
    )
    assert code == 2
    assert json.loads(out)["tokens"] == 2
    assert json.loads(out)["stopped_by"] == "budget"
    assert "budget" in err
    assert result_of(capsys, "state", "show", run)["nats_charged"] == 0.125
    assert_refused(capsys, ["generate", run, "--prompt", "the", "--total-budget", "1"], "total-budget", "0.13")


def test_reset_needs_to_be_meant(capsys, run):
    result_of(capsys, "generate", run, "--prompt", "the", "--max-tokens", 1)
    assert_refused(capsys, ["state", "reset", run], "--void-guarantee")
    assert outcome(capsys, "state", "reset", run, "--void-guarantee", "--yes")[0] == 0
    assert_refused(capsys, ["state", "show", run])


def test_show_verify_export_import(capsys, run, tmp_path, tiny_llama_folder):
    assert result_of(capsys, "worlds", "show", run)["num_worlds"] == 4
    assert "worlds.safetensors" in result_of(capsys, "worlds", "verify", run)["verified"]
    folders = [tmp_path / f"world{j}" for j in range(4)]
    for world, folder in enumerate(folders):
        assert outcome(capsys, "worlds", "export", run, "--world", world, "--out", folder)[0] == 0
    imported = tmp_path / "imported"
    options = ["--model", tiny_llama_folder, "--out", imported]
    assert result_of(capsys, "worlds", "import", *folders, *options)["num_worlds"] == 4
    assert result_of(capsys, "generate", imported, "--prompt", "a", "--max-tokens", 2)["tokens"] >= 1
    assert_refused(capsys, ["worlds", "export", run, "--out", tmp_path / "x"], "--world", "--full")


def test_worlds_that_nobody_says_the_members_of_are_shown_as_such_and_release_nothing(
    capsys, run, tmp_path, tiny_llama_folder
):
    folders = [tmp_path / f"world{j}" for j in range(4)]
    for world, folder in enumerate(folders):
        outcome(capsys, "worlds", "export", run, "--world", world, "--out", folder)
        (folder / "reticent_world.json").unlink()
    settings = json.loads((folders[2] / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "another/base"
    (folders[2] / "adapter_config.json").write_text(json.dumps(settings))
    imported = tmp_path / "imported"
    code, out, err = outcome(capsys, "worlds", "import", *folders, "--model", tiny_llama_folder, "--out", imported)
    assert code == 0
    assert "no prior known" in out
    assert "another/base" in err
    assert str(tiny_llama_folder) in "".join(err.split("\n"))
    assert result_of(capsys, "worlds", "show", imported)["assignment"] == "unknown"
    for command in ("generate", "serve"):
        assert_refused(capsys, [command, imported], "no prior is known", "--membership")
    assert not (imported / "ledger.sqlite").exists()
    test = tmp_path / "test.jsonl"
    test.write_text('{"text": "a text that stands elsewhere"}\n{"text": "and another of them"}\n')
    options = ["--budgets", "2^-8", "--candidates", "50", "--sessions", "4", "--queries", "2", "--query-tokens", "4"]
    options += ["--study", "composition", "--test", test, "--out", tmp_path / "evaluation"]
    found = result_of(capsys, "evaluate", imported, *options)["composition"][0]
    assert (found["membership"], found["membership_prior"], found["membership_bound"]) == (None, None, None)
    assert found["world_bound"] > found["world_prior"] == 0.25
    assert "no prior known" in (tmp_path / "evaluation" / "report.md").read_text()


def test_worlds_cannot_be_built_of_an_unknown_kind(capsys, tmp_path, corpus, tiny_llama_folder):
    options = ["--model", tiny_llama_folder, "--out", tmp_path / "out", "--worlds", "2", "--assignment", "unknown"]
    assert_refused(capsys, ["worlds", "build", corpus, *options], "overlapping or disjoint")
    assert not (tmp_path / "out").exists()


def corpus_cases():
    return [
        ("missing.jsonl", None, "missing.jsonl"),
        ("empty.jsonl", b"", "empty.jsonl"),
        ("bytes.jsonl", b'{"text": "fine"}\n{"text": "\xff"}\n', "bytes.jsonl:2"),
        ("broken.jsonl", b'{"text": "fine"}\n{"text": \n', "broken.jsonl:2"),
        ("keyless.jsonl", b'{"body": "a text"}\n', "body"),
        ("single.jsonl", b'{"text": "only one"}\n', "2"),
    ]


@pytest.mark.parametrize(("name", "content", "word"), corpus_cases())
def test_a_bad_corpus_is_named_and_nothing_is_written(capsys, tmp_path, tiny_llama_folder, name, content, word):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    out = tmp_path / "out"
    assert_refused(capsys, ["worlds", "build", path, "--model", tiny_llama_folder, "--out", out, "--worlds", 4], word)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--worlds", "5"], ["even", "5"]),
        (["--worlds", "0"], ["num_worlds"]),
        (["--rank", "0"], ["rank"]),
        (["--epochs", "0"], ["epochs"]),
        (["--batch-size", "0"], ["batch_size", "0"]),
        (["--batch-size", "-2"], ["batch_size", "-2"]),
        (["--max-tokens", "0"], ["max_tokens", "0"]),
        (["--worlds-at-once", "0"], ["worlds_at_once", "0"]),
        (["--alpha", "inf"], ["alpha", "inf"]),
        (["--seed", "99999999999999999"], ["seed", "4294967295"]),
        (["--learning-rate", "nan"], ["learning_rate"]),
        (["--adapt-layers", "top:9"], ["top:9", "3"]),
        (["--adapt-layers", "some"], ["top:K", "some"]),
        (["--target-modules", "nope"], ["nope", "q_proj"]),
        (["--model", "no/such-model"], ["no/such-model"]),
        (["--unit-key", "owner"], ["owner"]),
        (["--limit", "0"], ["limit"]),
        (["--device", "abacus"], ["abacus"]),
    ],
)
def test_bad_build_options_are_named_and_nothing_is_written(
    capsys, tmp_path, corpus, tiny_llama_folder, options, words
):
    out = tmp_path / "out"
    arguments = ["worlds", "build", corpus, "--model", tiny_llama_folder, "--out", out, "--worlds", "4", *options]
    assert_refused(capsys, arguments, *words)
    assert not out.exists()


def test_a_build_that_diverges_is_an_error_that_says_where(capsys, tmp_path, corpus, tiny_llama_folder):
    arguments = ["worlds", "build", corpus, "--model", tiny_llama_folder, "--out", tmp_path / "out", "--worlds", "2"]
    assert_refused(capsys, [*arguments, "--max-tokens", "16", "--alpha", "1e38"], "world", "step", "--learning-rate")


def test_an_output_that_exists_is_left_alone(capsys, run, corpus, tiny_llama_folder):
    before = (run / "manifest.json").read_bytes()
    assert_refused(capsys, ["worlds", "build", corpus, "--model", tiny_llama_folder, "--out", run], "--out")
    assert (run / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step-budget", "0"], ["0"]),
        (["--step-budget", "-1"], ["-1"]),
        (["--step-budget", "nan"], ["nan"]),
        (["--step-budget", "inf"], ["inf"]),
        (["--candidates", str(VOCABULARY + 1)], [VOCABULARY]),
        (["--temperature", "0"], ["temperature"]),
        (["--max-tokens", "0"], ["max_tokens"]),
        (["--prompt", "x" * CONTEXT], [CONTEXT, "shorten"]),
        (["--decoder", "beam"], ["beam"]),
    ],
)
def test_bad_generate_options_are_named_and_nothing_is_charged(capsys, run, options, words):
    assert_refused(capsys, ["generate", run, "--prompt", "the", *options], *words)
    code, out, _ = outcome(capsys, "state", "show", run, "--json")
    assert code == 2 or json.loads(out)["tokens"] == 0


def test_an_empty_prompt_says_why_there_is_nothing_to_start_from(capsys, run):
    # The tiny tokenizer knows a beginning-of-text token and puts none before a text, as SmolLM2's.
    assert_refused(capsys, ["generate", run], "prompt is empty", "beginning-of-text", "first words")
    # Nothing was drawn for it.
    assert outcome(capsys, "state", "show", run)[0] == 2


def test_runs_that_cannot_be_opened_say_why(capsys, run, tmp_path):
    assert_refused(capsys, ["generate", tmp_path / "nowhere"], "nowhere")
    manifest = json.loads((run / "manifest.json").read_text())
    newer, other = manifest | {"schema_version": 99}, json.loads(json.dumps(manifest))
    other["base"]["content_hash"] = "f" * 64
    (run / "manifest.json").write_text(json.dumps(newer))
    assert_refused(capsys, ["generate", run], "99", "upgrade")
    (run / "manifest.json").write_text(json.dumps(other))
    assert_refused(capsys, ["generate", run], "f" * 64, manifest["base"]["content_hash"])


def test_no_command_writes_a_text_of_the_corpus(run, tmp_path, corpus, tiny_llama_folder):
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    command = [sys.executable, "-m", "reticent.cli.main", "worlds", "build", corpus, "--model", tiny_llama_folder]
    command += ["--out", tmp_path / "built", "--worlds", "2", "--max-tokens", "8"]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    written = result.stdout + result.stderr + (Path(tmp_path) / "built" / "manifest.json").read_text()
    assert "4 of 4 records are longer than 8 tokens" in result.stderr
    assert not any(word in written for text in RECORDS for word in text.split() if len(word) > 4)
