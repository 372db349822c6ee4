"""Next-token cross-entropy against a large vocabulary, in chunks of rows.

The logits of a chunk exist only while its loss and gradient are computed, so memory does not grow with the number of
tokens times the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_ROWS_AT_ONCE = 512


def chunked_cross_entropy(
    hidden_ND: Tensor, head_VD: Tensor, head_bias_V: Tensor | None, targets_N: Tensor, weights_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted sum of −log softmax(head · hidden)[target] over rows.

    Args:
        hidden_ND: final hidden states, [N, D].
        head_VD: frozen output projection, [V, D].
        head_bias_V: its bias, [V], or None.
        targets_N: int64[N].
        weights_N: float32[N].

    Returns:
        The scalar loss, which carries the gradient with respect to `hidden_ND` alone, and the unweighted loss of each
        row in nats, float32[N], which carries none.
    """
    loss, losses_N = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_ND, head_VD, head_bias_V, targets_N, weights_N
    )
    return loss, losses_N


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, head_VD: Tensor, head_bias_V: Tensor | None, targets_N: Tensor, weights_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses_N = torch.empty_like(weights_N)
        gradient_ND = torch.empty_like(hidden_ND)
        for start in range(0, hidden_ND.shape[0], _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            error_NV = functional.linear(hidden_ND[rows], head_VD, head_bias_V).softmax(-1)
            target_N1 = targets_N[rows, None]
            hit_N1 = error_NV.gather(1, target_N1).float()
            # softmax − onehot, with 1 − p summed from the other entries: exact also where p rounds to 1.
            error_NV.scatter_(1, target_N1, 0.0)
            miss_N1 = error_NV.sum(1, keepdim=True, dtype=torch.float32)
            error_NV.scatter_(1, target_N1, -miss_N1.to(error_NV.dtype))
            sure_N1 = torch.log1p(-miss_N1.clamp(max=0.5))
            unsure_N1 = hit_N1.clamp(min=torch.finfo(torch.float32).tiny).log()
            losses_N[rows] = -torch.where(miss_N1 < 0.5, sure_N1, unsure_N1)[:, 0]
            gradient_ND[rows] = (error_NV @ head_VD) * weights_N[rows, None].to(error_NV.dtype)
        ctx.save_for_backward(gradient_ND)
        ctx.mark_non_differentiable(losses_N)
        return (losses_N * weights_N).sum(), losses_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient_ND,) = ctx.saved_tensors
        return gradient_ND * gradients[0].to(gradient_ND.dtype), None, None, None, None
