"""Next-token cross-entropy against a large vocabulary, in chunks of rows.

The logits of a chunk exist only while its loss and gradient are computed, so memory does not grow with the number of
tokens times the vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from reticent.models.vocabulary_rows import rows_at_once


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
        chunk = rows_at_once(len(hidden_ND), head_VD)
        losses_N = torch.empty_like(weights_N)
        gradient_ND = torch.empty_like(hidden_ND)
        buffer_NV = hidden_ND.new_empty(chunk, head_VD.shape[0])
        parts = (torch.split(tensor, chunk) for tensor in (hidden_ND, targets_N, losses_N, gradient_ND))
        for hidden, targets, losses, gradient in zip(*parts, strict=True):
            error, row = buffer_NV[: len(hidden)], torch.arange(len(hidden), device=targets_N.device)
            torch.mm(hidden, head_VD.t(), out=error)
            if head_bias_V is not None:
                error += head_bias_V
            # In place: a chunk's logits are the largest tensor of a step.
            torch.softmax(error, -1, out=error)
            hit_N = error[row, targets].float()
            # softmax − onehot, with 1 − p summed from the other entries: exact also where p rounds to 1.
            error[row, targets] = 0.0
            miss_N = error.sum(1)
            error[row, targets] = -miss_N
            losses.copy_(_negative_log(hit_N, miss_N.float()))
            torch.mm(error, head_VD, out=gradient)
        gradient_ND *= weights_N[:, None].to(gradient_ND.dtype)
        ctx.save_for_backward(gradient_ND)
        ctx.mark_non_differentiable(losses_N)
        return (losses_N * weights_N).sum(), losses_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient_ND,) = ctx.saved_tensors
        return gradient_ND * gradients[0].to(gradient_ND.dtype), None, None, None, None


def _negative_log(hit_N: Tensor, miss_N: Tensor) -> Tensor:
    """−log p in nats from p and 1 − p, by whichever is the more accurate; at most about 87, where p underflows."""
    sure_N = torch.log1p(-miss_N.clamp(max=0.5))
    unsure_N = hit_N.clamp(min=torch.finfo(torch.float32).tiny).log()
    return -torch.where(miss_N < 0.5, sure_N, unsure_N)
