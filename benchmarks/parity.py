"""Parity checks before any timing, since a fast wrong answer is an error.

The reference is the base model's own class with one world's adapter added by forward hooks, in plain `torch` products:
no code is shared with what is measured. It is computed twice: in float32, which counts as exact, and in the type that
is timed, which shows what rounding alone does. A computation is right if

* it is about as close to the exact logits as the peer in the same type (at most twice its largest error), and
* each world is closer to itself than to the bare base and to every other world compared, so that forgotten, exchanged
  or copied adapters cannot hide behind rounding. Decode rows compare all worlds.

Logits are compared at the candidates and centred: a common shift changes no vote. Votes then agree wherever the exact
margin is more than twice the largest error.

Shape suffixes: W compared worlds, K candidates, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.workspace import Workspace
from reticent.engine.engine import Engine, EngineContext
from reticent.layers.adapters import StackedAdapters

Floats = NDArray[np.floating]

_TIMES_PEER_ERROR = 2.0
_FLOAT32_ERROR = 1e-3
_WORLDS_A_PASS = 16
_LEAST_COMPARED = 200
"""Logits compared even where a trial run has fewer candidates: of few, rounding can hide which world it is."""


class ParityError(Exception):
    """A failed parity check: the two sides to be timed do not compute the same."""


def require(holds: bool, message: str) -> None:
    """Raise `ParityError` unless a condition holds."""
    if not holds:
        raise ParityError(message)


def require_close(what: str, ours: Floats, theirs: Floats, tolerance: float) -> None:
    """Raise unless ‖ours − theirs‖ ≤ tolerance · ‖theirs‖."""
    error = float(np.linalg.norm(ours.astype(np.float64) - theirs) / max(float(np.linalg.norm(theirs)), 1e-300))
    require(error <= tolerance, f"{what}: differs from the reference by {error:.2%}, allowed are {tolerance:.2%}")


@dataclass(frozen=True)
class ReferenceLogits:
    """Next-token logits after one token sequence, at the exact public model's candidates.

    Row 0 is the public model, then come the compared worlds; `exact` in float32, `peer` in the type that is timed.
    """

    worlds: tuple[int, ...]
    candidates_K: NDArray[np.int64]
    exact: NDArray[np.float64]
    peer: NDArray[np.float64]

    @classmethod
    def compute(
        cls,
        workspace: Workspace,
        adapters: StackedAdapters,
        tokens: Sequence[int],
        worlds: Sequence[int] | None = None,
    ) -> "ReferenceLogits":
        """Run the base's own class over the tokens, bare and with the adapters of some worlds; a few by default."""
        worlds = few_worlds(adapters.num_adapters) if worlds is None else tuple(worlds)
        exact = _rows(workspace.exact_model, adapters, worlds, tokens)
        peer = _rows(workspace.model, adapters, worlds, tokens)
        candidates_K = likeliest(exact[0], max(workspace.sizes.num_candidates, _LEAST_COMPARED))
        return cls(worlds, candidates_K, _centre(exact[:, candidates_K]), _centre(peer[:, candidates_K]))

    def require_engine(self, what: str, engine: Engine, context: EngineContext) -> None:
        """Raise unless an engine's context has the right logits."""
        public_K = engine.public_logits(context)[self.candidates_K]
        worlds_WK = engine.world_logits(context, self.candidates_K)[list(self.worlds)]
        self.require_rows(what, np.concatenate([public_K[None], worlds_WK]))

    def require_rows(self, what: str, logits: Floats) -> None:
        """Raise unless these logits, public model first, are right."""
        names = [f"{what}, public model", *(f"{what}, world {world}" for world in self.worlds)]
        require_nearest(names, _centre(logits), self.exact, self.peer)


def require_nearest(names: Sequence[str], rows: Floats, exact: Floats, peer: Floats) -> None:
    """Raise unless each row is about as close to the exact one as the peers' are, and closer than to any other."""
    noise = float(np.linalg.norm(peer - exact, axis=1).max())
    for place, (name, row) in enumerate(zip(names, rows, strict=True)):
        distances = np.linalg.norm(row - exact, axis=1)
        error = float(distances[place])
        allowed = _TIMES_PEER_ERROR * noise + _FLOAT32_ERROR * float(np.linalg.norm(exact[place]))
        require(error <= allowed, f"{name}: is off by {error:.3g}, rounding explains {allowed:.3g}")
        others = np.delete(distances, place)
        require(error < others.min(), f"{name}: is as close to another world as to itself")


def likeliest(logits_V: Floats, count: int) -> NDArray[np.int64]:
    """The tokens of largest logits in ascending order, the lower ones among equals at the edge; int64[count]."""
    return np.sort(np.argsort(-logits_V, kind="stable")[:count]).astype(np.int64, copy=False)


def few_worlds(num_worlds: int) -> tuple[int, ...]:
    """The worlds that are compared where all would take too long: the first, the last and one between."""
    return tuple(sorted({0, num_worlds // 2, num_worlds - 1}))


@torch.inference_mode()
def _rows(model: Any, adapters: StackedAdapters, worlds: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits after the whole sequence, without a cache: bare, then with each world's adapter; float32[1 + W, V]."""
    ids = torch.tensor([list(tokens)], device=model.device)

    def last(num_rows: int) -> NDArray[np.float32]:
        # Not `logits_to_keep`: on a processor the head is slow for the last tokens of several rows in bfloat16.
        out = model(input_ids=ids.expand(num_rows, -1), use_cache=False)
        logits: NDArray[np.float32] = out.logits[:, -1].float().cpu().numpy()
        return logits

    rows = [last(1)]
    for start in range(0, len(worlds), _WORLDS_A_PASS):
        some = worlds[start : start + _WORLDS_A_PASS]
        with _one_world_a_row(model, adapters, some):
            rows.append(last(len(some)))
    return np.concatenate(rows)


@contextmanager
def _one_world_a_row(model: Any, adapters: StackedAdapters, worlds: Sequence[int]) -> Iterator[None]:
    """Make a `transformers` model compute y = W x + scale · B (A x), each row of a batch with one world's matrices."""

    def hook(path: str) -> Any:
        stacked = (side[path][list(worlds)].to(model.device, model.dtype) for side in (adapters.down, adapters.up))
        down, up = (matrices.mT.contiguous() for matrices in stacked)
        return lambda _module, inputs, output: output + adapters.scale * (inputs[0] @ down @ up)

    handles = [model.get_submodule(path).register_forward_hook(hook(path)) for path in adapters.down]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _centre(logits: Floats) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    centred: NDArray[np.float64] = wide - wide.mean(axis=-1, keepdims=True)
    return centred
