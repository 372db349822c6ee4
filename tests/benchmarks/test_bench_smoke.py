"""The benchmark runs on a tiny model, writes what readers of its results expect, and never times a wrong answer."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from results_files import results_with

from benchmarks import decoding, release, report
from benchmarks import main as harness
from benchmarks.parity import few_worlds, likeliest
from benchmarks.timing import Paired
from reticent import _memory as memory
from reticent.engine.engine import Engine
from reticent.ledger.store import Ledger
from reticent.server import releasing

SMOKE = ["--smoke", "--dtype", "float32"]


class Heap:
    """Stands for the C library, and notes when it is told to keep freed memory."""

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def mallopt(self, *_option: int) -> None:
        self._events.append("heap set")


def run(folder: Path, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    status = harness.main([*SMOKE, "--model", str(folder), "--out", str(out), *options])
    return status, json.loads(out.read_text("utf-8"))


ErrorsOf = Callable[..., list[str]]


@pytest.fixture
def errors_of(tiny_llama_folder: Path, tmp_path: Path) -> ErrorsOf:
    """Runs some rows that must find a wrong answer, and returns what each says of it."""

    def asked(*names: str) -> list[str]:
        status, results = run(tiny_llama_folder, tmp_path / "results.json", "--only", *names)
        assert status == 1
        assert [row["name"] for row in results["rows"]] == list(names)
        assert not any("ratio" in row for row in results["rows"])
        return [row["error"] for row in results["rows"]]

    return asked


def test_every_row_runs_and_says_what_it_found(
    tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    events: list[str] = []
    monkeypatch.setattr(harness._Run, "_say", lambda _run, what: events.append(what))
    monkeypatch.setattr(memory, "ctypes", SimpleNamespace(CDLL=lambda _name: Heap(events)))
    status, results = run(tiny_llama_folder, tmp_path / "results.json")
    assert status == 0
    # A server never tells the heap to keep what is freed, so what is compared with one is measured before.
    before, after = events[: events.index("heap set")], events[events.index("heap set") :]
    assert {"server-overhead", "curve"} <= {word for said in before for word in said.split()}
    assert not [said for said in after if not any(word in said for word in ("heap", "training", "audit"))]
    assert [row["name"] for row in results["rows"]] == [benchmark.name for benchmark in harness.BENCHMARKS]
    for row in results["rows"]:
        assert row["ratio"] > 0
        assert row["spread"] >= 0
        assert row["limit"] is None or row["limit"] > 0
        met = row["ratio"] <= row["target"] if row["direction"] == "<=" else row["ratio"] >= row["target"]
        assert row["holds"] is met
        pairs = len(row["numerator_samples"])
        assert len(row["denominator_samples"]) in (1, pairs)
    assert results["machine"]["threads"] == threads
    assert {"torch", "transformers", "peft"} <= results["machine"]["versions"].keys()
    assert results["setting"]["num_worlds"] == 8
    assert results["setting"]["dtype"] == "float32"
    assert {(p["worlds"], p["requests"], p["context"]) for p in results["curve"]} == {
        (worlds, requests, context) for worlds in (2, 4) for requests in (1, 2) for context in (8, 16)
    }
    assert all(point["step_ms"] > 0 for point in results["curve"])


def other_worlds(self: Engine, context: Any, candidates: Any, genuine: Any = Engine.world_logits) -> Any:
    return np.roll(genuine(self, context, candidates), 1, axis=0)


def no_adapters(self: Engine, context: Any, candidates: Any) -> Any:
    return np.tile(self.public_logits(context)[candidates], (self.num_worlds, 1))


@pytest.mark.parametrize("wrong", [other_worlds, no_adapters])
def test_a_wrong_answer_is_an_error_and_has_no_times(
    wrong: Any, tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "world_logits", wrong)
    names = ["private-token-top12", "private-token-vs-peft-mixed", "prefill-256-top12", "drafts-256", "concurrency"]
    status, results = run(tiny_llama_folder, tmp_path / "results.json", "--only", *names)
    assert status == 1
    assert {row["name"] for row in results["rows"]} == set(names)
    for row in results["rows"]:
        assert "world" in row["error"]
        assert row["holds"] is False
        assert not {"ratio", "numerator", "denominator", "numerator_samples", "spread"} & row.keys()
    assert "wrong answer" in report.markdown(results)


def copies_but_for_a_few(self: Engine, context: Any, candidates: Any, genuine: Any = Engine.world_logits) -> Any:
    logits = genuine(self, context, candidates)
    few = list(few_worlds(self.num_worlds))
    copied = np.tile(logits[0], (self.num_worlds, 1))
    copied[few] = logits[few]
    return copied


def another_token(self: Engine, contexts: Any, tokens: Any, genuine: Any = Engine.extend) -> None:
    genuine(self, contexts, [token ^ 1 for token in tokens])


def all_but_the_likeliest(logits: Any, count: int, genuine: Any = decoding.top_candidates) -> Any:
    return np.setdiff1d(genuine(logits, count + 1), [logits.argmax()])


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "message"),
    [
        (Engine, "world_logits", copies_but_for_a_few, "world 1"),
        (Engine, "extend", another_token, "rounding explains"),
        (decoding, "top_candidates", all_but_the_likeliest, "most likely tokens"),
    ],
)
def test_every_row_on_decoding_asks_for_parity_of_all_worlds_and_candidates(
    owner: Any, name: str, wrong: Any, message: str, errors_of: ErrorsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    errors = errors_of(*(benchmark.name for benchmark in decoding.BENCHMARKS))
    assert all(message in error for error in errors)


def test_among_equal_logits_the_lower_tokens_are_likeliest() -> None:
    assert likeliest(np.array([1.0, 3.0, 2.0, 1.0, 1.0]), 4).tolist() == [0, 1, 2, 3]


def test_noise_of_another_size_is_a_wrong_answer(errors_of: ErrorsOf, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = release.noise_covariance
    monkeypatch.setattr(release, "noise_covariance", lambda calibration: 1.001 * genuine(calibration))
    [error] = errors_of("release-vs-full-space")
    assert "noise covariance" in error


def votes_of_another_token(*arguments: Any, genuine: Any = releasing.cast_step) -> Any:
    return [votes - 1 for votes in genuine(*arguments)]


def commit_to_nowhere(*_arguments: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "message"),
    [
        (releasing, "cast_step", votes_of_another_token, "is not that of the engine alone"),
        (Ledger, "commit", commit_to_nowhere, "the ledger holds"),
    ],
)
def test_a_server_that_says_or_charges_something_else_has_no_times(
    owner: Any, name: str, wrong: Any, message: str, errors_of: ErrorsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    [error] = errors_of("server-overhead")
    assert message in error


def test_ratio_and_spread_by_hand() -> None:
    paired = Paired((10.0, 30.0, 20.0), (10.0, 10.0, 4.0))
    # Medians 20 and 10; the pairs' ratios 1, 3 and 5 have quartiles 2 and 4.
    assert (paired.ratio, paired.spread) == (2.0, 2.0)
    assert paired.scale(numerator=3.0, denominator=0.5).ratio == 12.0
    assert Paired((1.0, 2.0, 6.0), (2.0, 2.0, 2.0), centre="mean").ratio == 1.5
    assert Paired((1.0, 2.0), (4.0,)).ratio == 0.375


def test_the_mechanisms_share_is_also_that_of_the_shorter_token(tiny_llama_folder: Path, tmp_path: Path) -> None:
    _, results = run(tiny_llama_folder, tmp_path / "results.json", "--only", "mechanism-share")
    row = results["rows"][0]
    assert "attention of all blocks" in row["what"]
    assert row["share_top12"] > 0
    assert f"{row['share_top12']:.2%} of a token with the last 12 of 30 blocks" in row["notes"]
    assert "ledger's commit" in row["notes"]


def test_the_table_of_the_documentation_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    row = {"what": "a", "against": "b", "ratio": 0.04, "spread": 0.001, "target": 1 / 12, "direction": "<="}
    results = results_with(rows=[row | {"limit": None, "holds": True, "notes": "once"}])
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nformer table\n{report.END}\nafter\n")
    report.write_docs(results, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "former table" not in text
    assert "| a | b | 0.0400 | 0.00100 | ≤ 1/12 | - | holds |" in text
    report.write_docs(results, page)
    assert page.read_text() == text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        report.write_docs(results, page)
