"""Row-wise operations between matrix products, written to pass over memory as few times as they can.

Statistics are computed in float32 whatever the type of the input. Weights are frozen: gradients flow to inputs only.

Shape suffix: D hidden size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from reticent.models import compiled


def rms_norm(x: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
    """Divide each row by its root mean square and multiply by the weight (arXiv 1910.07467, equation 4)."""
    if not torch.is_grad_enabled():
        # A few rows fit the cache, and float32 throughout is faster there than mixing types.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return wide.to(x.dtype) if weight_D is None else wide.mul_(weight_D).to(x.dtype)
    if compiled.is_fusing():
        return compiled.rms_norm(x, weight_D, eps)
    result: Tensor = _RmsNorm.apply(x, weight_D, eps)  # type: ignore[no-untyped-call]
    return result


def gated_silu(gate_and_up: Tensor) -> Tensor:
    """silu(first half) · second half of the last dimension (SwiGLU, arXiv 2002.05202)."""
    if not torch.is_grad_enabled():
        gate, up = gate_and_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
    if compiled.is_fusing():
        return compiled.gated_silu(gate_and_up)
    result: Tensor = _GatedSilu.apply(gate_and_up)  # type: ignore[no-untyped-call]
    return result


def rotate_pairs(x_GNHR: Tensor, cos: Tensor, signed_sin: Tensor, *, interleaved: bool) -> Tensor:
    """Turn pairs of dimensions: x · cos + swapped(x) · signed sin, where swapped exchanges the two of each pair.

    Args:
        x_GNHR: the dimensions to rotate.
        cos: broadcast against x.
        signed_sin: likewise; negative at the first of each pair, and of equal magnitude at both.
        interleaved: pairs are (0, 1), (2, 3), …; otherwise (0, R/2), (1, R/2 + 1), ….
    """
    if not torch.is_grad_enabled():
        return _rotate(x_GNHR, cos, signed_sin, interleaved)
    result: Tensor = _RotatePairs.apply(x_GNHR, cos, signed_sin, interleaved)  # type: ignore[no-untyped-call]
    return result


def _rotate(x_GNHR: Tensor, cos: Tensor, signed_sin: Tensor, interleaved: bool) -> Tensor:
    half = x_GNHR.shape[-1] // 2
    if interleaved:
        swapped = torch.stack((x_GNHR[..., 1::2], x_GNHR[..., ::2]), dim=-1).flatten(-2)
    else:
        swapped = torch.cat((x_GNHR[..., half:], x_GNHR[..., :half]), dim=-1)
    return torch.addcmul(x_GNHR * cos, swapped, signed_sin)


class _RotatePairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_GNHR: Tensor, cos: Tensor, signed_sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, signed_sin)
        ctx.interleaved = interleaved
        return _rotate(x_GNHR, cos, signed_sin, interleaved)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        cos, signed_sin = ctx.saved_tensors
        # The transpose of a rotation is the rotation back.
        return _rotate(gradients[0], cos, -signed_sin, ctx.interleaved), None, None, None


class _RmsNorm(torch.autograd.Function):
    """Both directions convert once and stay in float32: each mixed-type operation would convert for itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
        y = _wide_copy(x)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        y.mul_(inverse)
        if weight_D is not None:
            y.mul_(weight_D)
        ctx.save_for_backward(x, inverse, weight_D)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, inverse, weight_D = ctx.saved_tensors
        grad = _wide_copy(gradients[0])
        if weight_D is not None:
            grad.mul_(weight_D)
        wide = x.to(grad.dtype)
        # d/dx of x / rms(x): (g − x · mean(g · x) / rms²) / rms.
        along = (grad * wide).sum(-1, keepdim=True)
        grad.mul_(inverse).addcmul_(wide, along * inverse.pow(3), value=-1 / x.shape[-1])
        return grad.to(x.dtype), None, None


def _wide_copy(x: Tensor) -> Tensor:
    """A copy in float32, or in float64 of float64, to work on in place."""
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor) -> Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        ctx.save_for_backward(gate_and_up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gate_and_up,) = ctx.saved_tensors
        gate, up = gate_and_up.chunk(2, dim=-1)
        grad = torch.empty_like(gate_and_up)
        grad_gate, grad_up = grad.chunk(2, dim=-1)
        torch.mul(gradients[0], functional.silu(gate), out=grad_up)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * up, gate, grad_input=grad_gate)
        return grad
