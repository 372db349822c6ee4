"""The three bottleneck adapters as techniques: one class, made for a placement.

adapter-h   after self-attention and after the feed-forward part (Houlsby et al. 2019)
adapter-p   after the feed-forward part (Pfeiffer et al. 2021)
parallel    beside the feed-forward part (He et al. 2022)
"""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import safetensors
from torch import nn

from reticent.errors import ModelError
from reticent.training.checkpoint import save_tensors
from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.bottleneck import BottleneckModel, Placement
from reticent.training.techniques.interface import AdaptationTechnique

BOTTLENECK_NAME = "bottleneck.safetensors"


class BottleneckTechnique(AdaptationTechnique):
    """Bottleneck adapters at one placement."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        scaled = ("parallel_scale",) if placement is Placement.PARALLEL else ()
        self.settings_read = ("bottleneck", "dropout", *scaled)

    def is_on(self, module: nn.Module) -> bool:
        """True if the module has bottleneck adapters at this placement."""
        return isinstance(module, BottleneckModel) and module.placement is self.placement

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """New adapters in every block."""
        return BottleneckModel(
            model,
            self.placement,
            width=settings.bottleneck,
            scale=settings.parallel_scale if self.placement is Placement.PARALLEL else 1.0,
            dropout=settings.dropout,
        )

    def load(self, base: Any, settings: TechniqueSettings, folder: Path) -> nn.Module:
        """Stored adapters, which must be of this placement and of the settings' width."""
        module = load_bottleneck(base, folder)
        found, needed = (module.placement, module.width), (self.placement, settings.bottleneck)
        if found != needed:
            module.remove()
            raise ModelError(f"{folder} holds {found[0]} of width {found[1]}, not {needed[0]} of width {needed[1]}")
        return module

    def save(self, module: nn.Module, folder: Path) -> None:
        """Write the adapters, with their placement and scale, as one safetensors file."""
        adapted = _bottleneck(module)
        shape = {"placement": str(adapted.placement), "scale": adapted.scale, "width": adapted.width}
        # One entry: safetensors writes several in no fixed order.
        save_tensors(folder / BOTTLENECK_NAME, adapted.adapter_tensors(), {"adapter": json.dumps(shape)})

    def detach(self, module: nn.Module) -> Any:
        """Take the adapters off."""
        return _bottleneck(module).remove()

    def disabled(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which the adapters add nothing."""
        return _bottleneck(module).disabled()

    def base(self, module: nn.Module) -> Any:
        """The model that the adapters are attached to."""
        return _bottleneck(module).base

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The adapters' weights and biases."""
        return list(_bottleneck(module).adapters.parameters())


def load_bottleneck(base: Any, folder: Path) -> BottleneckModel:
    """Attach adapters that a bottleneck technique wrote to a base; their placement and shape are in the file.

    Raises:
        ModelError: the file is missing or damaged, or does not fit the base.
    """
    path = folder / BOTTLENECK_NAME
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            shape = json.loads(file.metadata()["adapter"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        placement, width, scale = Placement(shape["placement"]), int(shape["width"]), float(shape["scale"])
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise ModelError(f"{path} holds no bottleneck adapters: {error}") from None
    module = BottleneckModel(base, placement, width=width, scale=scale)
    try:
        module.load_adapter_tensors(tensors)
    except ModelError:
        module.remove()
        raise
    return module


def _bottleneck(module: nn.Module) -> BottleneckModel:
    assert isinstance(module, BottleneckModel)
    return module
