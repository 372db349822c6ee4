"""One transformer block for many rows, as pure functions: what comes before attention, and what after.

Shape suffixes: G rows, N tokens in a row, B texts of all rows, T tokens in a text, D hidden size, H heads, C head
dimension, O output features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reticent.layers.adapted_linear import GroupAdapters, PackedAdapters, adapted_linear
from reticent.models import compiled
from reticent.models.architecture import Layer, Norm, QkvLayout
from reticent.models.pointwise import gated_silu, rotate_pairs

LayerAdapters = Sequence[GroupAdapters | PackedAdapters | None]
"""The adapters of one block, in the order of `Layer.groups`."""

NO_ADAPTERS: LayerAdapters = (None, None, None, None)


@dataclass(frozen=True)
class Heads:
    """The split of attention's projections into heads; the same in every block."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    layout: QkvLayout

    def split(
        self,
        qkv_BTO: Tensor,
        rotation: "Rotation | None",
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, O] -> query [B, T, H, C], key and value [B, T, H_kv, C].

        Query and key are normalised where there is a norm, then rotated.
        """
        has_norms = query_norm is not None or key_norm is not None
        if compiled.is_fusing() and not has_norms:
            return self._split_fused(qkv_BTO, rotation)
        shape = qkv_BTO.shape[:-1]
        sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        if self.layout is QkvLayout.BLOCKS and rotation is not None and not has_norms:
            # Query and key stand side by side and turn together.
            heads = qkv_BTO.view(*shape, sum(sizes), self.head_dim)
            to_rotate, value = torch.split(heads, [sum(sizes[:2]), sizes[2]], dim=-2)
            query, key = torch.split(rotation(to_rotate), sizes[:2], dim=-2)
            return query, key, value
        if self.layout is QkvLayout.PER_HEAD:
            query, key, value = qkv_BTO.view(*shape, self.num_heads, 3, self.head_dim).unbind(-2)
        else:
            query, key, value = torch.split(qkv_BTO.view(*shape, sum(sizes), self.head_dim), sizes, dim=-2)
        query = query if query_norm is None else query_norm(query)
        key = key if key_norm is None else key_norm(key)
        return (query, key, value) if rotation is None else (rotation(query), rotation(key), value)

    def _split_fused(self, qkv_BTO: Tensor, rotation: "Rotation | None") -> tuple[Tensor, Tensor, Tensor]:
        return compiled.split_heads(
            qkv_BTO,
            None if rotation is None else rotation.cos,
            None if rotation is None else rotation.signed_sin,
            compiled.ProjectedHeads(
                sizes=(self.num_heads, self.num_kv_heads, self.num_kv_heads),
                per_head=self.layout is QkvLayout.PER_HEAD,
                interleaved=rotation is not None and rotation.interleaved,
            ),
        )


@dataclass(frozen=True)
class Rotation:
    """Rotary position embedding at the positions of the T tokens (arXiv 2104.09864).

    A pair (a, b) of dimensions becomes (a cos − b sin, b cos + a sin); see `pointwise.rotate_pairs`.

    Attributes:
        cos: [T, 1, R]; signed_sin: [T, 1, R], negative at the first of each pair.
        interleaved: pairs are (0, 1), (2, 3), …; otherwise (0, R/2), (1, R/2 + 1), ….
    """

    cos: Tensor
    signed_sin: Tensor
    interleaved: bool

    def __call__(self, x_BTHC: Tensor) -> Tensor:
        """Rotate the first R of C dimensions."""
        size = self.cos.shape[-1]
        rotated, passed = x_BTHC[..., :size], x_BTHC[..., size:]
        rotated = rotate_pairs(rotated, self.cos, self.signed_sin, interleaved=self.interleaved)
        return torch.cat((rotated, passed), dim=-1) if passed.shape[-1] else rotated


@dataclass(frozen=True)
class Positions:
    """The positions of the tokens of each text, the same for all texts: how many, and their rotation if any."""

    num_tokens: int
    rotation: Rotation | None


def before_attention(
    x_GND: Tensor, layer: Layer, heads: Heads, positions: Positions, adapters: LayerAdapters, skip: int
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Normalise, project, split into heads, normalise these where the block does, and rotate.

    Args:
        x_GND: the block's input.
        layer: the block.
        heads: the split of its projections.
        positions: of the T tokens of each text.
        adapters: its adapters.
        skip: leading rows without an adapter.

    Returns:
        The normalised input [G, N, D], and query [B, T, H, C], key and value [B, T, H_kv, C].
    """
    normed = layer.attention_norm(x_GND)
    qkv_GNO = adapted_linear(normed, layer.qkv, adapters[0], skip)
    qkv_BTO = qkv_GNO.view(-1, positions.num_tokens, qkv_GNO.shape[2])
    return normed, heads.split(qkv_BTO, positions.rotation, layer.query_norm, layer.key_norm)


def after_attention(
    x_GND: Tensor, normed_GND: Tensor, mixed_GNO: Tensor, layer: Layer, adapters: LayerAdapters, skip: int
) -> Tensor:
    """From what attention mixed to the block's output, [G, N, D].

    Args:
        x_GND: the block's input.
        normed_GND: its normalisation, which a parallel block feeds forward.
        mixed_GNO: attention's output, heads side by side.
        layer: the block.
        adapters: its adapters.
        skip: leading rows without an adapter.
    """
    hidden = x_GND + adapted_linear(mixed_GNO, layer.attention_output, adapters[1], skip)
    inner = normed_GND if layer.mlp_norm is None else layer.mlp_norm(hidden)
    inner = adapted_linear(inner, layer.mlp_input, adapters[2], skip)
    inner = gated_silu(inner) if layer.activation is None else layer.activation(inner)
    return hidden + adapted_linear(inner, layer.mlp_output, adapters[3], skip)
