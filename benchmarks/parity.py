"""Is the answer right? Asked before any timing, since a fast wrong answer is an error.

The reference is the base model's own class with one world's adapter added by forward hooks, in nothing but plain
`torch` products: no code is shared with what is measured.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reticent.ensemble.adapters import StackedAdapters

Floats = NDArray[np.floating]

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 8e-2}
_SHARE_OF_EFFECT = 0.5


class ParityError(Exception):
    """What is to be timed does not compute what its peer computes."""


def require(holds: bool, message: str) -> None:
    """Raise `ParityError` unless a condition holds."""
    if not holds:
        raise ParityError(message)


def require_close(what: str, ours: Floats, theirs: Floats, tolerance: float) -> None:
    """Raise unless ‖ours − theirs‖ ≤ tolerance · ‖theirs‖."""
    error = float(np.linalg.norm(ours.astype(np.float64) - theirs) / max(float(np.linalg.norm(theirs)), 1e-300))
    require(error <= tolerance, f"{what}: differs from the reference by {error:.2%}, allowed are {tolerance:.2%}")


def tolerance_of(dtype: torch.dtype) -> float:
    """How far logits in a type may be off, as a share of their norm once centred."""
    return _TOLERANCE[dtype]


def require_same_worlds(
    what: str, ours_WK: Floats, theirs_WK: Floats, public_K: Floats, dtype: torch.dtype, offset: int = 0
) -> None:
    """Raise unless each world's logits at the candidates agree, and so do the votes where rounding cannot decide them.

    Logits are compared centred, as a common shift changes no vote. The difference must also be small beside what the
    adapters change, or a computation that forgets the adapters would pass.
    """
    public = _centred(public_K)
    for world, (ours, theirs) in enumerate(zip(_centred(ours_WK), _centred(theirs_WK), strict=True), start=offset):
        error, effect = np.linalg.norm(ours - theirs), np.linalg.norm(theirs - public)
        require_close(f"{what}, world {world}", ours, theirs, tolerance_of(dtype))
        require(
            bool(error <= _SHARE_OF_EFFECT * effect),
            f"{what}, world {world}: the error {error:.3g} is not small beside the adapter's effect {effect:.3g}",
        )
        margin = theirs.max() - theirs[ours.argmax()]
        slack = 2 * np.abs(ours - theirs).max()
        require(bool(margin <= slack), f"{what}, world {world}: another vote than the reference's, by {margin:.3g}")


def few_worlds(num_worlds: int) -> list[int]:
    """The worlds that are compared: the first, the last and one between."""
    return sorted({0, num_worlds // 2, num_worlds - 1})


@contextmanager
def one_world(model: Any, adapters: StackedAdapters, world: int) -> Iterator[None]:
    """Make a `transformers` model compute y = W x + scale · B (A x) with one world's matrices."""

    def hook(path: str) -> Any:
        down, up = adapters.down[path][world], adapters.up[path][world]
        return lambda _module, inputs, output: output + adapters.scale * (inputs[0] @ down.mT @ up.mT)

    handles = [model.get_submodule(path).register_forward_hook(hook(path)) for path in adapters.down]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def reference_logits(model: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Next-token logits after a whole sequence, without a cache, float32[V]."""
    ids = torch.tensor([list(tokens)], device=model.device)
    logits: NDArray[np.float32] = model(input_ids=ids, use_cache=False).logits[0, -1].float().cpu().numpy()
    return logits


def reference_worlds(
    model: Any, adapters: StackedAdapters, worlds: Sequence[int], tokens: Sequence[int]
) -> NDArray[np.float32]:
    """`reference_logits` of some worlds, float32[len(worlds), V]."""
    rows = []
    for world in worlds:
        with one_world(model, adapters, world):
            rows.append(reference_logits(model, tokens))
    return np.stack(rows)


def _centred(logits: Floats) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    centred: NDArray[np.float64] = wide - wide.mean(axis=-1, keepdims=True)
    return centred
