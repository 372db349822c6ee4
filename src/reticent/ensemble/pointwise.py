"""Row-wise operations between matrix products, written to pass over memory as few times as they can.

Statistics are computed in float32 whatever the type of the input. Weights are frozen: gradients flow to inputs only.

Shape suffix: D hidden size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
    """Divide each row by its root mean square and multiply by the weight (arXiv 1910.07467, equation 4)."""
    if not torch.is_grad_enabled():
        # A few rows fit the cache, and float32 throughout is faster there than mixing types.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return wide.to(x.dtype) if weight_D is None else wide.mul_(weight_D).to(x.dtype)
    result: Tensor = _RmsNorm.apply(x, weight_D, eps)  # type: ignore[no-untyped-call]
    return result


def gated_silu(gate_and_up: Tensor) -> Tensor:
    """silu(first half) · second half of the last dimension (SwiGLU, arXiv 2002.05202)."""
    if not torch.is_grad_enabled():
        gate, up = gate_and_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
    result: Tensor = _GatedSilu.apply(gate_and_up)  # type: ignore[no-untyped-call]
    return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        y = torch.mul(x, inverse, out=torch.empty_like(x))
        if weight_D is not None:
            y.mul_(weight_D)
        ctx.save_for_backward(x, inverse, weight_D)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, inverse, weight_D = ctx.saved_tensors
        grad = gradients[0] if weight_D is None else gradients[0] * weight_D
        # d/dx of x / rms(x): (g − x · mean(g · x) / rms²) / rms.
        along = (grad * x).sum(-1, keepdim=True, dtype=inverse.dtype)
        grad_x = torch.mul(grad, inverse, out=torch.empty_like(x))
        grad_x -= x * (along * inverse.pow(3) / x.shape[-1]).to(x.dtype)
        return grad_x, None, None


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
