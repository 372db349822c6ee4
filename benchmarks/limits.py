"""The least time a piece of work can take, from its operations and bytes and the machine's measured peaks.

Each part (base products, adapters, attention, head) takes at least the longer of its arithmetic and its reading; parts
follow one another. Element-wise work, Python and launches are counted as free, so no implementation reaches a limit.
"""

from dataclasses import dataclass

from benchmarks.machine import Machine
from reticent.layers.adapters import StackedAdapters, first_adapted_layer
from reticent.models.architecture import Architecture, Layer, LinearModule, QkvLayout


@dataclass(frozen=True)
class StepShape:
    """One pass over tokens: `tokens` new ones in each of `requests` contexts that hold `context` tokens afterwards."""

    requests: int = 1
    tokens: int = 1
    context: int = 1
    candidates: int = 200


def step_ms(architecture: Architecture, adapters: StackedAdapters, shape: StepShape, peaks: Machine) -> float:
    """The least time of a private step, or of reading a prompt (`tokens` = `context`; no logits if `candidates` = 0).

    What all rows share is counted once: everything as far as the input of the lowest adapted product. Of the last block
    only keys and values are needed at every token, the rest at the last token alone.
    """
    lowest = first_adapted_layer(architecture, adapters.down)
    itemsize = architecture.dtype.itemsize
    flops_peak = peaks.step_flops if shape.tokens == 1 and shape.requests == 1 else peaks.many_flops
    weights = [sum(group.weight_OI.numel() for group in layer.groups) for layer in architecture.layers]
    adapter = sum(t.numel() for t in (*adapters.down.values(), *adapters.up.values()))
    head = architecture.hidden_size * architecture.vocab_size if shape.candidates else 0
    chosen = adapters.num_adapters * architecture.hidden_size * shape.candidates
    kept = cache_bytes(architecture, adapters.num_adapters, lowest, shape.context)
    blocks = _operations(architecture, adapters, shape)

    def seconds(flops: float, num_bytes: float) -> float:
        return max(shape.requests * flops / flops_peak, num_bytes / peaks.bytes_read)

    parts = [
        seconds(sum(block.base for block in blocks[:lowest]), itemsize * sum(weights[:lowest])),
        seconds(sum(block.base for block in blocks[lowest:]), itemsize * sum(weights[lowest:])),
        seconds(sum(block.adapters for block in blocks), itemsize * adapter),
        seconds(sum(block.attention for block in blocks), shape.requests * kept),
        seconds(2.0 * (head + chosen), itemsize * head),
    ]
    return 1e3 * sum(parts)


@dataclass
class _BlockOperations:
    """Floating-point operations of one block for one request."""

    base: float = 0.0
    adapters: float = 0.0
    attention: float = 0.0


def _operations(architecture: Architecture, adapters: StackedAdapters, shape: StepShape) -> list[_BlockOperations]:
    """Walk through the blocks; all rows are one until an adapter tells them apart."""
    blocks, rows, tokens = [], 1, shape.tokens
    for index, layer in enumerate(architecture.layers):
        block, is_last, rows_entering = _BlockOperations(), index == len(architecture.layers) - 1, rows
        for group in layer.groups:
            # In a parallel block the feed-forward part reads what attention reads.
            beside = group is layer.mlp_input and layer.mlp_norm is None
            rows_read = rows_entering if beside else rows
            for module in group.modules:
                everywhere = _key_value_outputs(architecture, layer, module) if is_last else module.out_features
                outputs = everywhere * tokens + module.out_features - everywhere
                block.base += 2.0 * rows_read * module.in_features * outputs
                if module.path in adapters.down:
                    inputs = module.in_features * (tokens if everywhere else 1)
                    block.adapters += 2.0 * adapters.num_adapters * adapters.rank * (inputs + outputs)
                    rows = adapters.num_adapters + 1
            if group is layer.qkv:
                # A prompt attends to half of itself, its last token to all of it.
                pairs = shape.context if is_last or tokens == 1 else tokens * shape.context / 2
                block.attention = 4.0 * rows * pairs * architecture.num_heads * architecture.head_dim
        blocks.append(block)
    return blocks


def _key_value_outputs(architecture: Architecture, layer: Layer, module: LinearModule) -> int:
    """Count the outputs of a module that are keys or values."""
    if not any(module is other for other in layer.qkv.modules):
        return 0
    if architecture.qkv_layout is QkvLayout.PER_HEAD:
        return 2 * architecture.num_kv_heads * architecture.head_dim
    return max(0, module.stop - max(module.start, architecture.num_heads * architecture.head_dim))


def training_ms(architecture: Architecture, num_top: int, num_tokens: int, peaks: Machine) -> float:
    """The least time of one training step on tokens of any number of worlds, with the last `num_top` blocks adapted.

    A frozen weight takes part in the forward pass and in the gradient of its input: 4 operations a weight and token.
    """
    layers = architecture.layers[len(architecture.layers) - num_top :]
    weights = sum(group.weight_OI.numel() for layer in layers for group in layer.groups)
    head = architecture.hidden_size * architecture.vocab_size
    return 1e3 * 4.0 * num_tokens * (weights + head) / peaks.many_flops


def cache_bytes(architecture: Architecture, num_worlds: int, lowest: int, context: int) -> int:
    """Keys and values of one context: blocks below `lowest` once, the others for the public model and every world."""
    depth = len(architecture.layers)
    rows = lowest + (num_worlds + 1) * (depth - lowest)
    return 2 * context * rows * architecture.num_kv_heads * architecture.head_dim * architecture.dtype.itemsize


def memory_bytes(architecture: Architecture, adapters: StackedAdapters, context: int) -> int:
    """The arithmetic minimum: base (shared embeddings once), adapters and caches."""
    weights = [group.weight_OI for layer in architecture.layers for group in layer.groups]
    tables = {t.data_ptr(): t for t in (architecture.embedding_VD, architecture.head_VD)}
    base = sum(t.nbytes for t in (*weights, *tables.values()))
    stacked = sum(t.numel() for t in (*adapters.down.values(), *adapters.up.values())) * architecture.dtype.itemsize
    lowest = first_adapted_layer(architecture, adapters.down)
    return base + stacked + cache_bytes(architecture, adapters.num_adapters, lowest, context)
