"""Many-adapter linear layers: one base product for all rows, two batched products for all adapters.

A batch holds `skip` leading rows that see the bare base (the public model) and then one row per adapter. For row j with
adapter (A_j, B_j): y_j = W x_j + bias + scale · B_j A_j x_j (LoRA, arXiv 2106.09685, equation 3).

The same adapters come in two forms: `GroupAdapters` as they are trained, and `PackedAdapters`, laid out for decoding,
where each row brings one token or a few and reading the adapters is all the work.

Shape suffixes: G rows (skip + M), M adapters, N tokens in a row, I inputs, O outputs, R rank, S summed rank of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from reticent.models.architecture import LinearGroup

_MOST_TOKENS_AS_BAGS = 16


@dataclass(frozen=True)
class GroupAdapters:
    """The adapters of one `LinearGroup`, stacked over worlds, for training.

    Attributes:
        down_MSI: the A matrices of the group's adapted modules, concatenate over rank.
        ups: the B matrix of each adapted module, [M, O, R].
        slices: for each adapted module, its range in the group's output.
        scale: alpha / rank.
    """

    down_MSI: Tensor
    ups: tuple[Tensor, ...]
    slices: tuple[tuple[int, int], ...]
    scale: float

    def linear(self, x_GNI: Tensor, group: LinearGroup, skip: int) -> Tensor:
        """See `adapted_linear`; carries gradients to the input and to the adapters."""
        result: Tensor = _AdaptedLinear.apply(  # type: ignore[no-untyped-call]
            x_GNI, group.weight_OI, group.bias_O, self.slices, self.scale, skip, self.down_MSI, *self.ups
        )
        return result

    def packed(self) -> "PackedAdapters":
        """The same adapters laid out for decoding."""
        wide = torch.promote_types(self.down_MSI.dtype, torch.float32)
        ups = tuple((self.scale * up.to(wide)).to(up.dtype).mT.contiguous() for up in self.ups)
        return PackedAdapters(self.down_MSI.mT.contiguous(), ups, self.slices)


@dataclass(frozen=True)
class PackedAdapters:
    """The adapters of one `LinearGroup`, stacked over worlds, for decoding; carries no gradients.

    Both products are sums of weighted rows of a table, which is what `embedding_bag` computes in one pass: for few
    tokens on a processor it reads the adapters once at the speed of memory, where a batched matrix product spends
    most of its time on setting up each small product.

    Attributes:
        down_MIS: the transposed A matrices, concatenate over rank.
        ups: the transposed B matrix of each adapted module times alpha / rank, [M, R, O].
        slices: for each adapted module, its range in the group's output.
    """

    down_MIS: Tensor
    ups: tuple[Tensor, ...]
    slices: tuple[tuple[int, int], ...]

    def rows(self, rows: slice) -> "PackedAdapters":
        """The adapters of some consecutive worlds, sharing memory."""
        return PackedAdapters(self.down_MIS[rows], tuple(up[rows] for up in self.ups), self.slices)

    def linear(self, x_GNI: Tensor, group: LinearGroup, skip: int) -> Tensor:
        """See `adapted_linear`."""
        y_GNO, rows_MNI = _base_and_rows(x_GNI, group.weight_OI, group.bias_O, self.down_MIS.shape[0], skip)
        on_host, num_tokens = x_GNI.device.type == "cpu", x_GNI.shape[1]
        down = _bag_product if on_host and num_tokens == 1 else torch.bmm
        up = _bag_product if on_host and num_tokens <= _MOST_TOKENS_AS_BAGS else torch.bmm
        low_MNS = down(rows_MNI, self.down_MIS)
        start = 0
        for (first, last), up_MRO in zip(self.slices, self.ups, strict=True):
            stop = start + up_MRO.shape[1]
            y_GNO[skip:, :, first:last] += up(low_MNS[..., start:stop], up_MRO)
            start = stop
        return y_GNO


def adapted_linear(
    x_GNI: Tensor, group: LinearGroup, adapters: GroupAdapters | PackedAdapters | None, skip: int
) -> Tensor:
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
    return adapters.linear(x_GNI, group, skip)


def _base_and_rows(
    x_GNI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, num_adapters: int, skip: int
) -> tuple[Tensor, Tensor]:
    """The base's product for all rows, [skip + M, N, O], and the adapters' inputs, [M, N, I]."""
    y_GNO = functional.linear(x_GNI, weight_OI, bias_O)
    if x_GNI.shape[0] == 1 and skip + num_adapters > 1:
        return y_GNO.repeat(skip + num_adapters, 1, 1), x_GNI.expand(num_adapters, -1, -1)
    return y_GNO, x_GNI[skip:]


def _bag_product(weights_MNR: Tensor, table_MRO: Tensor) -> Tensor:
    """`torch.bmm` as sums of weighted table rows; [M, N, O]."""
    num_adapters, num_tokens, num_rows = weights_MNR.shape
    bags = _bag_indices(num_adapters, num_tokens, num_rows)
    weights = weights_MNR.reshape(-1, num_rows)
    product = functional.embedding_bag(bags, table_MRO.flatten(0, 1), per_sample_weights=weights, mode="sum")
    return product.view(num_adapters, num_tokens, -1)


@lru_cache(maxsize=64)
def _bag_indices(num_adapters: int, num_tokens: int, num_rows: int) -> Tensor:
    """For each token of each adapter the rows of that adapter's table, int32[M · N, R]."""
    indices = torch.arange(num_adapters * num_rows, dtype=torch.int32).view(num_adapters, 1, num_rows)
    return indices.expand(-1, num_tokens, -1).reshape(-1, num_rows)


class _AdaptedLinear(torch.autograd.Function):
    """`GroupAdapters.linear` with a backward pass that keeps only the input and the low-rank activations."""

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
        y_GNO, rows_MNI = _base_and_rows(x_GNI, weight_OI, bias_O, down_MSI.shape[0], skip)
        low_MNS = torch.bmm(rows_MNI, down_MSI.mT)
        if scale != 1.0:
            low_MNS.mul_(scale)
        up_MSO = _side_by_side(ups_MOR, slices, y_GNO.shape[2])
        y_GNO[skip:].baddbmm_(low_MNS, up_MSO)
        ctx.save_for_backward(x_GNI, weight_OI, low_MNS, down_MSI, up_MSO)
        ctx.ranks, ctx.slices, ctx.scale, ctx.skip = [up.shape[2] for up in ups_MOR], slices, scale, skip
        return y_GNO

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (grad_GNO,) = gradients
        x_GNI, weight_OI, low_MNS, down_MSI, up_MSO = ctx.saved_tensors
        grad_MNO = grad_GNO[ctx.skip :]
        rows_MNI = x_GNI.expand(down_MSI.shape[0], -1, -1) if x_GNI.shape[0] == 1 else x_GNI[ctx.skip :]
        grad_up_MSO = torch.bmm(low_MNS.mT, grad_MNO)
        grad_low_MNS = torch.bmm(grad_MNO, up_MSO.mT).mul_(ctx.scale)
        grad_down_MSI = torch.bmm(grad_low_MNS.mT, rows_MNI)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = functional.linear(grad_GNO, weight_OI.t())
            grad_x[ctx.skip :].baddbmm_(grad_low_MNS, down_MSI)
            if x_GNI.shape[0] == 1 and grad_x.shape[0] > 1:
                grad_x = grad_x.sum(0, keepdim=True)
        grad_ups = [
            grad_MRO[..., first:last].mT
            for grad_MRO, (first, last) in zip(torch.split(grad_up_MSO, ctx.ranks, dim=1), ctx.slices, strict=True)
        ]
        return (grad_x, None, None, None, None, None, grad_down_MSI, *grad_ups)


def _side_by_side(ups_MOR: Sequence[Tensor], slices: Sequence[tuple[int, int]], num_outputs: int) -> Tensor:
    """The transposed B matrices in the places of one [M, S, O], zero elsewhere: one product in place of several."""
    up_MSO = ups_MOR[0].new_zeros(len(ups_MOR[0]), sum(up.shape[2] for up in ups_MOR), num_outputs)
    start = 0
    for (first, last), up_MOR in zip(slices, ups_MOR, strict=True):
        stop = start + up_MOR.shape[2]
        up_MSO[:, start:stop, first:last] = up_MOR.mT
        start = stop
    return up_MSO
