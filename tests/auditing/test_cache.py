"""Signals on disk: found by model and text, never by position, whole after a kill, and without any text in them."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from reticent.auditing.inputs.cache import SignalCache, cached_signals
from reticent.auditing.inputs.signals import ScoreTable
from reticent.auditing.inputs.text_store import TextStore
from reticent.errors import InvalidValueError, StorageError
from reticent.protocols import TokenSignals
from reticent.text.corpus import text_hash

TEXTS = ["alpha", "be", "gamma rays", "d", "epsilon"]


def signals_of(value: float, count: int) -> TokenSignals:
    column = value + np.arange(count, dtype=np.float64) / 7
    return TokenSignals(-column, -2 * column, column**2, 2 * column, np.arange(count))


class CountingScorer:
    """Says of a text something that only this model would; a text of one character has no scored token."""

    is_white_box = False

    def __init__(self, fingerprint: str = "f" * 64, factor: float = 1.0, fail_after: int | None = None) -> None:
        self.fingerprint, self.factor, self.fail_after = fingerprint, factor, fail_after
        self.asked: list[str] = []

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise KeyboardInterrupt
        self.asked += texts
        return [signals_of(self.factor * sum(map(ord, t)), len(t) - 1) if len(t) > 1 else None for t in texts]


def assert_says(table: ScoreTable, scorer: CountingScorer, texts: Sequence[str]) -> None:
    for text in texts:
        (expected,) = CountingScorer(factor=scorer.factor).score([text])
        found = table[text_hash(text)]
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            for name in ("logp", "mu", "sigma2", "entropy", "rank"):
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_a_second_run_asks_the_model_nothing_and_says_the_same_bits(tmp_path: Path) -> None:
    scorer, cache = CountingScorer(), SignalCache(tmp_path)
    assert_says(cached_signals(scorer, TEXTS, cache), scorer, TEXTS)
    assert sorted(scorer.asked) == sorted(TEXTS)
    again = CountingScorer()
    assert_says(cached_signals(again, TEXTS, SignalCache(tmp_path)), scorer, TEXTS)
    assert again.asked == ["d"], "only the text that had no score"


def test_rows_are_matched_by_hash_and_not_by_order(tmp_path: Path) -> None:
    scorer, cache = CountingScorer(), SignalCache(tmp_path)
    cached_signals(scorer, TEXTS, cache)
    table = cached_signals(scorer, ["new text", *TEXTS[::-1]], cache)
    assert table.hashes == tuple(text_hash(text) for text in ["new text", *TEXTS[::-1]])
    assert_says(table, scorer, ["new text", *TEXTS])
    means = table.mean_logp([text_hash("be"), text_hash("d"), text_hash("alpha")])
    assert means[0] == table[text_hash("be")].logp.mean()  # type: ignore[union-attr]
    assert np.isnan(means[1])
    assert means[2] == table[text_hash("alpha")].logp.mean()  # type: ignore[union-attr]


def test_the_cache_of_one_model_is_never_read_for_another(tmp_path: Path) -> None:
    cache = SignalCache(tmp_path)
    cached_signals(CountingScorer(), TEXTS, cache)
    other = CountingScorer("e" * 64, factor=3.0)
    assert_says(cached_signals(other, TEXTS, cache), other, TEXTS)
    # Nor if a file of one model stands in the folder of another.
    for path in (tmp_path / ("f" * 64)).iterdir():
        (tmp_path / ("e" * 64) / "998.npz").write_bytes(path.read_bytes())
    assert_says(cached_signals(CountingScorer("e" * 64, 3.0), TEXTS, cache), other, TEXTS)


def test_a_text_that_stands_twice_is_scored_once(tmp_path: Path) -> None:
    scorer = CountingScorer()
    table = cached_signals(scorer, ["alpha", "be", "alpha"], SignalCache(tmp_path))
    assert sorted(scorer.asked) == ["alpha", "be"]
    assert len(table) == 2


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reticent.auditing.inputs.cache._TEXTS_A_FILE", 2)
    interrupted = CountingScorer(fail_after=2)
    with pytest.raises(KeyboardInterrupt):
        cached_signals(interrupted, TEXTS, SignalCache(tmp_path))
    steps: list[int] = []
    resumed = CountingScorer()
    assert_says(cached_signals(resumed, TEXTS, SignalCache(tmp_path), steps.append), resumed, TEXTS)
    scored_before = {text for text in interrupted.asked if len(text) > 1}
    assert not scored_before & set(resumed.asked)
    assert sum(steps) == len(TEXTS)
    assert steps[0] == len(scored_before)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", None])
def test_a_damaged_file_counts_as_absent(damage: bytes | None, tmp_path: Path) -> None:
    scorer, cache = CountingScorer(), SignalCache(tmp_path)
    cached_signals(scorer, TEXTS, cache)
    (path,) = tmp_path.rglob("*.npz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    again = CountingScorer()
    assert_says(cached_signals(again, TEXTS, cache), again, TEXTS)
    assert sorted(again.asked) == sorted(TEXTS)


def test_no_file_of_the_cache_holds_a_text(tmp_path: Path) -> None:
    cached_signals(CountingScorer(), ["a very private sentence"], SignalCache(tmp_path))
    assert not any(b"private" in path.read_bytes() or "private" in str(path) for path in tmp_path.rglob("*.npz"))


def test_a_cache_that_cannot_be_written_is_an_error_and_not_a_traceback(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(StorageError, match="file"):
        cached_signals(CountingScorer(), TEXTS, SignalCache(blocked))


def test_a_score_table_has_each_text_once() -> None:
    with pytest.raises(InvalidValueError, match="twice"):
        ScoreTable(("a", "a"), (None, None))
    with pytest.raises(InvalidValueError, match="2 hashes"):
        ScoreTable(("a", "b"), (None,))
    with pytest.raises(KeyError):
        ScoreTable(("a",), (None,)).mean_logp(["b"])


KILLED = """
import os, signal, sys
from pathlib import Path
from reticent.auditing.inputs.text_store import TextStore
store = TextStore(Path(sys.argv[1]))
store.add({"one": ["first"], "two": ["second"]})
with Path(sys.argv[1]).open("ab") as file:
    file.write(b'{"text": "three", "val')
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_lines_before_a_kill_stay_and_a_torn_line_goes(tmp_path: Path) -> None:
    path = tmp_path / "values.jsonl"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    store = TextStore(path)
    assert store.read() == {"one": ["first"], "two": ["second"]}
    store.add({"three": [3.5, "line\nbreak"]})
    assert TextStore(path).read() == {"one": ["first"], "two": ["second"], "three": [3.5, "line\nbreak"]}
    assert path.stat().st_mode & 0o077 == 0


def test_a_line_of_something_else_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "values.jsonl"
    path.write_text('[1]\nnonsense\n{"text": "a", "value": 1}\n')
    assert TextStore(path).read() == {"a": 1}
    assert TextStore(tmp_path / "absent.jsonl").read() == {}
