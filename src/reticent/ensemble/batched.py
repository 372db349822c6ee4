"""Many-adapter linear layers: one base product for all rows, two batched products for all adapters.

A batch holds `skip` leading rows that see the bare base (the public model) and then one row per adapter. For row j with
adapter (A_j, B_j): y_j = W x_j + bias + scale · B_j A_j x_j (LoRA, arXiv 2106.09685, equation 3).

Shape suffixes: G rows (skip + M), M adapters, N tokens in a row, I inputs, O outputs, R rank, S summed rank of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from reticent.ensemble.architecture import LinearGroup


@dataclass(frozen=True)
class GroupAdapters:
    """The adapters of one `LinearGroup`, stacked over worlds.

    Attributes:
        down_MSI: the A matrices of the group's adapted modules, concatenated over rank.
        ups: the B matrix of each adapted module, [M, O, R].
        slices: for each adapted module, its range in the group's output.
        scale: alpha / rank.
    """

    down_MSI: Tensor
    ups: tuple[Tensor, ...]
    slices: tuple[tuple[int, int], ...]
    scale: float

    @property
    def num_adapters(self) -> int:
        """M."""
        return self.down_MSI.shape[0]

    def rows(self, rows: slice) -> "GroupAdapters":
        """The adapters of some consecutive worlds, sharing memory."""
        return GroupAdapters(self.down_MSI[rows], tuple(up[rows] for up in self.ups), self.slices, self.scale)


def adapted_linear(x_GNI: Tensor, group: LinearGroup, adapters: GroupAdapters | None, skip: int) -> Tensor:
    """Apply a linear group to every row, each with its own adapter.

    Args:
        x_GNI: [G, N, I]; a single row stands for G equal rows and is multiplied by the base once.
        group: the frozen base modules.
        adapters: one adapter a row after the first `skip` rows, or None for the bare base.
        skip: leading rows without an adapter.

    Returns:
        [skip + M, N, O], or [G, N, O] where there is no adapter.
    """
    if adapters is None:
        return functional.linear(x_GNI, group.weight_OI, group.bias_O)
    result: Tensor = _AdaptedLinear.apply(  # type: ignore[no-untyped-call]
        x_GNI, group.weight_OI, group.bias_O, adapters.slices, adapters.scale, skip, adapters.down_MSI, *adapters.ups
    )
    return result


class _AdaptedLinear(torch.autograd.Function):
    """`adapted_linear` with a backward pass that keeps only the input and the low-rank activations."""

    @staticmethod
    def forward(
        ctx: Any,
        x_GNI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        slices: Sequence[tuple[int, int]],
        scale: float,
        skip: int,
        down_MSI: Tensor,
        *ups_MOR: Tensor,
    ) -> Tensor:
        num_adapters = down_MSI.shape[0]
        y_GNO = functional.linear(x_GNI, weight_OI, bias_O)
        if x_GNI.shape[0] == 1 and skip + num_adapters > 1:
            y_GNO = y_GNO.repeat(skip + num_adapters, 1, 1)
            rows_MNI = x_GNI.expand(num_adapters, -1, -1)
        else:
            rows_MNI = x_GNI[skip:]
        low_MNS = torch.bmm(rows_MNI, down_MSI.mT)
        if scale != 1.0:
            low_MNS.mul_(scale)
        start = 0
        for (first, last), up_MOR in zip(slices, ups_MOR, strict=True):
            stop = start + up_MOR.shape[2]
            y_GNO[skip:, :, first:last] += torch.bmm(low_MNS[..., start:stop], up_MOR.mT)
            start = stop
        ctx.save_for_backward(x_GNI, weight_OI, low_MNS, down_MSI, *ups_MOR)
        ctx.slices, ctx.scale, ctx.skip = slices, scale, skip
        return y_GNO

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (grad_GNO,) = gradients
        x_GNI, weight_OI, low_MNS, down_MSI, *ups_MOR = ctx.saved_tensors
        grad_MNO = grad_GNO[ctx.skip :]
        rows_MNI = x_GNI.expand(down_MSI.shape[0], -1, -1) if x_GNI.shape[0] == 1 else x_GNI[ctx.skip :]
        grad_low_MNS = torch.empty_like(low_MNS)
        grad_ups, start = [], 0
        for (first, last), up_MOR in zip(ctx.slices, ups_MOR, strict=True):
            stop = start + up_MOR.shape[2]
            part_MNO = grad_MNO[..., first:last]
            torch.bmm(part_MNO, up_MOR, out=grad_low_MNS[..., start:stop])
            grad_ups.append(torch.bmm(part_MNO.mT, low_MNS[..., start:stop]))
            start = stop
        grad_low_MNS.mul_(ctx.scale)
        grad_down_MSI = torch.bmm(grad_low_MNS.mT, rows_MNI)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = functional.linear(grad_GNO, weight_OI.t())
            grad_x[ctx.skip :] += torch.bmm(grad_low_MNS, down_MSI)
            if x_GNI.shape[0] == 1 and grad_x.shape[0] > 1:
                grad_x = grad_x.sum(0, keepdim=True)
        return (grad_x, None, None, None, None, None, grad_down_MSI, *grad_ups)
