"""The curve of several requests: every point at the context it states, against one request alone in turn."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from results_files import results_with
from rich.console import Console

from benchmarks import concurrency, report
from benchmarks.timing import Paired
from benchmarks.workspace import SMOKE, Workspace
from reticent.engine.engine import Engine, EngineContext

STEPS = 5
POINTS = [(worlds, requests, context) for worlds in (2, 3) for context in (16, 40) for requests in (1, 2, 4)]


@pytest.fixture
def workspace(tiny_llama_folder: Path, tmp_path: Path) -> Workspace:
    sizes = replace(
        SMOKE, curve_worlds=(2, 3), curve_contexts=(16, 40), curve_requests=(1, 2, 4), curve_steps=STEPS, context=40
    )
    return Workspace(str(tiny_llama_folder), torch.float32, torch.device("cpu"), sizes, tmp_path)


def points_of(workspace: Workspace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    concurrency.curve(workspace, lambda points: found.__setitem__(slice(None), points))
    return found


class Steps:
    """Every timed comparison, as the lengths and tokens of its steps: together, then alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pairs: list[tuple[list[list[int]], list[list[int]]]] = []
        self.tokens: list[list[int]] = []
        self._lengths: list[list[int]] = []
        self.prompts: list[tuple[int, ...]] = []
        genuine_extend, genuine_open = Engine.extend, Engine.open

        def extend(engine: Engine, contexts: Sequence[EngineContext], tokens: Sequence[int]) -> None:
            self.tokens.append(list(tokens))
            self._lengths.append([context.length for context in contexts])
            genuine_extend(engine, contexts, tokens)

        def opened(engine: Engine, prompt: Sequence[int]) -> EngineContext:
            self.prompts.append(tuple(prompt))
            return genuine_open(engine, prompt)

        def time_in_turn(numerator: Any, denominator: Any, pairs: int, **_: Any) -> Paired:
            sides = []
            for action in (numerator, denominator):
                self._lengths.clear()
                for _ in range(1 + pairs):
                    action()
                sides.append(self._lengths[1:])
            self.pairs.append((sides[0], sides[1]))
            above, below = [4.0, 5.0, 6.0, 5.0, 8.0], [2.0, 2.0, 2.0, 3.0, 2.0]
            return Paired(tuple(above[:pairs]), tuple(below[:pairs]))

        monkeypatch.setattr(Engine, "extend", extend)
        monkeypatch.setattr(Engine, "open", opened)
        monkeypatch.setattr(concurrency, "time_in_turn", time_in_turn)


def test_every_request_of_a_point_holds_the_stated_context_on_average(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    points = points_of(workspace)
    assert [(p["worlds"], p["requests"], p["context"]) for p in points] == POINTS
    for point, (together, alone) in zip(points, steps.pairs, strict=True):
        assert {len(lengths) for lengths in together} == {point["requests"]}
        assert {len(lengths) for lengths in alone} == {1}
        for side in (together, alone):
            assert {fmean(lengths) for lengths in zip(*side, strict=True)} == {point["context"]}
    # One prompt is read for all requests of a context.
    assert len(steps.prompts) == 4


def test_requests_of_a_point_take_different_tokens(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    points_of(workspace)
    several = [tokens for tokens in steps.tokens if len(tokens) == 4]
    assert [2, 3, 4, 5] in several
    assert [1] in steps.tokens


def test_the_row_of_several_requests_holds_the_stated_context_too(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.sizes = replace(workspace.sizes, pairs=10)
    steps = Steps(monkeypatch)
    concurrency.concurrent_requests(workspace)
    ((alone, together),) = steps.pairs
    for side in (together, alone):
        assert {fmean(lengths) for lengths in zip(*side, strict=True)} == {workspace.sizes.context}


def test_a_point_says_what_it_was_compared_with_and_when(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    Steps(monkeypatch)
    monkeypatch.setattr(concurrency, "timestamp", lambda: "2026-01-02T03:04:05+00:00")
    point = points_of(workspace)[1]
    assert (point["step_ms"], point["alone_ms"], point["times_one_request"]) == (5.0, 2.0, 2.5)
    # The pairs' ratios are 2, 5/2, 3, 5/3 and 4.
    assert point["spread"] == pytest.approx(1.0)
    assert point["tokens_per_second"] == 2 * 1e3 / 5.0
    assert point["measured"] == "2026-01-02T03:04:05+00:00"


def test_a_context_taken_back_computes_what_a_new_one_does(workspace: Workspace) -> None:
    engine = Engine(workspace.decoder, workspace.adapters("attention"))
    prompt = workspace.prompt(30)
    contexts = concurrency.PromptContexts(engine, prompt, 6)
    for tokens in ([5, 6], [7, 8]):
        taken, fresh = contexts.take(2), [engine.open(prompt) for _ in range(2)]
        for both in (taken, fresh):
            assert [context.tokens for context in both] == [prompt, prompt]
            for _ in range(4):
                engine.extend(both, tokens)
        candidates = np.arange(20)
        for one, other in zip(taken, fresh, strict=True):
            assert np.array_equal(engine.public_logits(one), engine.public_logits(other))
            assert np.array_equal(engine.world_logits(one, candidates), engine.world_logits(other, candidates))
        assert not np.array_equal(engine.public_logits(taken[0]), engine.public_logits(taken[1]))


def test_what_does_not_fit_is_skipped_and_never_opened(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    # Keys and values of 3 worlds and the public model: 2 x 40 tokens x 12 rows of blocks x 16 values of 4 bytes.
    monkeypatch.setattr(concurrency, "_MOST_CACHE_BYTES", 3 * 2 * 40 * 12 * 16 * 4)
    steps = Steps(monkeypatch)
    points = points_of(workspace)
    skipped = [(p["worlds"], p["requests"], p["context"]) for p in points if "skipped" in p]
    assert skipped == [(2, 4, 40), (3, 4, 40)]
    assert len(steps.pairs) == len(POINTS) - 2


POINT = {
    "worlds": 8,
    "requests": 2,
    "context": 32,
    "step_ms": 98.4,
    "alone_ms": 80.0,
    "times_one_request": 1.23,
    "spread": 0.125,
    "tokens_per_second": 20.3,
}


def test_the_page_gives_ratio_and_spread_beside_both_times_and_when() -> None:
    times = ("2026-01-02T03:30:00+00:00", "2026-01-02T03:50:00+00:00")
    text = report.markdown(results_with(curve=[POINT | {"measured": time} for time in times]))
    assert "| 8 | 32 | 2 | 98.4 | 80.0 | 1.23 | 0.125 | 20.3 |  |" in text
    assert "measured from 2026-01-02T03:30:00+00:00 to 2026-01-02T03:50:00+00:00." in text
    assert "not in the run" not in text


@pytest.mark.parametrize("time", ["2026-01-02T02:59:59+00:00", "2026-01-02T05:00:01+01:00"])
def test_a_curve_of_another_run_is_called_one(time: str) -> None:
    text = report.markdown(results_with(curve=[POINT | {"measured": time}]))
    assert "not in the run of the rows above, 2026-01-02T03:00:00+00:00 to 2026-01-02T04:00:00+00:00." in text


def test_a_curve_without_its_time_says_so_on_the_page_and_on_the_terminal() -> None:
    results, console = results_with(curve=[POINT]), Console(file=io.StringIO(), width=200, record=True)
    report.print_table(results, console)
    for text in (report.markdown(results), console.export_text()):
        assert "when it was measured is not recorded" in text
