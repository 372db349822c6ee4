"""The rows on training refuse a step that is not PEFT's, and take the fastest of PEFT's ways as their peer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import training
from benchmarks.parity import ParityError
from benchmarks.workspace import SMOKE, Workspace
from reticent.layers.adapted_linear import _AdaptedLinear


def small_workspace(folder: Path, scratch: Path, dtype: torch.dtype = torch.float32) -> Workspace:
    return Workspace(str(folder), dtype, torch.device("cpu"), SMOKE, scratch, smoke=True)


def no_gradient_of_down(ctx: Any, *gradients: Any, genuine: Any = _AdaptedLinear.backward) -> Any:
    found = list(genuine(ctx, *gradients))
    found[6] = torch.zeros_like(found[6])
    return tuple(found)


def no_adapter_in_the_inputs_gradient(ctx: Any, *gradients: Any, genuine: Any = _AdaptedLinear.backward) -> Any:
    found = list(genuine(ctx, *gradients))
    if found[0] is not None:
        found[0] = torch.nn.functional.linear(gradients[0], ctx.saved_tensors[1].t())
    return tuple(found)


def adapters_never_added(ctx: Any, *arguments: Any, genuine: Any = _AdaptedLinear.forward) -> Any:
    x, weight, bias = arguments[:3]
    genuine(ctx, *arguments)
    return torch.nn.functional.linear(x, weight, bias)


@pytest.mark.parametrize("top", [None, 12])
@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("backward", no_gradient_of_down, "gradient of A"),
        ("backward", no_adapter_in_the_inputs_gradient, "gradient of"),
        ("forward", adapters_never_added, "loss"),
    ],
)
def test_training_that_computes_something_else_is_a_wrong_answer(
    name: str,
    wrong: Any,
    message: str,
    top: int | None,
    tiny_llama_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_AdaptedLinear, name, staticmethod(wrong))
    with pytest.raises(ParityError, match=message):
        training.train(small_workspace(tiny_llama_folder, tmp_path), top)


@pytest.mark.parametrize("fastest", range(4))
def test_the_training_peer_is_the_fastest_of_its_ways(
    fastest: int, tiny_llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(2.0 - (way == fastest) for way in range(4))
    monkeypatch.setattr(training, "median_ms", lambda *_: next(times))
    workspace = small_workspace(tiny_llama_folder, tmp_path, torch.bfloat16)
    corpus = training.make_corpus(workspace, 1, 1)
    start = workspace.adapters("attention", num_worlds=1)
    peer, words = training._peer(workspace, start, None, corpus)
    dtype, attention = [(d, a) for d in ("bfloat16", "float32") for a in ("sdpa", "eager")][fastest]
    assert peer.model.config._attn_implementation == attention
    assert {p.dtype for p in peer.parameters.values()} == {getattr(torch, dtype)}
    assert words == f"bfloat16 base with {dtype} adapters and {attention} attention, the fastest of 4 ways"


def test_the_default_training_peer_keeps_its_defaults(tiny_llama_folder: Path, tmp_path: Path) -> None:
    workspace = small_workspace(tiny_llama_folder, tmp_path)
    start = workspace.adapters("attention", num_worlds=1)
    peer, _ = training._peer(workspace, start, torch.float32, training.make_corpus(workspace, 1, 1))
    assert peer.model.config._attn_implementation == "sdpa"
