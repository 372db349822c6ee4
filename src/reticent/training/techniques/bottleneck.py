"""Bottleneck adapters: a small network beside a frozen one, placed after Houlsby, after Pfeiffer, or in parallel.

An adapter computes s · W_up relu(W_down x), with W_up zero at the start, so that an adapted model begins as its base,
bit for bit. It is added to the output of the last projection of a part of a block, before the residual sum:

    sequential (Houlsby et al. 2019; Pfeiffer et al. 2021): x is that output itself, and s = 1
    parallel (He et al. 2022, table 1): x is what the feed-forward part reads

Adapters are attached to the base's modules by hooks. The base's modules, parameters and their names stay as they
are, and removing the hooks leaves nothing behind. Weights are float32 whatever the base is, and so is the sum with
what the base computed, which is then rounded to the base's type.

Shape suffixes: D hidden size, N any leading dimensions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError
from reticent.models.sublayers import Block, find_blocks
from reticent.training.wrapping import BaseWrapper


class Placement(StrEnum):
    """The place of an adapter in every block; named as the techniques are."""

    HOULSBY = "adapter-h"  # after self-attention and after the feed-forward part
    PFEIFFER = "adapter-p"  # after the feed-forward part
    PARALLEL = "parallel"  # beside the feed-forward part


class Bottleneck(nn.Module):
    """One adapter: D features to a few and back, float32.

    Args:
        hidden_size: D.
        width: features in between.
        scale: what the output is multiplied by.
        dropout: on the input, while training.
    """

    def __init__(self, hidden_size: int, width: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.down = nn.Linear(hidden_size, width, dtype=torch.float32)
        self.up = nn.Linear(width, hidden_size, dtype=torch.float32)
        self.dropout = nn.Dropout(dropout)
        self.scale = scale
        self.enabled = True
        self._input_ND: Tensor | None = None
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Compute the adapter's addition, float32[N, D]."""
        added: Tensor = self.up(torch.relu(self.down(self.dropout(x_ND.float())))) * self.scale
        return added

    def after(self, _module: nn.Module, _inputs: Any, output_ND: Tensor) -> Tensor:
        """Forward hook of a part's last projection: adapt its output."""
        return self._add(output_ND, output_ND)

    def read(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Hook before a part's first projection: keep what the part reads."""
        self._input_ND = inputs[0]

    def beside(self, _module: nn.Module, _inputs: Any, output_ND: Tensor) -> Tensor:
        """Forward hook of a part's last projection: add to its output what was made of its input."""
        assert self._input_ND is not None, "the part's first projection comes first"
        kept, self._input_ND = self._input_ND, None
        return self._add(output_ND, kept)

    def _add(self, output_ND: Tensor, x_ND: Tensor) -> Tensor:
        return (output_ND + self(x_ND)).to(output_ND.dtype) if self.enabled else output_ND


class BottleneckModel(BaseWrapper):
    """A frozen base with a bottleneck adapter at each place; called like the base, and asked for anything else too."""

    def __init__(
        self, base: Any, placement: Placement, *, width: int, scale: float = 1.0, dropout: float = 0.0
    ) -> None:
        """Attach new adapters to `base`, whose parameters become frozen.

        Args:
            base: a `transformers` causal or encoder-decoder model.
            placement: where the adapters sit.
            width: features in the middle of each.
            scale: multiplies what the parallel adapters add; sequential ones have none.
            dropout: on what adapters read, while training.

        Raises:
            ModelError: the base has parts that are not understood.
        """
        super().__init__()
        blocks = find_blocks(base)
        self.base = base.requires_grad_(requires_grad=False)
        self.placement = placement
        self.scale = scale if placement is Placement.PARALLEL else 1.0
        self.width = width
        self.places = _places(blocks, placement)
        self.adapters = nn.ModuleList()
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        for reads, writes in self.places:
            parallel = placement is Placement.PARALLEL
            adapter = Bottleneck(_width_of(base, writes), width, self.scale, dropout)
            adapter.to(next(base.get_submodule(writes).parameters()).device)
            self.adapters.append(adapter)
            if parallel:
                self._handles.append(base.get_submodule(reads).register_forward_pre_hook(adapter.read))
            hook = adapter.beside if parallel else adapter.after
            self._handles.append(base.get_submodule(writes).register_forward_hook(hook))
        self.train(base.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The base's forward, adapted."""
        return self.base(*args, **kwargs)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within this context the model computes what its base does, bit for bit."""
        self._enable(enabled=False)
        try:
            yield
        finally:
            self._enable(enabled=True)

    def remove(self) -> Any:
        """Take the adapters off, for good, and return the base."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        return self.base

    def adapter_tensors(self) -> dict[str, Tensor]:
        """The adapters' weights by the path of the module that each writes to."""
        return {
            f"{writes}.{name}": tensor.detach().cpu().contiguous()
            for (_, writes), adapter in zip(self.places, self.adapters, strict=True)
            for name, tensor in adapter.state_dict().items()
        }

    def load_adapter_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Take over weights that `adapter_tensors` gave.

        Raises:
            ModelError: a weight is missing, unknown or of another shape.
        """
        expected = {name: tuple(tensor.shape) for name, tensor in self.adapter_tensors().items()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if different:
            name = different[0]
            raise ModelError(
                f"these adapters do not fit this base and these settings: {len(different)} weights differ, {name} "
                f"among them (needed {expected.get(name)}, stored {found.get(name)}); use the base "
                "and the settings they were trained with"
            )
        for (_, writes), adapter in zip(self.places, self.adapters, strict=True):
            adapter.load_state_dict({name: tensors[f"{writes}.{name}"] for name in adapter.state_dict()})

    def _enable(self, *, enabled: bool) -> None:
        for adapter in self.adapters:
            assert isinstance(adapter, Bottleneck)
            adapter.enabled = enabled


def _places(blocks: tuple[Block, ...], placement: Placement) -> tuple[tuple[str, str], ...]:
    """For each adapter the module whose input it may read and the module whose output it adds to."""
    places: list[tuple[str, str]] = []
    for block in blocks:
        if placement is Placement.HOULSBY:
            places += [(part.query_key_value[0], part.output) for part in block.attention if not part.is_cross]
        places.append((block.feed_forward.inputs[0], block.feed_forward.output))
    return tuple(places)


def _width_of(base: nn.Module, path: str) -> int:
    """Features that a linear module writes; GPT-2's stores its weight as [in, out]."""
    module: Any = base.get_submodule(path)
    return int(module.out_features if isinstance(module, nn.Linear) else module.nf)
