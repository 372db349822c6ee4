"""`reticent audit URL` against this project's own server: it measures what that allows, and loses nothing."""

import json

import numpy as np
import pytest

from reticent.auditing.canaries.planting import CanaryKind, draw_canaries
from reticent.cli import main as cli


def invented(count, seed):
    generator = np.random.default_rng(seed)
    words = ["".join(chr(97 + c) for c in generator.integers(0, 26, 4)) for _ in range(4 * count)]
    return [" ".join(words[start : start + 4]) for start in range(0, len(words), 4)]


@pytest.fixture
def audit(tmp_path, monkeypatch, capfd):
    """A function that audits a server with a key, and returns exit code, report and errors."""
    for name, seed in (("members", 1), ("nonmembers", 2)):
        rows = "".join(json.dumps({"text": text}) + "\n" for text in invented(30, seed))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    canaries = draw_canaries(CanaryKind.DIGITS, 1, (1,), seed=0)
    (tmp_path / "canaries.jsonl").write_text("".join(canary.model_dump_json() + "\n" for canary in canaries))

    def run(live, key, *options):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        sets = ["--members", tmp_path / "members.jsonl", "--nonmembers", tmp_path / "nonmembers.jsonl"]
        arguments = ["audit", live.url, *sets, "--out", tmp_path / "out", "--bootstrap", "100", "--samples", "2"]
        code = cli.main([str(argument) for argument in [*arguments, *options]])
        report = tmp_path / "out" / "report.json"
        return code, json.loads(report.read_text()) if report.exists() else None, capfd.readouterr().err

    run.canaries = tmp_path / "canaries.jsonl"
    return run


def test_what_the_server_allows_is_measured_and_the_rest_is_left_out_by_name(live, audit, tiny_llama_folder):
    server = live()
    options = ["--canaries", audit.canaries, "--limit", 6, "--reference", tiny_llama_folder, "--places", 3]
    code, report, err = audit(server, server.key(), *options)
    assert code == 0, err
    assert [attack["name"] for attack in report["attacks"]] == ["samia", "petal", "petal-reference"]
    assert report["target"]["shows"] == "text alone"
    reasons = {skipped["name"]: skipped["reason"] for skipped in report["skipped"]}
    assert "shows no log-probabilities" in reasons["likelihood"]
    assert report["attacks"][0]["num_members"] == report["attacks"][0]["num_nonmembers"] == 6
    assert sum(group["num_canaries"] for group in report["canaries"]) == 2
    assert all(group["extracted_greedy"] is not None for group in report["canaries"])
    spent = server.service.curator.account.spent_units
    again = audit(server, server.key("another"), *options)
    assert again[0] == 0
    assert server.service.curator.account.spent_units == spent, "what was answered is not paid for twice"


def test_a_spent_ledger_ends_with_a_partial_result_and_an_exit_code(live, audit):
    # An answer has one token at least and five at most: four requests of two answers fit, sixty do not.
    server = live(total_budget=2.0**-32 * 45)
    code, report, err = audit(server, server.key())
    assert code == 3, err
    assert "Traceback" not in err
    assert "budget or the key's quota is spent" in report["incomplete"][0]
    (samia,) = (row for row in (*report["attacks"], *report["skipped"]) if row["name"] == "samia")
    unanswered = [sum(entry["is_member"] == side for entry in samia["missing"]) for side in (True, False)]
    assert max(unanswered) < 30
    assert abs(unanswered[0] - unanswered[1]) <= 4, "members and non-members are asked in turn"


def test_a_wrong_key_is_refused_in_one_line(live, audit):
    server = live()
    server.key()
    code, report, err = audit(server, "sk-wrong")
    assert (code, report) == (2, None)
    assert "refuses access" in err.splitlines()[-1]
