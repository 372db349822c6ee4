"""The choice whether a training compiles the operations between its matrix products; see `models.compiled`.

Compiled or not, adapters differ by rounding, so a training keeps to one choice from its first step to its last.
"""

import torch

from reticent.errors import InvalidValueError
from reticent.models.architecture import Architecture
from reticent.models.compiled import why_not_compiled
from reticent.protocols import Progress

_FLOP_WORTH_COMPILING = 1.25e14
"""For each thread: about ten minutes. Compiling takes a minute and saves more than that."""


def decide_fusing(wanted: bool | None, flop: int, architecture: Architecture, progress: Progress) -> bool:
    """Decide whether a new training is compiled, and report it where compiling takes time.

    Args:
        wanted: what was asked for; None to compile where it pays, on a processor where it works.
        flop: floating-point operations of the whole training, over all worlds and epochs.
        architecture: the base, on the device to train on.
        progress: receives a note when something is compiled, or cannot be though it would pay.

    Raises:
        InvalidValueError: it was asked for, and not for a processor or nothing can be compiled.
    """
    if wanted is None and not _is_worth_compiling(flop, architecture):
        return False
    problem = None if wanted is False else _find_obstacle(architecture.device)
    if wanted is None and problem is not None:
        progress.note(f"training takes about a tenth longer than it could: {problem}")
        return False
    if problem is not None:
        raise InvalidValueError(f"--compile: {problem}; or leave the option out")
    return _report_choice(wanted is not False, progress)


def confirm_fusing(begun: bool, wanted: bool | None, architecture: Architecture, progress: Progress) -> bool:
    """Keep a resumed training to the choice that it was begun with.

    Args:
        begun: that choice.
        wanted: what is asked for now, if anything.
        architecture: see `decide_fusing`.
        progress: likewise.

    Raises:
        InvalidValueError: the opposite is asked for, or what was compiled cannot be any longer.
    """
    option = "--compile" if begun else "--no-compile"
    if wanted not in (None, begun):
        raise InvalidValueError(f"this training was begun with {option}; resume with that, or choose another --out")
    problem = _find_obstacle(architecture.device) if begun else None
    if problem is not None:
        raise InvalidValueError(
            f"this training was begun compiled and cannot continue otherwise: {problem}; or begin again with "
            "--no-compile and another --out"
        )
    return _report_choice(begun, progress)


def _is_worth_compiling(flop: int, architecture: Architecture) -> bool:
    """True if the training is long, on a processor, and some of what is compiled occurs in its blocks."""
    occurs = architecture.rotary is not None or any(
        layer.attention_norm.rms or layer.activation is None for layer in architecture.layers
    )
    is_long = flop >= _FLOP_WORTH_COMPILING * torch.get_num_threads()
    return occurs and is_long and architecture.device.type == "cpu"


def _find_obstacle(device: torch.device) -> str | None:
    """Find what keeps training on a device from being compiled, and what would help; None if nothing does."""
    if device.type != "cpu":
        return f"only training on a processor is compiled, not on {device}; train with --device cpu"
    reason = why_not_compiled()
    if reason is None:
        return None
    return (
        f"nothing can be compiled here ({reason}); that takes a C++ compiler such as g++, Python's headers (Python.h), "
        "and a cache folder that can be written (TORCHINDUCTOR_CACHE_DIR, else ~/.cache/reticent/compiled)"
    )


def _report_choice(fuse: bool, progress: Progress) -> bool:
    if fuse:
        progress.note("element-wise work is compiled, which takes up to a minute the first time")
    return fuse
