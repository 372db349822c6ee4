"""The forward pass of the public model and all worlds as one batch.

`BatchedDecoder` computes what the base model's own class computes, for many rows at once, each with its own adapter.
The same code reads prompts, decodes and trains: what differs is how attention reaches earlier tokens, which is passed
in as a function.

Shape suffixes: G rows (the public row, if any, and one a world), N tokens in a row, T tokens in a text, D hidden size,
H heads, C head dimension, K candidates.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from reticent.errors import ModelError
from reticent.layers.attention import causal_attention
from reticent.layers.block import (
    NO_ADAPTERS,
    Heads,
    LayerAdapters,
    Positions,
    Rotation,
    after_attention,
    before_attention,
)
from reticent.models.architecture import Architecture
from reticent.models.families import SUPPORTED_FAMILIES, read_architecture

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer index, query [B, T, H, C], key, value [B, T, H_kv, C]) -> [B, T, H, C], for the B texts of all rows."""


class BatchedDecoder:
    """A decoder-only transformer evaluated for many rows at once.

    Not changed by use; safe to share between engines and trainers.
    """

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self._heads = Heads(
            architecture.num_heads, architecture.num_kv_heads, architecture.head_dim, architecture.qkv_layout
        )

    @property
    def num_layers(self) -> int:
        """The number of transformer blocks."""
        return len(self.architecture.layers)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens at the given positions (equal shapes) into [..., D]."""
        architecture = self.architecture
        hidden = functional.embedding(tokens, architecture.embedding_VD)
        if architecture.positions_PD is not None:
            hidden = hidden + functional.embedding(positions, architecture.positions_PD)
        return hidden if architecture.embedding_norm is None else architecture.embedding_norm(hidden)

    def run_layers(
        self,
        hidden_GND: Tensor,
        layers: range,
        positions_T: Tensor,
        attend: Attend,
        adapters: Sequence[LayerAdapters] | None = None,
        skip: int = 0,
    ) -> Tensor:
        """Run a range of blocks.

        Args:
            hidden_GND: [G, N, D]; the N tokens of a row are one text or several of equal length, side by side. One row
                may stand for G equal rows until the first adapter tells them apart.
            layers: which blocks.
            positions_T: the position of each token of a text, the same for all texts; int64[T].
            attend: how queries reach keys and values.
            adapters: for each block of `layers` its adapters, or None for the bare base.
            skip: leading rows without an adapter.
        """
        positions = Positions(len(positions_T), self._rotation_at(positions_T))
        num_features = self.architecture.num_heads * self.architecture.head_dim
        for offset, index in enumerate(layers):
            layer = self.architecture.layers[index]
            its_adapters = NO_ADAPTERS if adapters is None else adapters[offset]
            normed, qkv = before_attention(hidden_GND, layer, self._heads, positions, its_adapters, skip)
            mixed_GNO = attend(index, *qkv).reshape(-1, hidden_GND.shape[1], num_features)
            hidden_GND = after_attention(hidden_GND, normed, mixed_GNO, layer, its_adapters, skip)
        return hidden_GND

    def final_hidden(self, hidden: Tensor) -> Tensor:
        """The last normalisation, [..., D] -> [..., D]."""
        return self.architecture.final_norm(hidden)

    def logits(self, final_hidden: Tensor) -> Tensor:
        """Logits over the whole vocabulary, [..., D] -> float32 [..., V]."""
        architecture = self.architecture
        return functional.linear(final_hidden, architecture.head_VD, architecture.head_bias_V).float()

    def candidate_logits(self, final_hidden: Tensor, candidates_K: Tensor) -> Tensor:
        """Logits at the candidates alone, [..., D] -> float32 [..., K]; products are accumulated in float32."""
        architecture = self.architecture
        bias = None if architecture.head_bias_V is None else architecture.head_bias_V[candidates_K].float()
        return functional.linear(final_hidden.float(), architecture.head_VD[candidates_K].float(), bias)

    def attention_over(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`attention.causal_attention` with the scale and the biases of a block; an `Attend` for whole texts.

        Texts padded on the right need no mask: no real token comes after a padding token.
        """
        architecture = self.architecture
        return causal_attention(
            query, key, value, architecture.layers[layer].attention_scale, architecture.alibi_slopes_H
        )

    def _rotation_at(self, positions_T: Tensor) -> Rotation | None:
        rotary = self.architecture.rotary
        if rotary is None:
            return None
        return Rotation(
            rotary.cos_PR[positions_T][:, None], rotary.signed_sin_PR[positions_T][:, None], rotary.interleaved
        )


@torch.no_grad()
def batched_decoder(model: Any) -> BatchedDecoder:
    """Read a causal language model and check the reading against the model's own forward pass.

    Args:
        model: a `transformers` causal LM in evaluation mode.

    Raises:
        ModelError: the model is not understood, or computes something else than what was read.
    """
    decoder = BatchedDecoder(read_architecture(model))
    architecture = decoder.architecture
    length = min(9, architecture.context_length)
    # Spread over the vocabulary, so that no token's special treatment hides the rest.
    tokens = (torch.arange(1, length + 1, device=architecture.device) * 7919) % architecture.embedding_VD.shape[0]
    expected = model(input_ids=tokens[None], use_cache=False).logits[0].float()
    positions = torch.arange(length, device=architecture.device)
    hidden = decoder.run_layers(
        decoder.embed(tokens, positions)[None], range(decoder.num_layers), positions, decoder.attention_over
    )
    computed = decoder.logits(decoder.final_hidden(hidden))[0]
    error = (computed - expected).norm() / expected.norm()
    tolerance = 1e-3 if architecture.dtype == torch.float32 else 5e-2
    if not error <= tolerance:
        raise ModelError(
            f"{architecture.class_name} cannot be evaluated as a batch of worlds: its blocks look familiar but compute "
            f"something else (logits differ by {float(error):.1%}). Families that can: {', '.join(SUPPORTED_FAMILIES)}"
        )
    return decoder
