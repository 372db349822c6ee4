"""PEFT's LoRA layers without what they do for training's sake: for passes after which no weight is updated.

PEFT keeps adapters in float32, and in each layer widens the whole activation, and what it adds, to match. Here both
small products are in the base's own type, from an adapter rounded once: the same numbers in a float32 model, and in
half precision with the rounding that the model's own products have. Nothing is merged. Without a gradient (`lean_lora`)
the scale goes into the rounded copies, W x + B ((s A) x); with one (`round_lora_weights`) it goes onto the rank's few
numbers a token, W x + B (s (A x)), and A and B stay modules that hooks see.

Shape suffixes: I inputs, R rank, O outputs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@contextmanager
def lean_lora(module: nn.Module) -> Iterator[None]:
    """Within this context the LoRA layers of a module compute lean; anything but plain LoRA stays with PEFT.

    The module must stay in evaluation mode, and no thread may use it outside of the context meanwhile.
    """
    layers = _plain_layers(module)
    try:
        for layer in layers:
            layer.forward = _make_folded_product(layer)
        yield
    finally:
        _restore_forward(layers)


@contextmanager
def round_lora_weights(module: nn.Module) -> Iterator[None]:
    """Within this context the adapters of a module's LoRA layers are of the base's type, and so are their gradients.

    The same parameters, which hold their own values again afterwards: nothing may update them meanwhile. The module
    must stay in evaluation mode.
    """
    layers = _plain_layers(module)
    before: list[tuple[nn.Parameter, Tensor]] = []
    try:
        for layer in layers:
            name = layer.active_adapters[0]
            for weight in (layer.lora_A[name].weight, layer.lora_B[name].weight):
                before.append((weight, weight.data))
                weight.data = weight.data.to(layer.base_layer.weight.dtype)
            layer.forward = _make_scaled_product(layer)
        yield
    finally:
        _restore_forward(layers)
        for weight, values in before:
            weight.data = values


def _plain_layers(module: nn.Module) -> list[Any]:
    from peft.tuners.lora import Linear

    return [part for part in module.modules() if type(part) is Linear and _is_plain(part)]


def _is_plain(layer: Any) -> bool:
    """True if a layer adds one unmerged low-rank product and nothing else."""
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return False
    if not layer.base_layer.weight.is_floating_point():
        return False
    name = layer.active_adapters[0]
    return name in layer.lora_A and name not in layer.lora_variant and layer.lora_B[name].bias is None


def _restore_forward(layers: list[Any]) -> None:
    for layer in layers:
        layer.__dict__.pop("forward", None)


def _make_scaled_product(layer: Any) -> Callable[[Tensor], Tensor]:
    name = layer.active_adapters[0]
    base, down, up, scale = layer.base_layer, layer.lora_A[name], layer.lora_B[name], layer.scaling[name]

    def forward(x: Tensor) -> Tensor:
        y: Tensor = base(x) + up(scale * down(x))
        return y

    return forward


@torch.no_grad()
def _make_folded_product(layer: Any) -> Callable[[Tensor], Tensor]:
    name = layer.active_adapters[0]
    base = layer.base_layer
    dtype = base.weight.dtype
    down_RI = (layer.scaling[name] * layer.lora_A[name].weight).to(dtype)
    up_OR = layer.lora_B[name].weight.to(dtype)

    def forward(x: Tensor) -> Tensor:
        y: Tensor = base(x)
        return y + functional.linear(functional.linear(x, down_RI), up_OR)

    return forward
