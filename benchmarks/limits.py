"""The least time a piece of work can take, from its operations and bytes and the machine's measured peaks.

Each part (base products, adapters, attention, head) takes at least the longer of its arithmetic and its reading; parts
follow one another. Element-wise work, Python and launches are counted as free, so no implementation reaches a limit.
"""

from dataclasses import dataclass

from benchmarks.machine import Machine
from reticent.ensemble.adapters import StackedAdapters, first_adapted_layer
from reticent.ensemble.architecture import Architecture


@dataclass(frozen=True)
class StepShape:
    """One pass over tokens: `tokens` new ones in each of `requests` contexts that hold `context` tokens afterwards."""

    requests: int = 1
    tokens: int = 1
    context: int = 1
    candidates: int = 200


def step_ms(architecture: Architecture, adapters: StackedAdapters, shape: StepShape, peaks: Machine) -> float:
    """The least time of a private step, or of reading a prompt (`tokens` = `context`)."""
    lowest = first_adapted_layer(architecture, adapters.down)
    depth = len(architecture.layers)
    rows = adapters.num_adapters + 1
    itemsize = architecture.dtype.itemsize
    flops_peak = peaks.step_flops if shape.tokens == 1 and shape.requests == 1 else peaks.many_flops
    num_tokens = shape.requests * shape.tokens
    weights = [sum(group.weight_OI.numel() for group in layer.groups) for layer in architecture.layers]
    trunk, adapted = sum(weights[:lowest]), sum(weights[lowest:])
    adapter = sum(t.numel() for t in (*adapters.down.values(), *adapters.up.values()))
    width, vocabulary = architecture.hidden_size, architecture.vocab_size

    def seconds(flops: float, num_bytes: float) -> float:
        return max(flops / flops_peak, num_bytes / peaks.bytes_read)

    parts = [
        seconds(2.0 * num_tokens * trunk, itemsize * trunk),
        seconds(2.0 * num_tokens * rows * adapted, itemsize * adapted),
        seconds(2.0 * num_tokens * adapter, itemsize * adapter),
        seconds(*_attention(architecture, shape, lowest + rows * (depth - lowest))),
        seconds(2.0 * shape.requests * width * vocabulary, itemsize * width * vocabulary),
        seconds(2.0 * shape.requests * rows * width * shape.candidates, itemsize * width * shape.candidates),
    ]
    return 1e3 * sum(parts)


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


def _attention(architecture: Architecture, shape: StepShape, row_layers: int) -> tuple[float, float]:
    """Operations and bytes of attention over `row_layers` rows of blocks; a prompt attends to half of itself."""
    reached = shape.context if shape.tokens == 1 else shape.context / 2
    per_row = shape.requests * shape.tokens * reached * architecture.num_heads * architecture.head_dim
    kept = 2 * shape.context * architecture.num_kv_heads * architecture.head_dim * architecture.dtype.itemsize
    return 4.0 * row_layers * per_row, float(row_layers * shape.requests * kept)
