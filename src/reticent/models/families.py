"""Read a `transformers` causal language model, by its structure, into an `Architecture`.

Nothing here asks for a model's name. A block is recognised by the modules it is made of, every parameter must be
accounted for, and `layers.forward.batched_decoder` then checks the reading by computing a probe both ways. What is
not understood is refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError
from reticent.models.architecture import Architecture, Layer, LinearGroup, LinearModule, Norm, QkvLayout, Rotary

SUPPORTED_FAMILIES = ("LLaMA (and Mistral, Qwen2 and others of its structure)", "GPT-2", "OPT", "BLOOM", "GPT-J")

_ATTENTION = ("self_attn", "attn", "self_attention")
_SEPARATE_QKV = ("q_proj", "k_proj", "v_proj")
_FUSED_QKV = {"c_attn": QkvLayout.BLOCKS, "query_key_value": QkvLayout.PER_HEAD}
_ATTENTION_OUTPUT = ("o_proj", "out_proj", "c_proj", "dense")
_ATTENTION_NORM = ("input_layernorm", "ln_1", "self_attn_layer_norm")
_MLP_NORM = ("post_attention_layernorm", "ln_2", "final_layer_norm")
_MLP_GATE = ("gate_proj",)
_MLP_UP = ("up_proj", "c_fc", "fc1", "fc_in", "dense_h_to_4h")
_MLP_DOWN = ("down_proj", "c_proj", "fc2", "fc_out", "dense_4h_to_h")
_ACTIVATION = ("act_fn", "act", "activation_fn", "gelu_impl")
_EMBEDDING_NORM = ("word_embeddings_layernorm",)
_FINAL_NORM = ("norm", "ln_f", "final_layer_norm")
_LEARNED_POSITIONS = ("wpe", "embed_positions")


class _Reader:
    """Finds modules by role and remembers which parameters were used."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.used: set[int] = set()

    def refuse(self, reason: str) -> ModelError:
        return ModelError(
            f"{type(self.model).__name__} cannot be evaluated as a batch of worlds: {reason}. "
            f"Families that can: {', '.join(SUPPORTED_FAMILIES)}"
        )

    def child(self, parent: Any, names: tuple[str, ...], role: str) -> Any:
        found = self.optional_child(parent, names)
        if found is None:
            raise self.refuse(f"{self.paths[id(parent)] or 'the model'} has no {role} ({' / '.join(names)})")
        return found

    @staticmethod
    def optional_child(parent: Any, names: tuple[str, ...]) -> Any:
        return next((getattr(parent, n) for n in names if getattr(parent, n, None) is not None), None)

    def take(self, parameter: Tensor | None) -> Tensor | None:
        if parameter is None:
            return None
        self.used.add(id(parameter))
        return parameter.detach()

    def norm(self, module: nn.Module) -> Norm:
        weight = self.take(getattr(module, "weight", None))
        if isinstance(module, nn.LayerNorm):
            return Norm(weight, self.take(module.bias), module.eps, rms=False)
        eps: Any = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not isinstance(eps, float) or getattr(module, "bias", None) is not None:
            raise self.refuse(f"{self.paths[id(module)]} is not a layer or root-mean-square normalisation")
        return Norm(weight, None, eps, rms=True)

    def linear(self, module: nn.Module) -> tuple[Tensor, Tensor | None, bool]:
        """Weight [out, in], bias, and whether the module stores its weight as [in, out]."""
        weight = self.take(getattr(module, "weight", None))
        if weight is None or weight.dim() != 2:
            raise self.refuse(f"{self.paths[id(module)]} is not a linear module")
        bias = self.take(getattr(module, "bias", None))
        if isinstance(module, nn.Linear):
            return weight, bias, False
        if type(module).__name__ == "Conv1D":
            return weight.t().contiguous(), bias, True
        raise self.refuse(f"{self.paths[id(module)]} is a {type(module).__name__}, not a linear module")

    def group(self, modules: list[nn.Module]) -> LinearGroup:
        parts = [self.linear(module) for module in modules]
        members, start = [], 0
        for module, (weight, _, transposed) in zip(modules, parts, strict=True):
            members.append(
                LinearModule(self.paths[id(module)], weight.shape[1], start, start + weight.shape[0], transposed)
            )
            start += weight.shape[0]
        if len(parts) == 1:
            return LinearGroup(tuple(members), parts[0][0], parts[0][1])
        biases = [bias for _, bias, _ in parts if bias is not None]
        if biases and len(biases) != len(parts):
            raise self.refuse(f"only some of {', '.join(m.path for m in members)} have a bias")
        return LinearGroup(
            tuple(members), torch.cat([weight for weight, _, _ in parts]), torch.cat(biases) if biases else None
        )

    def leftovers(self) -> list[str]:
        return [name for name, parameter in self.model.named_parameters() if id(parameter) not in self.used]


def read_architecture(model: Any) -> Architecture:
    """Read a causal language model by structure.

    Args:
        model: a `transformers` causal LM. Its tensors are shared where they can be, not copied.

    Raises:
        ModelError: some part of the model is not understood; the message names it and lists what is supported.
    """
    reader = _Reader(model)
    backbone, blocks = _decoder_blocks(reader)
    first = reader.child(blocks[0], _ATTENTION, "attention module")
    layout, head_dim, num_heads, num_kv_heads = _head_geometry(reader, first, model.config)
    layers = tuple(_read_layer(reader, block, head_dim) for block in blocks)

    embedding = reader.take(model.get_input_embeddings().weight)
    output = model.get_output_embeddings()
    if embedding is None or output is None:
        raise reader.refuse("it has no token embeddings or no language-model head")
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
    leftovers = reader.leftovers()
    if leftovers:
        raise reader.refuse(f"it has parameters of no known role: {', '.join(leftovers[:4])}")
    return architecture


def _decoder_blocks(reader: _Reader) -> tuple[nn.Module, nn.ModuleList]:
    lists = [
        (name, module)
        for name, module in reader.model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module)
        and reader.optional_child(module[0], _ATTENTION) is not None
    ]
    if len(lists) != 1:
        raise reader.refuse(f"it has {len(lists)} stacks of attention blocks, not one")
    name, blocks = lists[0]
    return reader.model.get_submodule(name.rpartition(".")[0]), blocks


def _head_geometry(reader: _Reader, attention: Any, config: Any) -> tuple[QkvLayout, int, int, int]:
    num_heads = int(config.num_attention_heads)
    head_dim = int(getattr(attention, "head_dim", config.hidden_size // num_heads))
    if all(reader.optional_child(attention, (name,)) is not None for name in _SEPARATE_QKV):
        num_kv_heads = int(attention.k_proj.weight.shape[0]) // head_dim
        return QkvLayout.BLOCKS, head_dim, num_heads, num_kv_heads
    for name, layout in _FUSED_QKV.items():
        if hasattr(attention, name) and 3 * num_heads * head_dim in getattr(attention, name).weight.shape:
            return layout, head_dim, num_heads, num_heads
    raise reader.refuse(f"{reader.paths[id(attention)]} has no query, key and value projections of equal width")


def _read_layer(reader: _Reader, block: Any, head_dim: int) -> Layer:
    if getattr(block, "do_layer_norm_before", True) is False:
        raise reader.refuse("it normalises after each sub-layer, not before")
    attention = reader.child(block, _ATTENTION, "attention module")
    fused = reader.optional_child(attention, tuple(_FUSED_QKV))
    qkv = [fused] if fused is not None else [getattr(attention, name) for name in _SEPARATE_QKV]
    mlp = block.mlp if hasattr(block, "mlp") else block
    gate = reader.optional_child(mlp, _MLP_GATE)
    up = reader.child(mlp, _MLP_UP, "feed-forward input projection")
    mlp_norm = reader.optional_child(block, _MLP_NORM)
    activation: Callable[[Tensor], Tensor] = reader.child(mlp, _ACTIVATION, "activation")
    if gate is not None and not _is_silu(activation):
        raise reader.refuse(f"{reader.paths[id(mlp)]} is gated by something else than SiLU")
    return Layer(
        attention_norm=reader.norm(reader.child(block, _ATTENTION_NORM, "normalisation before attention")),
        qkv=reader.group(qkv),
        attention_output=reader.group([reader.child(attention, _ATTENTION_OUTPUT, "attention output projection")]),
        mlp_norm=None if mlp_norm is None else reader.norm(mlp_norm),
        mlp_input=reader.group([up] if gate is None else [gate, up]),
        mlp_output=reader.group([reader.child(mlp, _MLP_DOWN, "feed-forward output projection")]),
        activation=None if gate is not None else activation,
        attention_scale=float(getattr(attention, "scaling", head_dim**-0.5)),
    )


def _context_length(config: Any) -> int:
    # Up to a sliding window's width, attention over the window is attention over everything.
    limits = [
        getattr(config, name, None)
        for name in ("max_position_embeddings", "n_positions", "seq_length", "sliding_window")
    ]
    # BLOOM's configuration states no limit; 2,048 is the length it was trained on.
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=2048)


def _learned_positions(reader: _Reader, backbone: nn.Module, context_length: int) -> Tensor | None:
    module = reader.optional_child(backbone, _LEARNED_POSITIONS)
    if not isinstance(module, nn.Embedding):
        return None
    table = reader.take(module.weight)
    assert table is not None
    # OPT keeps unused rows before position 0.
    offset = int(getattr(module, "offset", 0))
    return table[offset : offset + context_length]


def _rotary(reader: _Reader, backbone: Any, context_length: int) -> Rotary | None:
    module = getattr(backbone, "rotary_emb", None)
    if module is None:
        return None
    if getattr(module, "rope_type", "default") in ("dynamic", "longrope"):
        raise reader.refuse(f"its rotary embedding ({module.rope_type}) changes with the length of the text")
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
