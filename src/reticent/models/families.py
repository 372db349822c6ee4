"""The registry of base families, and the reading of a model, by its structure, into an `Architecture`.

Nothing asks for a model's name. `FAMILIES` lists the names under which families keep the module of each role. A model
may use the name of any family for any role; every parameter must be accounted for, and
`layers.forward.batched_decoder` then checks the reading by computing a probe both ways. What is not understood is
refused. `models.sublayers` finds places for adapters by the same registry.

A family of other names takes a row in `FAMILIES`. One that also computes something new takes a field in
`models.architecture`, the reading of that field here, and its computation in `layers.block`; `tests/tiny_models.py`
then puts a tiny model of it through every test of parity.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from reticent.errors import ModelError
from reticent.models.architecture import Architecture, Layer, Norm, QkvLayout, Rotary
from reticent.models.module_reader import ModuleReader

_Name = TypeVar("_Name")


@dataclass(frozen=True, kw_only=True)
class DecoderNames:
    """Names of what only the batched forward pass reads, beside the projections; None where a family has no such part.

    Attributes:
        attention: the attention part of a block.
        attention_norm: the normalisation before it.
        mlp_norm: the normalisation before the feed-forward part; None where both parts read the same.
        activation: the function inside the feed-forward part.
        final_norm: the normalisation after all blocks.
        embedding_norm: the normalisation of embeddings.
        positions: the table of learned positions.
        layout: where query, key and value are in the output of one fused projection.
        query_norm: the normalisation of each head's query.
        key_norm: the normalisation of each head's key.
    """

    attention: str
    attention_norm: str
    mlp_norm: str | None
    activation: str
    final_norm: str
    embedding_norm: str | None = None
    positions: str | None = None
    layout: QkvLayout = QkvLayout.BLOCKS
    query_norm: str | None = None
    key_norm: str | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """Module names of one family of language models.

    Attributes:
        name: the family, for messages and documents.
        query_key_value: projections that attention reads its input with, three or one.
        attention_output: the projection that attention writes with.
        mlp_input: projections that the feed-forward part reads its input with: gate and up, or up alone.
        mlp_output: the projection that it writes with.
        decoder: what the batched forward pass needs beside; None where only single models are adapted.
    """

    name: str
    query_key_value: tuple[str, ...]
    attention_output: str
    mlp_input: tuple[str, ...]
    mlp_output: str
    decoder: DecoderNames | None = None


_SEPARATE_QKV = ("q_proj", "k_proj", "v_proj")

FAMILIES = (
    Family(
        name="LLaMA (and Mistral, Qwen2 and others of its structure)",
        query_key_value=_SEPARATE_QKV,
        attention_output="o_proj",
        mlp_input=("gate_proj", "up_proj"),
        mlp_output="down_proj",
        decoder=DecoderNames(
            attention="self_attn",
            attention_norm="input_layernorm",
            mlp_norm="post_attention_layernorm",
            activation="act_fn",
            final_norm="norm",
        ),
    ),
    Family(
        name="Qwen3",
        query_key_value=_SEPARATE_QKV,
        attention_output="o_proj",
        mlp_input=("gate_proj", "up_proj"),
        mlp_output="down_proj",
        decoder=DecoderNames(
            attention="self_attn",
            attention_norm="input_layernorm",
            mlp_norm="post_attention_layernorm",
            activation="act_fn",
            final_norm="norm",
            query_norm="q_norm",
            key_norm="k_norm",
        ),
    ),
    Family(
        name="GPT-2",
        query_key_value=("c_attn",),
        attention_output="c_proj",
        mlp_input=("c_fc",),
        mlp_output="c_proj",
        decoder=DecoderNames(
            attention="attn",
            attention_norm="ln_1",
            mlp_norm="ln_2",
            activation="act",
            final_norm="ln_f",
            positions="wpe",
        ),
    ),
    Family(
        name="OPT",
        query_key_value=_SEPARATE_QKV,
        attention_output="out_proj",
        mlp_input=("fc1",),
        mlp_output="fc2",
        decoder=DecoderNames(
            attention="self_attn",
            attention_norm="self_attn_layer_norm",
            mlp_norm="final_layer_norm",
            activation="activation_fn",
            final_norm="final_layer_norm",
            positions="embed_positions",
        ),
    ),
    Family(
        name="BLOOM",
        query_key_value=("query_key_value",),
        attention_output="dense",
        mlp_input=("dense_h_to_4h",),
        mlp_output="dense_4h_to_h",
        decoder=DecoderNames(
            attention="self_attention",
            attention_norm="input_layernorm",
            mlp_norm="post_attention_layernorm",
            activation="gelu_impl",
            final_norm="ln_f",
            embedding_norm="word_embeddings_layernorm",
            layout=QkvLayout.PER_HEAD,
        ),
    ),
    Family(
        name="GPT-J",
        query_key_value=_SEPARATE_QKV,
        attention_output="out_proj",
        mlp_input=("fc_in",),
        mlp_output="fc_out",
        decoder=DecoderNames(
            attention="attn", attention_norm="ln_1", mlp_norm=None, activation="act", final_norm="ln_f"
        ),
    ),
    Family(
        name="T5",
        query_key_value=("q", "k", "v"),
        attention_output="o",
        mlp_input=("wi_0", "wi_1"),
        mlp_output="wo",
    ),
    Family(
        name="T5",
        query_key_value=("q", "k", "v"),
        attention_output="o",
        mlp_input=("wi",),
        mlp_output="wo",
    ),
)

CROSS_ATTENTION = ("EncDecAttention", "encoder_attn", "crossattention")
"""Names of the attention part that reads an encoder."""


def distinct_names(names: Iterable[_Name | None]) -> tuple[_Name, ...]:
    """The names of one role over families, each once, in the registry's order."""
    return tuple(dict.fromkeys(name for name in names if name is not None))


SUPPORTED_FAMILIES = distinct_names(family.name for family in FAMILIES if family.decoder is not None)
"""Families whose worlds are evaluated as one batch."""
ADAPTABLE_FAMILIES = distinct_names(family.name for family in FAMILIES)
"""Families of which a single model can be adapted."""

_READ = tuple((family, family.decoder) for family in FAMILIES if family.decoder is not None)
_ATTENTION = distinct_names(names.attention for _, names in _READ)
_QUERY_KEY_VALUE = distinct_names((family.query_key_value, names.layout) for family, names in _READ)
_ATTENTION_OUTPUT = distinct_names(family.attention_output for family, _ in _READ)
_ATTENTION_NORM = distinct_names(names.attention_norm for _, names in _READ)
_MLP_NORM = distinct_names(names.mlp_norm for _, names in _READ)
_MLP_GATE = distinct_names(family.mlp_input[0] for family, _ in _READ if len(family.mlp_input) == 2)
_MLP_UP = distinct_names(family.mlp_input[-1] for family, _ in _READ)
_MLP_OUTPUT = distinct_names(family.mlp_output for family, _ in _READ)
_ACTIVATION = distinct_names(names.activation for _, names in _READ)
_FINAL_NORM = distinct_names(names.final_norm for _, names in _READ)
_EMBEDDING_NORM = distinct_names(names.embedding_norm for _, names in _READ)
_QUERY_NORM = distinct_names(names.query_norm for _, names in _READ)
_KEY_NORM = distinct_names(names.key_norm for _, names in _READ)
_LEARNED_POSITIONS = distinct_names(names.positions for _, names in _READ)


def read_architecture(model: Any) -> Architecture:
    """Read a causal language model by structure.

    Args:
        model: a `transformers` causal LM. Its tensors are shared where they can be, not copied.

    Raises:
        ModelError: some part of the model is not understood; the message names it and lists what is supported.
    """
    reader = ModuleReader(model, SUPPORTED_FAMILIES)
    backbone, blocks = _decoder_blocks(reader)
    first = reader.child(blocks[0], _ATTENTION, "attention module")
    layout, head_dim, num_heads, num_kv_heads = _head_geometry(reader, first, model.config)
    layers = tuple(_read_layer(reader, block, head_dim) for block in blocks)

    embedding = reader.take(model.get_input_embeddings().weight)
    output = model.get_output_embeddings()
    if embedding is None or output is None:
        raise reader.refusal("it has no token embeddings or no language-model head")
    embedding_norm = reader.optional_child(backbone, _EMBEDDING_NORM)
    head = reader.take(output.weight)
    assert head is not None
    context_length = _context_length(model.config)
    architecture = Architecture(
        class_name=type(model).__name__,
        embedding_VD=embedding,
        positions_PD=_learned_positions(reader, backbone, context_length),
        embedding_norm=None if embedding_norm is None else reader.norm(embedding_norm),
        rotary=_rotary(reader, backbone, context_length),
        alibi_slopes_H=_alibi_slopes(backbone, num_heads, embedding.device),
        layers=layers,
        final_norm=reader.norm(reader.child(backbone, _FINAL_NORM, "final normalisation")),
        head_VD=head,
        head_bias_V=reader.take(getattr(output, "bias", None)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        qkv_layout=layout,
        context_length=context_length,
    )
    unread = reader.unread_parameters()
    if unread:
        raise reader.refusal(f"it has parameters of no known role: {', '.join(unread[:4])}")
    return architecture


def _decoder_blocks(reader: ModuleReader) -> tuple[nn.Module, nn.ModuleList]:
    lists = [
        (name, module)
        for name, module in reader.model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module)
        and reader.optional_child(module[0], _ATTENTION) is not None
    ]
    if len(lists) != 1:
        raise reader.refusal(f"it has {len(lists)} stacks of attention blocks, not one")
    name, blocks = lists[0]
    return reader.model.get_submodule(name.rpartition(".")[0]), blocks


def _head_geometry(reader: ModuleReader, attention: Any, config: Any) -> tuple[QkvLayout, int, int, int]:
    num_heads = int(config.num_attention_heads)
    head_dim = int(getattr(attention, "head_dim", config.hidden_size // num_heads))
    projections, layout = _query_key_value(reader, attention)
    if len(projections) == 3:
        return layout, head_dim, num_heads, int(projections[1].weight.shape[0]) // head_dim
    if 3 * num_heads * head_dim not in projections[0].weight.shape:
        raise _unequal_projections(reader, attention)
    return layout, head_dim, num_heads, num_heads


def _query_key_value(reader: ModuleReader, attention: Any) -> tuple[list[Any], QkvLayout]:
    """The projections of attention's input, three or one, and where query, key and value are in their output."""
    for names, layout in _QUERY_KEY_VALUE:
        projections = [reader.optional_child(attention, (name,)) for name in names]
        if all(projection is not None for projection in projections):
            return projections, layout
    raise _unequal_projections(reader, attention)


def _unequal_projections(reader: ModuleReader, attention: Any) -> ModelError:
    path = reader.paths[id(attention)]
    return reader.refusal(f"{path} has no query, key and value projections of equal width")


def _read_layer(reader: ModuleReader, block: Any, head_dim: int) -> Layer:
    if getattr(block, "do_layer_norm_before", True) is False:
        raise reader.refusal("it normalises after each sub-layer, not before")
    attention = reader.child(block, _ATTENTION, "attention module")
    qkv, _ = _query_key_value(reader, attention)
    mlp = block.mlp if hasattr(block, "mlp") else block
    gate = reader.optional_child(mlp, _MLP_GATE)
    up = reader.child(mlp, _MLP_UP, "feed-forward input projection")
    mlp_norm = reader.optional_child(block, _MLP_NORM)
    activation: Callable[[Tensor], Tensor] = reader.child(mlp, _ACTIVATION, "activation")
    if gate is not None and not _is_silu(activation):
        raise reader.refusal(f"{reader.paths[id(mlp)]} is gated by something else than SiLU")
    return Layer(
        attention_norm=reader.norm(reader.child(block, _ATTENTION_NORM, "normalisation before attention")),
        qkv=reader.group(qkv),
        attention_output=reader.group([reader.child(attention, _ATTENTION_OUTPUT, "attention output projection")]),
        mlp_norm=None if mlp_norm is None else reader.norm(mlp_norm),
        mlp_input=reader.group([up] if gate is None else [gate, up]),
        mlp_output=reader.group([reader.child(mlp, _MLP_OUTPUT, "feed-forward output projection")]),
        activation=None if gate is not None else activation,
        attention_scale=float(getattr(attention, "scaling", head_dim**-0.5)),
        query_norm=_head_norm(reader, attention, _QUERY_NORM, head_dim),
        key_norm=_head_norm(reader, attention, _KEY_NORM, head_dim),
    )


def _head_norm(reader: ModuleReader, attention: Any, names: tuple[str, ...], head_dim: int) -> Norm | None:
    """The normalisation of each head's query or key, if there is one."""
    module = reader.optional_child(attention, names)
    if module is None:
        return None
    norm = reader.norm(module)
    if norm.weight_D is not None and norm.weight_D.shape != (head_dim,):
        raise reader.refusal(f"{reader.paths[id(module)]} normalises all heads as one, not each of {head_dim} features")
    return norm


def _context_length(config: Any) -> int:
    # Up to a sliding window's width, attention over the window is attention over everything.
    limits = [
        getattr(config, name, None)
        for name in ("max_position_embeddings", "n_positions", "seq_length", "sliding_window")
    ]
    # BLOOM's configuration states no limit; 2,048 is the length it was trained on.
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=2048)


def _learned_positions(reader: ModuleReader, backbone: nn.Module, context_length: int) -> Tensor | None:
    module = reader.optional_child(backbone, _LEARNED_POSITIONS)
    if not isinstance(module, nn.Embedding):
        return None
    table = reader.take(module.weight)
    assert table is not None
    # OPT keeps unused rows before position 0.
    offset = int(getattr(module, "offset", 0))
    return table[offset : offset + context_length]


def _rotary(reader: ModuleReader, backbone: Any, context_length: int) -> Rotary | None:
    module = getattr(backbone, "rotary_emb", None)
    if module is None:
        return None
    if getattr(module, "rope_type", "default") in ("dynamic", "longrope"):
        raise reader.refusal(f"its rotary embedding ({module.rope_type}) changes with the length of the text")
    embedding = backbone.get_input_embeddings().weight
    positions = torch.arange(context_length, device=embedding.device)[None]
    first, second = module(embedding[:1, None], positions)
    if hasattr(module, "embed_positions"):
        # GPT-J: (sin, cos), one column per rotated pair.
        sin, cos = (table[0].detach().repeat_interleave(2, dim=-1) for table in (first, second))
        sin[:, ::2] *= -1
        return Rotary(cos, sin, interleaved=True)
    cos, sin = first[0].detach(), second[0].detach().clone()
    sin[:, : sin.shape[1] // 2] *= -1
    return Rotary(cos, sin, interleaved=False)


def _alibi_slopes(backbone: Any, num_heads: int, device: torch.device) -> Tensor | None:
    """Slopes of attention with linear biases (arXiv 2108.12409, section 3): geometric from 2^(-8/n)."""
    if not hasattr(backbone, "build_alibi_tensor"):
        return None
    power = 2 ** (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def _is_silu(activation: Callable[[Tensor], Tensor]) -> bool:
    probe = torch.linspace(-6.0, 6.0, 49)
    return torch.allclose(activation(probe), nn.functional.silu(probe), atol=1e-6)
