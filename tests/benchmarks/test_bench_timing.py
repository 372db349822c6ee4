"""Blocks of steps in turn: what counts, and at which context."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import decoding, timing
from benchmarks.workspace import Sizes, Workspace


def test_a_block_is_the_mean_of_all_its_steps_but_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = 0.0, ""

    def step(name: str, seconds: Any) -> None:
        nonlocal now, order
        now, order = now + next(seconds), order + name

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    warm, uncounted = 500.0, 100.0
    above = iter([warm, uncounted, 1.0, 2.0, 6.0, uncounted, 3.0, 3.0, 3.0])
    below = iter([warm, uncounted, 1.0, 1.0, 1.0, uncounted, 2.0, 4.0, 6.0])
    paired = timing.time_in_turn(lambda: step("a", above), lambda: step("b", below), pairs=2, run=3)
    assert order == "ab" + 2 * "aaaabbbb"
    assert paired.numerator_ms == pytest.approx((3000.0, 3000.0))
    assert paired.denominator_ms == pytest.approx((1000.0, 4000.0))


@pytest.mark.parametrize(("pairs", "warmup", "run"), [(10, 2, 4), (5, 1, 2), (55, 1, 1), (15, 0, 1), (48, 0, 1)])
def test_the_steps_that_count_have_the_stated_context_on_average(
    pairs: int, warmup: int, run: int, tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(str(tiny_llama_folder), torch.float32, torch.device("cpu"), Sizes(), tmp_path)
    length = len(decoding.start_of(workspace, pairs, warmup, run))
    counted, counting, genuine = [], False, timing.measure_ms

    def step() -> None:
        nonlocal length
        if counting:
            counted.append(length)
        length += 1

    def elapsed(*arguments: Any) -> float:
        nonlocal counting
        counting = True
        took = genuine(*arguments)
        counting = False
        return took

    monkeypatch.setattr(timing, "measure_ms", elapsed)
    timing.time_in_turn(step, lambda: None, pairs, warmup, run=run)
    assert len(counted) == pairs * run
    assert np.mean(counted) == pytest.approx(Sizes().context, abs=0.5)
