"""Compiled element-wise operations of training: one pass over memory forward and one backward each.

On a processor the element-wise work of a training step takes half as long as its products when every operation reads
and writes whole tensors. Here the same formulas are given to `torch.compile`, which derives their backward passes and
fuses them. That needs a C++ compiler and about a minute the first time, so `fused_training` switches it on for
trainings that are long enough; everything else runs the ready-made operations of `pointwise` and `block`. Compiled code
is kept in the user's own cache folder, where torch's own choice would let any user of the machine leave code to be run,
and in there apart for each processor and instruction set: see `compiled_code`.

All is computed in float32 (float64 of float64) and rounded once, so results differ from theirs by rounding.

Shape suffixes: R rows, D hidden size, B texts, T tokens in a text, O outputs, H heads, K key-value heads, C head
dimension.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from reticent.models.compiled_code import use_own_cache

_fusing: ContextVar[bool] = ContextVar("fusing", default=False)


class ProjectedHeads(NamedTuple):
    """The layout of heads in the output of the query, key and value projections.

    Attributes:
        sizes: the number of query, key and value heads.
        per_head: true if each head's query, key and value are adjacent; false if all queries come first.
        interleaved: see `block.Rotation`.
    """

    sizes: tuple[int, int, int]
    per_head: bool
    interleaved: bool


def is_fusing() -> bool:
    """True if `fused_training` is in force and gradients are wanted."""
    return _fusing.get() and torch.is_grad_enabled()


@contextmanager
def fused_training(on: bool) -> Iterator[None]:
    """Within it blocks whose gradients are wanted are computed by the compiled formulas, if `on`."""
    token = _fusing.set(on)
    try:
        yield
    finally:
        _fusing.reset(token)


def can_compile() -> bool:
    """True if a compiler is installed and works; tries it once, which takes some seconds."""
    return why_not_compiled() is None


@cache
def why_not_compiled() -> str | None:
    """Explain in one line what keeps code from being compiled; None if it works. The trial takes some seconds."""
    numbers = torch.arange(77.0)  # no whole number of vectors of any instruction set
    try:
        doubled: Tensor = _compile(_repeat_halves)(numbers)
    except (RuntimeError, OSError) as error:  # the compiler is missing or broken, or its cache cannot be written
        return _last_line(error)
    return None if torch.equal(doubled, 2 * numbers) else "what the compiler makes computes something else"


def rms_norm(x: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
    """See `pointwise.rms_norm`."""
    result: Tensor = _compile(_rms_norm)(_of_any_length(x.flatten(0, -2), 0), weight_D, eps)
    return result.view_as(x)


def gated_silu(gate_and_up: Tensor) -> Tensor:
    """See `pointwise.gated_silu`."""
    result: Tensor = _compile(_gated_silu)(_of_any_length(gate_and_up.flatten(0, -2), 0))
    return result.view(*gate_and_up.shape[:-1], -1)


def split_heads(
    qkv_BTO: Tensor, cos: Tensor | None, signed_sin: Tensor | None, layout: ProjectedHeads
) -> tuple[Tensor, Tensor, Tensor]:
    """See `block.Heads.split`; the positions of a head lie side by side in memory, as attention's products take them.

    Args:
        qkv_BTO: what the query, key and value projections made of each text.
        cos: [T, 1, R], see `block.Rotation`; None where nothing is rotated.
        signed_sin: likewise.
        layout: where the heads are.

    Returns:
        Query [B, T, H, C], key and value [B, T, K, C].
    """
    qkv_BTO = _of_any_length(qkv_BTO, 0, 1)
    if cos is not None and signed_sin is not None:
        cos, signed_sin = _of_any_length(cos, 0), _of_any_length(signed_sin, 0)
    query, key, value = _compile(_split_heads)(qkv_BTO, cos, signed_sin, layout)
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    use_own_cache()
    return torch.compile(function)


def _last_line(error: Exception) -> str:
    """Take the last line of an error, or the line where a compiler says it."""
    # torch wraps what failed, and adds hints on its own debugging.
    text = str(getattr(error, "inner_exception", error))
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in reversed(lines) if "error: " in line), lines[-1])


def _of_any_length(x: Tensor, *dims: int) -> Tensor:
    """Tell the compiler that these sizes vary: one kernel serves all, and which came first changes no bit."""
    for dim in dims:
        torch._dynamo.maybe_mark_dynamic(x, dim)
    return x


def _repeat_halves(x: Tensor) -> Tensor:
    return x + x


def _in_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _split_last(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The last dimension as several."""
    return x.reshape(*x.shape[:-1], *sizes)


def _rms_norm(x_RD: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
    wide = _in_float32(x_RD)
    wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide if weight_D is None else wide * weight_D).to(x_RD.dtype)


def _gated_silu(gate_and_up_RO: Tensor) -> Tensor:
    # Parted first: widened as a whole, the compiler makes a backward pass half as fast.
    gate, up = gate_and_up_RO.chunk(2, dim=-1)
    return (functional.silu(_in_float32(gate)) * _in_float32(up)).to(gate_and_up_RO.dtype)


def _split_heads(
    qkv_BTO: Tensor, cos: Tensor | None, signed_sin: Tensor | None, layout: ProjectedHeads
) -> tuple[Tensor, Tensor, Tensor]:
    if layout.per_head:
        query, key, value = _split_last(qkv_BTO, (layout.sizes[0], 3, -1)).unbind(-2)
    else:
        query, key, value = torch.split(_split_last(qkv_BTO, (sum(layout.sizes), -1)), list(layout.sizes), dim=-2)
    if cos is not None and signed_sin is not None:
        query = _rotate(query, cos, signed_sin, layout.interleaved)
        key = _rotate(key, cos, signed_sin, layout.interleaved)
    return query.transpose(1, 2).contiguous(), key.transpose(1, 2).contiguous(), value.transpose(1, 2).contiguous()


def _rotate(x_BTHC: Tensor, cos: Tensor, signed_sin: Tensor, interleaved: bool) -> Tensor:
    # Written over the two of each pair: of the form in `pointwise` the compiler makes a slow backward pass.
    size = cos.shape[-1]
    shape, pair = ((-1, 2), -1) if interleaved else ((2, -1), -2)
    x_1, x_2 = _split_last(_in_float32(x_BTHC[..., :size]), shape).unbind(pair)
    cos_1, cos_2 = _split_last(_in_float32(cos), shape).unbind(pair)
    sin_1, sin_2 = _split_last(_in_float32(signed_sin), shape).unbind(pair)
    turned = torch.stack((x_1 * cos_1 + x_2 * sin_1, x_2 * cos_2 + x_1 * sin_2), dim=pair).flatten(-2)
    turned = turned.to(x_BTHC.dtype)
    return turned if size == x_BTHC.shape[-1] else torch.cat((turned, x_BTHC[..., size:]), dim=-1)
