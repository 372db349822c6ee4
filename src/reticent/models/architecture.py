"""The parts of a decoder-only transformer that the batched forward computes with.

Plain records of tensors and constants, free of any model class. `reading` fills them in from a `transformers` model.

Shape suffixes: D hidden size, O output features, I input features, P positions, R rotary dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from reticent.models.pointwise import rms_norm

ATTENTION_MODULES = "attention"
"""Target modules of an adapter: all projections of attention."""
ALL_LINEAR_MODULES = "all-linear"
"""Target modules of an adapter: every linear module of the blocks."""


class QkvLayout(Enum):
    """The layout of query, key and value in the output of the projection that computes them."""

    BLOCKS = "all queries, then all keys, then all values"
    PER_HEAD = "for each head its query, key and value"


@dataclass(frozen=True)
class LinearModule:
    """A linear module of the base model: where its output starts and stops within a `LinearGroup`'s.

    `path` is the module's name in the base model, as PEFT uses it. `fan_in_fan_out` is set where the base stores the
    weight as [in, out].
    """

    path: str
    in_features: int
    start: int
    stop: int
    fan_in_fan_out: bool = False

    @property
    def out_features(self) -> int:
        """Output features of this module alone."""
        return self.stop - self.start

    @property
    def name(self) -> str:
        """The last part of the path, as used for `--target-modules`."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class LinearGroup:
    """Linear modules that read the same input, computed as one matrix product."""

    modules: tuple[LinearModule, ...]
    weight_OI: Tensor
    bias_O: Tensor | None

    @property
    def in_features(self) -> int:
        """Input features that all modules of the group share."""
        return self.weight_OI.shape[1]


@dataclass(frozen=True)
class Norm:
    """Layer normalisation, or root-mean-square normalisation where `rms` is set."""

    weight_D: Tensor | None
    bias_D: Tensor | None
    eps: float
    rms: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        if self.rms:
            return rms_norm(x, self.weight_D, self.eps)
        return torch.nn.functional.layer_norm(x, (x.shape[-1],), self.weight_D, self.bias_D, self.eps)


@dataclass(frozen=True)
class Layer:
    """One transformer block with pre-normalisation.

    Sequential: h = x + attention(norm1 x); y = h + mlp(norm2 h). Parallel (`mlp_norm` is None, as in GPT-J):
    y = x + attention(norm1 x) + mlp(norm1 x). The feed-forward part is down(activation(up x)); where `activation` is
    None it is gated, down(silu(gate x) · up x), and `mlp_input` is gate and up in one. `query_norm` and `key_norm` act
    on each head before it is rotated.
    """

    attention_norm: Norm
    qkv: LinearGroup
    attention_output: LinearGroup
    mlp_norm: Norm | None
    mlp_input: LinearGroup
    mlp_output: LinearGroup
    activation: Callable[[Tensor], Tensor] | None
    attention_scale: float
    query_norm: Norm | None = None
    key_norm: Norm | None = None

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        """The groups an adapter may sit on, in the order they are computed."""
        return self.qkv, self.attention_output, self.mlp_input, self.mlp_output


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding over all positions; see `block.Rotation` for the convention of sign and pairs."""

    cos_PR: Tensor
    signed_sin_PR: Tensor
    interleaved: bool


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer.

    Attributes:
        embedding_VD: token embeddings; positions_PD: learned position embeddings, already shifted so that row 0 is
            position 0; embedding_norm: applied to the embeddings.
        rotary, alibi_slopes_H: position information inside attention, if any.
        head_VD, head_bias_V: the output projection.
        context_length: the most tokens a context holds.
        class_name: the model class read, for messages.
    """

    class_name: str
    embedding_VD: Tensor
    positions_PD: Tensor | None
    embedding_norm: Norm | None
    rotary: Rotary | None
    alibi_slopes_H: Tensor | None
    layers: tuple[Layer, ...]
    final_norm: Norm
    head_VD: Tensor
    head_bias_V: Tensor | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_layout: QkvLayout
    context_length: int

    @property
    def hidden_size(self) -> int:
        """Width D of the residual stream."""
        return self.embedding_VD.shape[1]

    @property
    def vocab_size(self) -> int:
        """Rows of the output projection, V."""
        return self.head_VD.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the weights."""
        return self.embedding_VD.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding_VD.device
