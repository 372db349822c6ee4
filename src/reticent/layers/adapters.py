"""LoRA adapters of many worlds as stacked tensors, and where in a base model they sit.

Shape suffixes: M adapters, R rank, I inputs, O outputs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reticent.errors import InvalidValueError
from reticent.layers.adapted_linear import GroupAdapters
from reticent.models.architecture import ALL_LINEAR_MODULES, ATTENTION_MODULES, Architecture, LinearGroup, LinearModule


@dataclass(frozen=True)
class StackedAdapters:
    """One LoRA adapter a world, stacked along a leading world dimension.

    Attributes:
        down: for each adapted module path the A matrices, [M, R, I].
        up: for the same paths the B matrices, [M, O, R].
        alpha: LoRA's alpha; the product B A is multiplied by alpha / R.
    """

    down: Mapping[str, Tensor]
    up: Mapping[str, Tensor]
    alpha: float

    @property
    def num_adapters(self) -> int:
        """M."""
        return next(iter(self.down.values())).shape[0]

    @property
    def rank(self) -> int:
        """R, the same in every module."""
        return next(iter(self.down.values())).shape[1]

    @property
    def scale(self) -> float:
        """Alpha / R."""
        return self.alpha / self.rank

    def to(self, dtype: torch.dtype, device: torch.device) -> "StackedAdapters":
        """The same adapters in another type or place."""
        return StackedAdapters(
            {path: tensor.to(device, dtype) for path, tensor in self.down.items()},
            {path: tensor.to(device, dtype) for path, tensor in self.up.items()},
            self.alpha,
        )

    def one(self, index: int) -> "StackedAdapters":
        """The adapter of one world, still with a leading dimension (of size 1)."""
        rows = slice(index, index + 1)
        return StackedAdapters(
            {path: tensor[rows] for path, tensor in self.down.items()},
            {path: tensor[rows] for path, tensor in self.up.items()},
            self.alpha,
        )


def select_modules(architecture: Architecture, names: Sequence[str], num_top_layers: int | None) -> list[LinearModule]:
    """The modules to adapt, in the order they are computed.

    Args:
        architecture: the base.
        names: last parts of module paths (`q_proj`), or `attention` (all projections of attention), or `all-linear`.
        num_top_layers: number of blocks to adapt, from the top; None for all.

    Raises:
        InvalidValueError: no module of that name, or more top layers than the base has.
    """
    num_layers = len(architecture.layers)
    count = num_layers if num_top_layers is None else num_top_layers
    if not 1 <= count <= num_layers:
        raise InvalidValueError(f"adapt-layers top:{count}: the base model has {num_layers} layers, choose 1 to that")
    chosen: list[LinearModule] = []
    available: set[str] = set()
    for layer in architecture.layers[num_layers - count :]:
        for position, group in enumerate(layer.groups):
            for module in group.modules:
                available.add(module.name)
                wanted = module.name in names or ALL_LINEAR_MODULES in names
                if wanted or (position < 2 and ATTENTION_MODULES in names):
                    chosen.append(module)
    unknown = set(names) - available - {ATTENTION_MODULES, ALL_LINEAR_MODULES}
    if unknown or not chosen:
        raise InvalidValueError(
            f"target-modules {', '.join(sorted(unknown)) or '(none)'}: the base model has "
            f"{', '.join(sorted(available))}; or use {ATTENTION_MODULES!r} or {ALL_LINEAR_MODULES!r}"
        )
    return chosen


def first_adapted_layer(architecture: Architecture, paths: Iterable[str]) -> int:
    """Index of the lowest block with an adapter: every block below is the same for all worlds.

    Raises:
        InvalidValueError: a path names no linear module of the base.
    """
    layer_of = {
        module.path: index
        for index, layer in enumerate(architecture.layers)
        for group in layer.groups
        for module in group.modules
    }
    paths = list(paths)
    unknown = [path for path in paths if path not in layer_of]
    if unknown:
        raise InvalidValueError(f"the base model has no linear module {unknown[0]!r} for an adapter to sit on")
    return min(layer_of[path] for path in paths)


def group_by_layer(architecture: Architecture, adapters: StackedAdapters) -> list[tuple[GroupAdapters | None, ...]]:
    """Arrange adapters for the forward pass: for each block from the lowest adapted one, one entry a linear group."""
    lowest = first_adapted_layer(architecture, adapters.down)
    return [tuple(_group_adapters(group, adapters) for group in layer.groups) for layer in architecture.layers[lowest:]]


def _group_adapters(group: LinearGroup, adapters: StackedAdapters) -> GroupAdapters | None:
    adapted = [module for module in group.modules if module.path in adapters.down]
    if not adapted:
        return None
    downs = [adapters.down[module.path] for module in adapted]
    return GroupAdapters(
        down_MSI=downs[0] if len(downs) == 1 else torch.cat(downs, dim=1),
        ups=tuple(adapters.up[module.path] for module in adapted),
        slices=tuple((module.start, module.stop) for module in adapted),
        scale=adapters.scale,
    )
