"""The least time of a step, against operations counted by hand."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_models import build_tiny_model

from benchmarks.limits import StepShape, step_ms
from benchmarks.machine import Machine
from reticent.layers.adapters import StackedAdapters, select_modules
from reticent.models.architecture import Architecture
from reticent.models.families import read_architecture

WORLDS, RANK = 4, 2
COMPUTING = Machine(step_flops=1e3, many_flops=1e3, bytes_read=math.inf, bytes_hashed=1.0)
READING = replace(COMPUTING, step_flops=math.inf, many_flops=math.inf, bytes_read=1e3)


@pytest.fixture(scope="module")
def architecture() -> Architecture:
    """Three blocks; width 48, six heads of 8 with two of keys and of values, 80 wide inside, 258 tokens."""
    return read_architecture(build_tiny_model("llama"))


def adapters(architecture: Architecture, top: int) -> StackedAdapters:
    modules = select_modules(architecture, ["attention"], top)
    down = {module.path: torch.zeros(WORLDS, RANK, module.in_features) for module in modules}
    up = {module.path: torch.zeros(WORLDS, module.out_features, RANK) for module in modules}
    return StackedAdapters(down, up, alpha=4.0)


QUERY, KEYS, OUT, MLP = 48 * 48, 48 * 32, 48 * 48, 3 * 48 * 80
LOW_QUERY, LOW_KEYS, LOW_OUT = RANK * 96, RANK * (64 + 64), RANK * 96


def test_a_prompt_needs_the_whole_last_block_at_its_last_token_alone(architecture: Architecture) -> None:
    shared = 10 * (QUERY + KEYS + OUT + MLP) + 10 * (QUERY + KEYS)
    middle = 5 * 10 * (OUT + MLP) + WORLDS * 10 * (LOW_QUERY + LOW_KEYS + LOW_OUT)
    last = 5 * (10 * KEYS + QUERY + OUT + MLP) + WORLDS * (10 * LOW_KEYS + LOW_QUERY + LOW_OUT)
    # Scores and mixing: 50 pairs of positions in one row and in five, and the last token's ten.
    attention = 2 * 48 * (50 + 5 * 50 + 5 * 10)
    shape = StepShape(tokens=10, context=10, candidates=0)
    assert step_ms(architecture, adapters(architecture, 2), shape, COMPUTING) == pytest.approx(
        2 * (shared + middle + last + attention)
    )


def test_a_decode_step_shares_what_comes_before_the_first_adapter(architecture: Architecture) -> None:
    base = 3 * (QUERY + KEYS) + 3 * (OUT + MLP) + 2 * 4 * (OUT + MLP) + 4 * (QUERY + KEYS)
    low = 2 * WORLDS * (LOW_QUERY + LOW_KEYS + LOW_OUT)
    attention = 2 * 48 * 20 * (1 + 5 + 5)
    head = 48 * 258 + WORLDS * 48 * 7
    shape = StepShape(context=20, candidates=7)
    assert step_ms(architecture, adapters(architecture, 2), shape, COMPUTING) == pytest.approx(
        2 * (base + low + attention + head)
    )
    assert step_ms(architecture, adapters(architecture, 2), replace(shape, requests=3), COMPUTING) == pytest.approx(
        3 * 2 * (base + low + attention + head)
    )


def test_every_weight_and_key_is_read_once(architecture: Architecture) -> None:
    weights = 3 * (QUERY + KEYS + OUT + MLP) + 48 * 258
    low = 2 * WORLDS * (LOW_QUERY + LOW_KEYS + LOW_OUT)
    keys_and_values = 20 * 32 * (1 + 5 + 5)
    shape = StepShape(context=20, candidates=7)
    assert step_ms(architecture, adapters(architecture, 2), shape, READING) == pytest.approx(
        4 * (weights + low + keys_and_values)
    )


def test_a_parallel_block_reads_one_row_on_both_sides() -> None:
    architecture = read_architecture(build_tiny_model("gptj", layers=1))
    side, inside = 48 * 48, 48 * 4 * 48
    base = 3 * side + inside + 5 * (side + inside)
    low = WORLDS * 4 * RANK * 96
    attention = 2 * 48 * 20 * 5
    head = 48 * 258 + WORLDS * 48 * 7
    shape = StepShape(context=20, candidates=7)
    assert step_ms(architecture, adapters(architecture, 1), shape, COMPUTING) == pytest.approx(
        2 * (base + low + attention + head)
    )
