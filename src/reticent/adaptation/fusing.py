"""Whether a training is long enough to compile what stands between its matrix products; see `ensemble.fused`."""

import torch

from reticent.ensemble.fused import can_compile
from reticent.errors import InvalidValueError
from reticent.protocols import Progress

_FLOP_WORTH_COMPILING = 1.25e14
"""For each thread: about ten minutes. Compiling takes a minute and saves more than that."""


def chooses_to_fuse(wanted: bool | None, flop: int, device: torch.device, progress: Progress) -> bool:
    """Whether to fuse; says so where it takes time.

    Args:
        wanted: what was asked for; None to compile where it pays, on a processor with a compiler.
        flop: floating-point operations of the whole training, over all worlds and epochs.
        device: where to train.
        progress: told when something is compiled, or would be if there were a compiler.

    Raises:
        InvalidValueError: it was asked for, and not for a processor or no compiler works.
    """
    on_processor = device.type == "cpu"
    if wanted is None:
        wanted = on_processor and flop >= _FLOP_WORTH_COMPILING * torch.get_num_threads()
        if wanted and not can_compile():
            progress.note("no C++ compiler at hand: with one, training would take about a tenth less time")
            return False
    elif wanted and not on_processor:
        raise InvalidValueError(f"--compile is for training on a processor, not on {device}; leave the option out")
    elif wanted and not can_compile():
        raise InvalidValueError("--compile: no working C++ compiler found; install g++, or leave the option out")
    if wanted:
        progress.note("element-wise work is compiled, which takes up to a minute the first time")
    return wanted
