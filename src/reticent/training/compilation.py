"""True if a training compiles what stands between its matrix products; see `models.compiled`.

Compiled or not, adapters differ by rounding, so a training keeps to one choice from its first step to its last.
"""

import torch

from reticent.errors import InvalidValueError
from reticent.models.architecture import Architecture
from reticent.models.compiled import why_not_compiled
from reticent.protocols import Progress

_FLOP_WORTH_COMPILING = 1.25e14
"""For each thread: about ten minutes. Compiling takes a minute and saves more than that."""


def chooses_to_fuse(wanted: bool | None, flop: int, architecture: Architecture, progress: Progress) -> bool:
    """True if a training that begins is to be compiled; says so where it takes time.

    Args:
        wanted: what was asked for; None to compile where it pays, on a processor where it works.
        flop: floating-point operations of the whole training, over all worlds and epochs.
        architecture: the base, on the device to train on.
        progress: told when something is compiled, or would be if it could.

    Raises:
        InvalidValueError: it was asked for, and not for a processor or nothing can be compiled.
    """
    if wanted is None and not _pays(flop, architecture):
        return False
    problem = None if wanted is False else _problem(architecture.device)
    if wanted is None and problem is not None:
        progress.note(f"training takes about a tenth longer than it could: {problem}")
        return False
    if problem is not None:
        raise InvalidValueError(f"--compile: {problem}; or leave the option out")
    return _announce(wanted is not False, progress)


def keeps_fusing(begun: bool, wanted: bool | None, architecture: Architecture, progress: Progress) -> bool:
    """The choice that an interrupted training was begun with, for the rest of it.

    Args:
        begun: that choice.
        wanted: what is asked for now, if anything.
        architecture: see `chooses_to_fuse`.
        progress: likewise.

    Raises:
        InvalidValueError: the opposite is asked for, or what was compiled cannot be any longer.
    """
    option = "--compile" if begun else "--no-compile"
    if wanted not in (None, begun):
        raise InvalidValueError(f"this training was begun with {option}; resume with that, or choose another --out")
    problem = _problem(architecture.device) if begun else None
    if problem is not None:
        raise InvalidValueError(
            f"this training was begun compiled and goes on no other way: {problem}; or begin again with --no-compile "
            "and another --out"
        )
    return _announce(begun, progress)


def _pays(flop: int, architecture: Architecture) -> bool:
    """True if the training is long, on a processor, and some of what is compiled occurs in its blocks."""
    occurs = architecture.rotary is not None or any(
        layer.attention_norm.rms or layer.activation is None for layer in architecture.layers
    )
    is_long = flop >= _FLOP_WORTH_COMPILING * torch.get_num_threads()
    return occurs and is_long and architecture.device.type == "cpu"


def _problem(device: torch.device) -> str | None:
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


def _announce(fuse: bool, progress: Progress) -> bool:
    if fuse:
        progress.note("element-wise work is compiled, which takes up to a minute the first time")
    return fuse
