"""Stacked adapters laid out over the blocks of a decoder, from the lowest adapted one up.

The blocks below, the trunk, are the same for every row and are run for one. The others run for a leading public row,
where it is wanted, and one row an adapter: all at once, or some consecutive adapters at a time where a text is long.

Shape suffixes: G rows, N tokens in a row, T tokens in a text, D hidden size.
"""

from collections.abc import Iterator

from torch import Tensor

from reticent.layers.adapters import StackedAdapters, first_adapted_layer, group_by_layer
from reticent.layers.forward import Attend, BatchedDecoder


class AdaptedBlocks:
    """A decoder with the adapters of some worlds; carries no gradients.

    Attributes:
        num_adapters: M.
        trunk: the blocks that are the same for all rows.
        adapted: the others.
    """

    def __init__(self, decoder: BatchedDecoder, adapters: StackedAdapters) -> None:
        architecture = decoder.architecture
        grouped = group_by_layer(architecture, adapters.to(architecture.dtype, architecture.device))
        self._decoder = decoder
        self._layers = [[group and group.packed() for group in layer] for layer in grouped]
        lowest = first_adapted_layer(architecture, adapters.down)
        self.num_adapters = adapters.num_adapters
        self.trunk, self.adapted = range(lowest), range(lowest, decoder.num_layers)

    @property
    def first_attention_is_shared(self) -> bool:
        """True if the lowest adapter sits behind attention, so that its block's keys and values are the same too."""
        return self._layers[0][0] is None

    def run_trunk(self, tokens: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Embed tokens, int64[N] or [B, T], at the positions of a text and run the trunk; [1, N, D]."""
        embedded = self._decoder.embed(tokens, positions_T.expand_as(tokens)).view(1, tokens.numel(), -1)
        return self._decoder.run_layers(embedded, self.trunk, positions_T, attend)

    def run_public(self, trunk_1ND: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Run the adapted blocks without an adapter, for the public row alone: [1, N, D]."""
        return self._decoder.run_layers(trunk_1ND, self.adapted, positions_T, attend)

    def run_rows(
        self, trunk_1ND: Tensor, positions_T: Tensor, attend: Attend, skip: int, adapters: slice | None = None
    ) -> Tensor:
        """Run the adapted blocks for `skip` public rows and some consecutive adapters, by default all: [G, N, D]."""
        layers = self._layers
        if adapters is not None:
            layers = [[group and group.rows(adapters) for group in layer] for layer in layers]
        return self._decoder.run_layers(trunk_1ND, self.adapted, positions_T, attend, layers, skip)

    def parts(self, most_tokens: int, num_tokens: int, within: slice | None = None) -> Iterator[slice]:
        """Consecutive adapters whose rows of `num_tokens` make at most `most_tokens` together, but at least one."""
        start, stop, _ = (within or slice(None)).indices(self.num_adapters)
        at_once = max(1, most_tokens // num_tokens)
        for first in range(start, stop, at_once):
            yield slice(first, min(first + at_once, stop))
