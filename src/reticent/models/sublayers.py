"""Places for adapters in a `transformers` language model: the attention and feed-forward parts of each block.

Names come from the registry of `models.families`. Attention is a module with query, key and value projections and one
that leads back to the hidden size; a feed-forward part is a module with a projection up and one back down. Every block
of every stack must have its feed-forward part and its attention, and a short probe must compute each of them: what is
not understood is refused.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from reticent.errors import InvalidValueError, ModelError
from reticent.models.architecture import ALL_LINEAR_MODULES, ATTENTION_MODULES
from reticent.models.families import ADAPTABLE_FAMILIES, CROSS_ATTENTION, FAMILIES, distinct_names

_QUERY_KEY_VALUE = distinct_names(family.query_key_value for family in FAMILIES)
_ATTENTION_OUTPUT = distinct_names(family.attention_output for family in FAMILIES)
_MLP_INPUT = distinct_names(family.mlp_input for family in FAMILIES)
_MLP_OUTPUT = distinct_names(family.mlp_output for family in FAMILIES)


@dataclass(frozen=True)
class Attention:
    """Paths of one attention part's projections: query, key and value (or all three in one), and the output's."""

    query_key_value: tuple[str, ...]
    output: str
    is_cross: bool

    @property
    def paths(self) -> tuple[str, ...]:
        """All projections, in the order they are computed."""
        return (*self.query_key_value, self.output)

    @property
    def key_value(self) -> tuple[str, ...]:
        """The projections that (IA)^3 rescales: keys and values, or the fused one where they are not apart."""
        return self.query_key_value[-2:]


@dataclass(frozen=True)
class FeedForward:
    """Paths of one feed-forward part's projections: those that read its input, and the one that writes its output."""

    inputs: tuple[str, ...]
    output: str

    @property
    def paths(self) -> tuple[str, ...]:
        """All projections, in the order they are computed."""
        return (*self.inputs, self.output)


@dataclass(frozen=True)
class Block:
    """One transformer block. A decoder that also reads an encoder has a second attention part, `is_cross`."""

    path: str
    attention: tuple[Attention, ...]
    feed_forward: FeedForward

    @property
    def paths(self) -> tuple[str, ...]:
        """All projections of the block."""
        return (*(path for part in self.attention for path in part.paths), *self.feed_forward.paths)


def find_blocks(model: Any) -> tuple[Block, ...]:
    """The blocks of a causal or encoder-decoder model, in the order of its modules.

    Raises:
        ModelError: some block has parts that are not understood; the message names it and lists what is supported.
    """
    attention: dict[str, list[Attention]] = {}
    feed_forward: dict[str, list[FeedForward]] = {}
    blocks = _block_paths(model)
    for path, module in model.named_modules():
        block = next((name for name in _prefixes(path) if name in blocks), None)
        if block is None:
            continue
        if (found := _attention(path, module)) is not None:
            attention.setdefault(block, []).append(found)
        if (part := _feed_forward(path, module)) is not None:
            feed_forward.setdefault(block, []).append(part)
    for block in blocks:
        counts = len(attention.get(block, ())), len(feed_forward.get(block, ()))
        if counts[0] not in (1, 2) or counts[1] != 1:
            raise _refusal(
                model, f"{block} has {counts[0]} attention and {counts[1]} feed-forward parts that are known"
            )
    if not blocks:
        raise _refusal(model, "it has no stack of blocks")
    found_blocks = tuple(Block(path, tuple(attention[path]), feed_forward[path][0]) for path in blocks)
    _probe(model, found_blocks)
    return found_blocks


def select_paths(blocks: Sequence[Block], names: Sequence[str]) -> list[str]:
    """Paths of the projections to adapt, in the order of the blocks.

    Args:
        blocks: the blocks of a model.
        names: last parts of paths (`q_proj`), or `attention` (all projections of attention), or `all-linear`.

    Raises:
        InvalidValueError: no projection has such a name.
    """
    of_attention = {path for block in blocks for part in block.attention for path in part.paths}
    available = {path: path.rpartition(".")[2] for block in blocks for path in block.paths}
    unknown = set(names) - set(available.values()) - {ATTENTION_MODULES, ALL_LINEAR_MODULES}
    chosen = [
        path
        for path, name in available.items()
        if name in names or ALL_LINEAR_MODULES in names or (ATTENTION_MODULES in names and path in of_attention)
    ]
    if unknown or not chosen:
        raise InvalidValueError(
            f"target-modules {', '.join(sorted(unknown)) or '(none)'}: the base model has "
            f"{', '.join(sorted(set(available.values())))}; or use {ATTENTION_MODULES!r} or {ALL_LINEAR_MODULES!r}"
        )
    return chosen


def _block_paths(model: nn.Module) -> list[str]:
    """Elements of the outermost module lists that hold attention somewhere inside."""
    stacks: dict[str, int] = {}
    for path, module in model.named_modules():
        inside_another = any(name in stacks for name in _prefixes(path))
        if isinstance(module, nn.ModuleList) and not inside_another and any(_has_attention(child) for child in module):
            stacks[path] = len(module)
    return [f"{stack}.{index}" for stack, length in stacks.items() for index in range(length)]


def _has_attention(module: nn.Module) -> bool:
    return any(_attention(path, inner) is not None for path, inner in module.named_modules())


def _attention(path: str, module: Any) -> Attention | None:
    inputs = next((names for names in _QUERY_KEY_VALUE if _all_linear(module, names)), None)
    output = next((name for name in _ATTENTION_OUTPUT if _all_linear(module, (name,))), None)
    if inputs is None or output is None:
        return None
    is_cross = path.rpartition(".")[2] in CROSS_ATTENTION
    return Attention(tuple(f"{path}.{name}" for name in inputs), f"{path}.{output}", is_cross)


def _feed_forward(path: str, module: Any) -> FeedForward | None:
    inputs = next((names for names in _MLP_INPUT if _all_linear(module, names)), None)
    output = next((name for name in _MLP_OUTPUT if _all_linear(module, (name,))), None)
    if inputs is None or output is None:
        return None
    return FeedForward(tuple(f"{path}.{name}" for name in inputs), f"{path}.{output}")


def _all_linear(module: Any, names: Sequence[str]) -> bool:
    return all(is_linear(getattr(module, name, None)) for name in names)


def is_linear(module: Any) -> bool:
    """True if a module is a linear map: PyTorch's, or GPT-2's with its weight stored as [in, out]."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def is_stored_transposed(model: nn.Module, blocks: Sequence[Block]) -> bool:
    """True if the model's linear modules store their weights as [in, out]."""
    return not isinstance(model.get_submodule(blocks[0].feed_forward.output), nn.Linear)


def _prefixes(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]


@torch.no_grad()
def _probe(model: Any, blocks: Sequence[Block]) -> None:
    """Compute two tokens and see that every part ran once and writes the width that the block before it wrote."""
    calls: Counter[str] = Counter()
    widths: dict[str, int] = {}

    def record(path: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            calls[path] += 1
            widths[path] = output.shape[-1]

        return hook

    outputs = [path for block in blocks for path in (*(p.output for p in block.attention), block.feed_forward.output)]
    handles = [model.get_submodule(path).register_forward_hook(record(path)) for path in outputs]
    ids = torch.zeros((1, 2), dtype=torch.int64, device=next(model.parameters()).device)
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    try:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **decoder)
    finally:
        for handle in handles:
            handle.remove()
    skipped = next((path for path in outputs if calls[path] != 1), None)
    if skipped is not None:
        raise _refusal(model, f"{skipped} was computed {calls[skipped]} times in one pass, so an adapter has no place")
    if len(set(widths.values())) != 1:
        raise _refusal(model, f"its blocks write {sorted(set(widths.values()))} features, not one number")


def _refusal(model: nn.Module, reason: str) -> ModelError:
    return ModelError(
        f"{type(model).__name__} cannot be adapted this way: {reason}. "
        f"Families that can: {', '.join(ADAPTABLE_FAMILIES)}"
    )
