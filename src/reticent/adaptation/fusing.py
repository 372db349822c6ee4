"""Whether a training is long enough to compile what stands between its matrix products; see `ensemble.fused`."""

import torch

from reticent.adaptation.settings import LoraSettings
from reticent.ensemble.adapters import first_adapted_layer, select_modules
from reticent.ensemble.architecture import Architecture
from reticent.ensemble.fused import can_compile
from reticent.errors import InvalidValueError
from reticent.protocols import Progress

_FLOP_WORTH_COMPILING = 1.25e14
"""For each thread: about ten minutes. Compiling takes a minute and saves more than that."""


def chooses_to_fuse(
    wanted: bool | None, architecture: Architecture, lora: LoraSettings, num_tokens: int, progress: Progress
) -> bool:
    """Whether to fuse; says so where it takes time.

    Args:
        wanted: what was asked for; None to compile where it pays, on a processor with a compiler.
        architecture: the base.
        lora: which of its blocks are adapted.
        num_tokens: tokens trained on, over all worlds and epochs.
        progress: told when something is compiled, or would be if there were a compiler.

    Raises:
        InvalidValueError: it was asked for, and no compiler works.
    """
    if wanted is None:
        work = num_tokens * training_flop(architecture, lora)
        wanted = architecture.device.type == "cpu" and work >= _FLOP_WORTH_COMPILING * torch.get_num_threads()
        if wanted and not can_compile():
            progress.note("no C++ compiler at hand: with one, training would take about a tenth less time")
            return False
    elif wanted and not can_compile():
        raise InvalidValueError("--compile: no working C++ compiler found; install g++, or leave the option out")
    if wanted:
        progress.note("element-wise work is compiled, which takes up to a minute the first time")
    return wanted


def training_flop(architecture: Architecture, lora: LoraSettings) -> int:
    """Floating-point operations a token in the frozen products of adapted blocks and vocabulary, forward and back."""
    modules = select_modules(architecture, lora.target_modules, lora.num_top_layers)
    lowest = first_adapted_layer(architecture, [module.path for module in modules])
    weights = [group.weight_OI for layer in architecture.layers[lowest:] for group in layer.groups]
    return 4 * sum(weight.numel() for weight in (*weights, architecture.head_VD))
