"""The row on the server compares like with like, and says what it can tell apart."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import serving
from benchmarks.timing import Paired
from benchmarks.workspace import SMOKE, Workspace
from reticent.engine.engine import Engine


@pytest.fixture
def workspace(tiny_llama_folder: Path, tmp_path: Path) -> Workspace:
    sizes = replace(SMOKE, answer_tokens=4)
    return Workspace(str(tiny_llama_folder), torch.float32, torch.device("cpu"), sizes, tmp_path)


def test_every_timed_answer_is_computed_on_a_thread_of_its_own(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[threading.Thread] = set()
    threads: list[tuple[set[threading.Thread], set[threading.Thread]]] = []
    genuine = Engine.prefill_in_chunks

    def prefill_in_chunks(engine: Engine, prompt: Any) -> Any:
        used.add(threading.current_thread())
        return genuine(engine, prompt)

    def time_in_turn(numerator: Any, denominator: Any, pairs: int) -> Paired:
        sides = []
        for action in (numerator, denominator):
            used.clear()
            for _ in range(pairs):
                action()
            sides.append(set(used))
        threads.append((sides[0], sides[1]))
        return Paired((40.0, 48.0), (40.0, 40.0)) if len(threads) == 1 else Paired((33.0, 33.0), (30.0, 22.0))

    monkeypatch.setattr(Engine, "prefill_in_chunks", prefill_in_chunks)
    monkeypatch.setattr(serving, "time_in_turn", time_in_turn)
    measured = serving.server_overhead(workspace)
    (server, alone), (other, itself) = threads
    assert [thread.name for thread in server] == ["reticent-engine"]
    assert len(alone) == len(other) == 1
    assert threading.main_thread() not in alone | other
    assert alone == itself != other
    # 44 to 40 ms of four tokens; the control's ratio is 33 to 26, its pairs' 1.1 and 1.5.
    assert measured.times.numerator_ms == (10.0, 12.0)
    assert measured.times.ratio == pytest.approx(1.1)
    assert measured.extra["control_ratio"] == pytest.approx(33 / 26)
    assert measured.extra["control_spread"] == pytest.approx(0.2)
    assert "against itself on another: 1.269, spread 0.200" in measured.notes
