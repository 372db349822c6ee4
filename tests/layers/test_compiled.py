"""The formulas given to the compiler against the ready-made operations, in both directions.

They run as plain Python here, in float64. `test_multiworld.py` trains with what the compiler makes of them.
"""

import os
import subprocess
import sys

import pytest
import torch
from torch._inductor import codecache

from reticent.layers.block import Heads, Rotation
from reticent.models import compiled, compiled_code
from reticent.models.architecture import QkvLayout
from reticent.models.pointwise import gated_silu, rms_norm


@pytest.fixture(autouse=True)
def _as_plain_python(monkeypatch):
    monkeypatch.setattr(compiled, "_compile", lambda function: function)


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_equal_in_both_directions(compute, x):
    """`compute` with and without fusing: outputs, and gradients of a random weighting of them."""
    results = []
    for on in (False, True):
        leaf = x.clone().requires_grad_()
        with compiled.fused_training(on):
            outputs = compute(leaf)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        weights = [normal(*output.shape, seed=9) for output in outputs]
        sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True)).backward()
        results.append([*outputs, leaf.grad])
    for plain, fast in zip(*results, strict=True):
        assert plain.dtype == fast.dtype
        torch.testing.assert_close(fast, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("weight", [None, normal(7, seed=1)])
def test_rms_norm(weight):
    assert_equal_in_both_directions(lambda x: rms_norm(x, weight, 1e-2), normal(3, 2, 7))


def test_gated_silu():
    assert_equal_in_both_directions(gated_silu, 4 * normal(3, 2, 10))


def test_gated_silu_far_out_is_the_identity_or_zero():
    x = torch.tensor([[-1e4, 1e4, 3.0, 3.0]], dtype=torch.float32, requires_grad=True)
    with compiled.fused_training(on=True):
        y = gated_silu(x)
    y.sum().backward()
    assert y.tolist() == [[0.0, 3e4]]
    assert x.grad.tolist() == [[0.0, 3.0, 0.0, 1e4]]


@pytest.mark.parametrize("size", [6, 4], ids=["all-dimensions", "some-dimensions"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("layout", "kv_heads"), [(QkvLayout.BLOCKS, 4), (QkvLayout.BLOCKS, 2), (QkvLayout.PER_HEAD, 4)]
)
def test_heads_with_rotation(layout, kv_heads, interleaved, size):
    angle = normal(5, 1, size // 2, seed=1)
    cos, sin = torch.stack((angle.cos(), angle.cos()), -1), torch.stack((-angle.sin(), angle.sin()), -1)
    cos, sin = ((t if interleaved else t.mT).flatten(-2) for t in (cos, sin))
    heads, rotation = Heads(4, kv_heads, 6, layout), Rotation(cos, sin, interleaved)
    x = normal(3, 5, (4 + 2 * kv_heads) * 6)
    assert_equal_in_both_directions(lambda x: heads.split(x, rotation), x)


@pytest.mark.parametrize("layout", list(QkvLayout))
def test_heads_without_rotation(layout):
    heads = Heads(4, 4, 6, layout)
    assert_equal_in_both_directions(lambda x: heads.split(x, None), normal(3, 5, 12 * 6))


def test_positions_of_a_head_lie_side_by_side():
    with compiled.fused_training(on=True):
        for part in Heads(4, 2, 6, QkvLayout.BLOCKS).split(normal(3, 5, 8 * 6), None):
            assert part.transpose(1, 2).is_contiguous()


def test_half_precision_is_rounded_once():
    x = normal(4, 64, dtype=torch.bfloat16).requires_grad_()
    with compiled.fused_training(on=True):
        y = rms_norm(x, None, 1e-5)
    exact = rms_norm(x.detach().double(), None, 1e-5)
    assert y.dtype == torch.bfloat16
    assert ((y.double() - exact).abs() <= 2.0**-8 * exact.abs()).all()


def test_fusing_ends_with_its_context():
    def fail():
        with compiled.fused_training(on=True):
            assert compiled.is_fusing()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not compiled.is_fusing()


def compiled_afresh(code, **variables):
    """Run code in a process of its own, with the cache variable unset; returns what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"} | variables
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


NO_HEADERS = """#!/bin/sh
case "$*" in *--version*) echo g++; exit 0;; esac
echo "x.cpp:3:10: fatal error: Python.h: No such file or directory" >&2
echo "compilation terminated." >&2
exit 1
"""


@pytest.mark.parametrize("missing", ["compiler", "headers", "cache"])
def test_what_keeps_from_compiling_is_said_in_one_line(missing, tmp_path):
    (tmp_path / "g++").write_text(NO_HEADERS)
    (tmp_path / "g++").chmod(0o755)
    variables, word = {
        "compiler": ({"CXX": "/nowhere/g++", "XDG_CACHE_HOME": str(tmp_path)}, "No working C++ compiler"),
        "headers": ({"CXX": str(tmp_path / "g++"), "XDG_CACHE_HOME": str(tmp_path)}, "Python.h: No such file"),
        "cache": ({"XDG_CACHE_HOME": str(tmp_path / "g++")}, f"Not a directory: '{tmp_path / 'g++'}"),
    }[missing]
    code = "from reticent.models import compiled; print(compiled.can_compile(), compiled.why_not_compiled())"
    answer = compiled_afresh(code, **variables)
    assert answer.startswith("False ")
    assert word in answer
    assert answer.count("\n") == 1


def test_a_compiler_that_says_nothing_is_told_by_its_error():
    assert compiled._last_line(RuntimeError("")) == "RuntimeError"
    assert compiled._last_line(OSError(13, "Permission denied", "/cache")) == "[Errno 13] Permission denied: '/cache'"


@pytest.mark.usefixtures("_compiler")
@pytest.mark.parametrize("first", ["", "import torch._dynamo; "], ids=["alone", "after-torch-wrote-its-default"])
def test_compiled_code_is_kept_where_no_other_user_can_write(first, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    code = "from reticent.models.compiled import can_compile; print(can_compile())"
    assert compiled_afresh(first + code).strip() == "True"
    assert list((tmp_path / "reticent" / "compiled").rglob("*.cpp"))
    # Neither code nor precompiled headers.
    assert not [path for path in (tmp_path / "tmp").rglob("*") if path.suffix in (".cpp", ".so", ".h", ".gch")]


def test_a_cache_that_was_chosen_is_kept(monkeypatch):
    monkeypatch.undo()  # the real `_compiled`
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, getattr(codecache, name))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    compiled._compile.__wrapped__(abs)
    folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert folder == f"/elsewhere/{compiled_code.instruction_set()}"
    assert codecache._HEADER_DIR.startswith(f"{folder}/")
    compiled_code.use_own_cache()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == folder, "a process started from here parts it no further"


TRAINED = """
import torch
from reticent.models import compiled
assert compiled.why_not_compiled() is None, compiled.why_not_compiled()
numbers = torch.Generator().manual_seed(0)
x = torch.randn(33, 77, generator=numbers, requires_grad=True)
y = compiled.rms_norm(x, None, 1e-5)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (77,), eps=1e-5), rtol=1e-4, atol=1e-4)
y.square().sum().backward()
assert x.grad.abs().max() < 1, "this norm does not change with the length of a row"
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.usefixtures("_compiler")
def test_code_compiled_for_one_instruction_set_is_never_taken_by_another(tmp_path):
    """In one cache, and back again: what was made for wide vectors wrote half of each row where they are narrow."""
    sets = [{}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"ATEN_CPU_CAPABILITY": "default"}, {}]
    used = [compiled_afresh(TRAINED, XDG_CACHE_HOME=str(tmp_path), **settings).strip() for settings in sets]
    folders = {folder.name.rpartition("-")[0] for folder in (tmp_path / "reticent" / "compiled").iterdir()}
    assert folders == {name.lower().replace(" ", "-") for name in used}


def test_another_processor_or_compiler_has_another_folder(monkeypatch):
    mine = compiled_code.instruction_set()
    assert compiled_code.instruction_set() == mine
    monkeypatch.setattr(compiled_code, "_processor_lines", lambda: ["flags : avx2"])
    other = compiled_code.instruction_set()
    monkeypatch.setattr("torch._inductor.cpp_builder.get_compiler_version_info", lambda compiler: "g++ 1.0")
    assert len({mine, other, compiled_code.instruction_set()}) == 3
