"""`reticent audit` from texts to report, on every kind of target, and every way to ask for it wrongly."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow.parquet as pq
import pytest
from tiny_models import save_tiny_model

from reticent.cli import main as cli
from reticent.text.corpus import text_hash


def invented(count, seed):
    generator = np.random.default_rng(seed)
    return [
        " ".join("".join(chr(97 + c) for c in generator.integers(0, 26, 4)) for _ in range(6)) for _ in range(count)
    ]


TEXTS = invented(60, seed=0)


def write_corpus(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base, a corpus, and a model adapted to half of it."""
    folder = tmp_path_factory.mktemp("audit")
    save_tiny_model(folder / "base", "llama", layers=2)
    save_tiny_model(folder / "other", "llama", layers=2, seed=1)
    write_corpus(folder / "corpus.jsonl", TEXTS)
    options = ["--technique", "lora", "--rank", "8", "--target-modules", "all-linear", "--epochs", "25"]
    options += ["--learning-rate", "0.02", "--heldout-count", "30", "--max-tokens", "48"]
    arguments = ["adapt", folder / "corpus.jsonl", "--model", folder / "base", "--out", folder / "adapted", *options]
    assert cli.main([str(argument) for argument in arguments]) == 0
    return folder


def outcome(capfd, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    return code, out, err


def assert_refused(capfd, arguments, *words):
    code, out, err = outcome(capfd, *arguments)
    assert code == 2, err
    assert out == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("error: ")
    for word in words:
        assert str(word) in last
    return last


def split_by(folder):
    members = set((folder / "members.txt").read_text().split())
    return [t for t in TEXTS if text_hash(t) in members], [t for t in TEXTS if text_hash(t) not in members]


def test_an_adapted_model_is_audited_by_its_own_lists(capfd, place, tmp_path):
    out = tmp_path / "out"
    arguments = ["audit", place / "adapted", "--members", place / "corpus.jsonl", "--out", out, "--bootstrap", 200]
    code, shown, err = outcome(capfd, *arguments, "--attacks", "likelihood,reference,gradient-norm", "--json")
    assert code == 0, err
    result = json.loads(shown)
    assert {attack["name"]: attack["auc"]["value"] > 0.6 for attack in result["attacks"]} == {
        "likelihood": True, "reference": True, "gradient-norm": True,
    }  # fmt: skip
    assert result["target"]["technique"] == "lora"
    assert {path.name for path in out.iterdir()} >= {
        "report.html",
        "report.json",
        "report.md",
        "scores.parquet",
        "cache",
    }
    table = pq.read_table(out / "scores.parquet").to_pydict()
    members, nonmembers = split_by(place / "adapted")
    labels = dict(zip(table["text_hash"], table["is_member"], strict=True))
    assert labels == dict.fromkeys(map(text_hash, members), True) | dict.fromkeys(map(text_hash, nonmembers), False)
    for text in TEXTS:
        assert text not in shown + err
        assert all(text.encode() not in path.read_bytes() for path in out.rglob("*") if path.is_file())


def test_a_table_is_printed_and_a_second_run_gives_the_same_figures(capfd, place, tmp_path):
    arguments = ["audit", place / "adapted", "--members", place / "corpus.jsonl", "--out", tmp_path / "out"]
    arguments += ["--attacks", "likelihood,min-k", "--bootstrap", 200]
    code, first, err = outcome(capfd, *arguments)
    assert code == 0, err
    assert "likelihood" in first
    assert "report:" in err
    assert outcome(capfd, *arguments)[1] == first
    assert outcome(capfd, *arguments, "--no-resume")[1] == first


def test_results_are_on_disk_before_they_are_rendered(place, tmp_path, monkeypatch):
    import reticent.reports.render

    def fail(*arguments):
        raise RuntimeError("rendering failed")

    monkeypatch.setattr(reticent.reports.render, "write_audit_report", fail)
    arguments = ["audit", place / "adapted", "--members", place / "corpus.jsonl", "--out", tmp_path / "out"]
    with pytest.raises(RuntimeError, match="rendering failed"):
        cli.main([str(a) for a in [*arguments, "--attacks", "likelihood"]])
    assert json.loads((tmp_path / "out" / "report.json").read_text())["attacks"][0]["name"] == "likelihood"
    assert (tmp_path / "out" / "scores.parquet").is_file()


def test_texts_are_shown_only_where_asked_for(capfd, place, tmp_path):
    arguments = ["audit", place / "adapted", "--members", place / "corpus.jsonl", "--out", tmp_path / "out"]
    code, out, err = outcome(capfd, *arguments, "--attacks", "likelihood", "--show-texts")
    assert code == 0, err
    assert set(pq.read_table(tmp_path / "out" / "scores.parquet")["text"].to_pylist()) == set(TEXTS)
    assert not any(text in out + err for text in TEXTS)


def test_a_bare_model_is_audited_against_a_named_reference(capfd, place, tmp_path):
    members, nonmembers = write_corpus(tmp_path / "a.jsonl", TEXTS[:20]), write_corpus(tmp_path / "b.jsonl", TEXTS[20:])
    arguments = ["audit", place / "base", "--members", members, "--nonmembers", nonmembers, "--out", tmp_path / "out"]
    options = ["--reference", place / "other", "--attacks", "reference,wbc", "--max-tokens", 32, "--json"]
    code, shown, err = outcome(capfd, *arguments, *options)
    assert code == 0, err
    result = json.loads(shown)
    assert [attack["name"] for attack in result["attacks"]] == ["reference", "wbc"]
    assert result["scoring"]["template"]["max_tokens"] == 32
    assert result["reference"]["base"] == str(place / "other")


def test_a_world_of_a_run_has_the_other_worlds_as_shadows(capfd, place, tmp_path):
    build = ["worlds", "build", place / "corpus.jsonl", "--model", place / "base", "--out", tmp_path / "run"]
    build += [
        "--worlds",
        6,
        "--max-tokens",
        48,
        "--epochs",
        10,
        "--learning-rate",
        0.01,
        "--target-modules",
        "all-linear",
    ]
    assert outcome(capfd, *build)[0] == 0
    audit = ["audit", tmp_path / "run", "--members", place / "corpus.jsonl", "--out", tmp_path / "out", "--world", 1]
    code, shown, err = outcome(capfd, *audit, "--attacks", "likelihood,lira,rmia,gradient-norm", "--json")
    assert code == 0, err
    result = json.loads(shown)
    assert result["scoring"]["shadow models"] == "5, the other worlds of the run"
    assert "tuned on 5 shadow models" in result["scoring"]["rmia"]
    counts = {attack["name"]: attack["num_members"] + attack["num_nonmembers"] for attack in result["attacks"]}
    assert counts == dict.fromkeys(("likelihood", "rmia", "lira", "gradient-norm"), 60)
    aucs = {attack["name"]: attack["auc"]["value"] for attack in result["attacks"]}
    assert aucs["lira"] > 0.7
    assert aucs["rmia"] > aucs["likelihood"]
    with np.load(tmp_path / "run" / "membership.npz") as arrays:
        in_world = arrays["members"][arrays["unit_of_record"], 1]
        hashes = [bytes(row).hex() for row in arrays["record_hashes"]]
    table = pq.read_table(tmp_path / "out" / "scores.parquet").to_pydict()
    assert dict(zip(table["text_hash"], table["is_member"], strict=True)) == dict(zip(hashes, in_world, strict=True))
    assert_refused(capfd, [*audit[:-1], 6], "world must lie between 0 and 5")
    assert_refused(capfd, audit[:-2], "--world")


class WordServer(BaseHTTPRequestHandler):
    """An OpenAI-compatible server with one token a word; `mode` says how it misbehaves."""

    mode = "good"
    requests = itertools.count()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.mode == "busy":
            self.send_response(429)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.mode == "dying" and next(type(self).requests) > 12:
            self.send_response(503)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        words = body["prompt"].split(" ")
        logprobs = {"token_logprobs": [None, *(-len(set(word)) / 4 for word in words[1:])], "top_logprobs": None}
        choice = {"text": body["prompt"], "logprobs": None if self.mode == "mute" else logprobs}
        self.send_object({"choices": [choice], "usage": {"prompt_tokens": len(words)}})

    def do_GET(self):
        self.send_object({"data": [{"id": "m"}]})

    def send_object(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), WordServer) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}/v1"
        running.shutdown()


@pytest.fixture
def sets(tmp_path):
    return ["--members", write_corpus(tmp_path / "a.jsonl", TEXTS[:20]), "--nonmembers", write_corpus(tmp_path / "b.jsonl", TEXTS[20:])]  # fmt: skip  # noqa: E501


def test_a_server_is_audited_from_its_prompt_log_probabilities(capfd, server, sets, tmp_path):
    code, shown, err = outcome(capfd, "audit", server, *sets, "--model", "m", "--out", tmp_path / "out", "--json")
    assert code == 0, err
    result = json.loads(shown)
    assert {attack["name"] for attack in result["attacks"]} == {"likelihood", "zlib", "min-k"}
    assert "gradient-norm" in {skipped["name"] for skipped in result["skipped"]}


@pytest.mark.parametrize(("mode", "words"), [("mute", "shows no log-probabilities"), ("busy", "status 429")])
def test_a_server_that_cannot_be_audited_is_refused(capfd, server, sets, tmp_path, monkeypatch, mode, words):
    monkeypatch.setattr(WordServer, "mode", mode)
    arguments = ["audit", server, *sets, "--model", "m", "--out", tmp_path / "out", "--attacks", "likelihood"]
    assert_refused(capfd, arguments, words)


def test_a_server_without_log_probabilities_is_no_reference(capfd, server, place, sets, tmp_path, monkeypatch):
    monkeypatch.setattr(WordServer, "mode", "mute")
    arguments = ["audit", place / "base", *sets, "--out", tmp_path / "out", "--reference", server]
    assert_refused(capfd, arguments, "shows no log-probabilities of prompts, which a reference must")


def test_a_server_that_dies_leaves_a_partial_result_of_both_sets_and_an_exit_code(
    capfd, server, sets, tmp_path, monkeypatch
):
    monkeypatch.setattr(WordServer, "mode", "dying")
    monkeypatch.setattr(WordServer, "requests", itertools.count())
    code, _, err = outcome(capfd, "audit", server, *sets, "--model", "m", "--out", tmp_path / "out")
    assert code == 3
    assert "Traceback" not in err
    assert "partial result: the server scored 12 of 60 texts" in err.splitlines()[-1]
    result = json.loads((tmp_path / "out" / "report.json").read_text())
    assert result["incomplete"]
    assert {result["attacks"][0]["num_members"], result["attacks"][0]["num_nonmembers"]} <= {5, 6, 7}


def test_white_box_attacks_on_a_server_are_refused(capfd, server, sets, tmp_path):
    arguments = ["audit", server, *sets, "--model", "m", "--out", tmp_path / "out", "--attacks", "gradient-norm"]
    assert_refused(capfd, arguments, "white-box", "a server shows no weights")


def test_bad_input_is_refused_in_one_line(capfd, place, sets, tmp_path):
    good = ["audit", place / "base", "--out", tmp_path / "out"]
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    (tmp_path / "empty.jsonl").write_bytes(b"")
    assert_refused(capfd, [*good, *sets, "--attacks", "likelihod"], "no attack likelihod", "min-k++", "recall")
    assert_refused(capfd, [*good, "--members", tmp_path / "latin.jsonl", *sets[2:]], "UTF-8")
    assert_refused(capfd, [*good, "--members", tmp_path / "empty.jsonl", *sets[2:]], "empty")
    shared = [*good, "--members", sets[1], "--nonmembers", sets[1]]
    last = assert_refused(capfd, shared, "20 text(s) are in both sets", "SHA-256")
    assert not any(text in last for text in TEXTS)
    assert_refused(capfd, [*good, "--members", sets[1]], "does not say what it was trained on", "--nonmembers")
    assert_refused(capfd, [*good, *sets, "--world", 1], "none")
    assert_refused(capfd, [*good, *sets, "--bootstrap", 0], "bootstrap")
    assert_refused(capfd, [*good, *sets, "--confidence", "nan"], "confidence")
    assert_refused(capfd, [*good, *sets, "--template", "no place"], "template")
    assert_refused(capfd, [*good, *sets, "--canaries", tmp_path / "none.jsonl"], "no canaries can be read")
    assert_refused(capfd, ["audit", tmp_path / "nowhere", *sets, "--out", tmp_path / "out"], "nowhere")
    assert not (tmp_path / "out").exists()


def test_labels_that_contradict_the_targets_lists_are_refused(capfd, place, tmp_path):
    members, nonmembers = split_by(place / "adapted")
    wrong = write_corpus(tmp_path / "wrong.jsonl", [*members, nonmembers[0]])
    right = write_corpus(tmp_path / "right.jsonl", nonmembers[1:])
    arguments = ["audit", place / "adapted", "--members", wrong, "--nonmembers", right, "--out", tmp_path / "out"]
    assert_refused(capfd, arguments, "1 of 31 members were not trained on", text_hash(nonmembers[0])[:12])


def test_an_adapter_for_another_base_is_refused(capfd, place, tmp_path):
    arguments = ["audit", place / "adapted", "--members", place / "corpus.jsonl", "--out", tmp_path / "out"]
    assert_refused(capfd, [*arguments, "--model", place / "other"], "another base", "--model")


def test_an_audit_that_is_killed_goes_on_and_ends_as_if_it_had_not_been(capfd, place, tmp_path):
    texts = invented(300, seed=9)
    sets = ["--members", write_corpus(tmp_path / "a.jsonl", texts[:150])]
    sets += ["--nonmembers", write_corpus(tmp_path / "b.jsonl", texts[150:])]
    arguments = ["audit", place / "base", *sets, "--attacks", "likelihood,min-k++", "--bootstrap", 100, "--out"]
    command = [sys.executable, "-m", "reticent.cli.main", *map(str, arguments), str(tmp_path / "killed")]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "killed").rglob("*.npz")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list((tmp_path / "killed").rglob("*.npz")), "the audit never came as far as its first scores"
    for name in ("killed", "whole"):
        code, _, err = outcome(capfd, *arguments, tmp_path / name)
        assert code == 0, err
    killed, whole = (pq.read_table(tmp_path / name / "scores.parquet").to_pydict() for name in ("killed", "whole"))
    assert killed == whole
