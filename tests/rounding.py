"""The one rule by which tests compare the order of numbers that were computed along two paths.

Sums of floating-point numbers depend on the order in which a processor's kernels add them. So tests compare logits
within a tolerance t: |a − b| ≤ t + t·|b|. Each of two logits may be off by as much, so two that are nearer to each
other than what both may be off stand in either order, and no others do. Ranks and the places of the largest are
compared by that. Where one choice decides all that follows, as in a text that is generated, only clear choices are
compared.

Shape suffixes: N rows, V values, K values kept, M worlds.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reticent.decoding.votes import Decoder, DecodingSettings, top_candidates
from reticent.randomness import PublicCoins

CLOSE = 2e-4
"""How far logits of the tiny float32 models may be off; in truth it is about 1e-6."""
DECIDED = 2e-5
"""The same where nothing but decided choices will do, and few are to be refused."""


def may_be_off(values: NDArray[Any], tolerance: float) -> NDArray[np.float64]:
    """How far each value may be off."""
    return tolerance * (1.0 + np.abs(values.astype(np.float64)))


def enlarged(peer_NV: NDArray[Any], exact_NV: NDArray[Any], tolerance: float = CLOSE) -> float:
    """A tolerance for inputs whose rounding a model enlarges, as a norm does of nearly equal numbers.

    `peer_NV` is another float32 computation of the exact numbers `exact_NV`; ours may be ten times as far off.
    """
    return tolerance + 10.0 * float(np.abs(peer_NV - exact_NV).max())


def possible_ranks(values_NV: ArrayLike, places_N: ArrayLike, tolerance: float = CLOSE) -> tuple[Any, Any]:
    """The lowest and highest number of values that may be above the one at each row's place; int64[N] each."""
    values, places = np.asarray(values_NV, np.float64), np.asarray(places_N)
    off = may_be_off(values, tolerance)
    own, own_off = (np.take_along_axis(numbers, places[:, None], axis=1) for numbers in (values, off))
    lead, allowed = values - own, off + own_off
    return (lead > allowed).sum(1), (lead >= -allowed).sum(1) - 1


def assert_possible_ranks(ranks_N: ArrayLike, values_NV: ArrayLike, places_N: ArrayLike, tolerance: float) -> None:
    """Each rank is that of the value at the row's place, but for exchanges among values closer than rounding."""
    lowest, highest = possible_ranks(values_NV, places_N, tolerance)
    ranks = np.asarray(ranks_N)
    assert ranks.shape == lowest.shape
    assert ((lowest <= ranks) & (ranks <= highest)).all(), f"ranks {ranks}, possible are {lowest} to {highest}"


def assert_largest(places_NK: ArrayLike, values_NV: ArrayLike, tolerance: float = CLOSE) -> None:
    """The places of each row, one or K, hold its largest values, but for exchanges closer than rounding."""
    values = np.asarray(values_NV, np.float64)
    places, off = np.asarray(places_NK).reshape(len(values), -1), may_be_off(values, tolerance)
    for row, (mine, numbers, allowed) in enumerate(zip(places, values, off, strict=True)):
        assert len(set(mine.tolist())) == len(mine), f"row {row} names one place twice: {mine}"
        others = np.delete(np.arange(numbers.size), mine)
        larger = others[(numbers - allowed)[others] > (numbers + allowed)[mine].min()]
        assert not larger.size, f"row {row}: {mine} leaves out larger ones: {larger}"


def clear_largest(values_V: ArrayLike, count: int = 1, tolerance: float = DECIDED) -> list[int] | None:
    """The places of the `count` largest values in ascending order; None where rounding could name others."""
    values = np.asarray(values_V, np.float64)
    order = np.argsort(-values, kind="stable")
    edge = values[order[count - 1 : count + 1]]
    if edge.size == 2 and edge[0] - edge[1] <= may_be_off(edge, tolerance).sum():
        return None
    return sorted(order[:count].tolist())


def decided_votes(
    ensemble: Any,
    context: Any,
    settings: DecodingSettings,
    coins: PublicCoins,
    step: int,
    tolerance: float = DECIDED,
) -> NDArray[np.bool_]:
    """Worlds whose vote rounding cannot change: candidates and first choice are clear of what comes next; bool[M]."""
    public_V, count = ensemble.public_logits(context), settings.num_candidates
    logits_MK = ensemble.world_logits(context, top_candidates(public_V, count)).astype(np.float64)
    if clear_largest(public_V, count, tolerance) is None:
        return np.zeros(len(logits_MK), np.bool_)
    off = may_be_off(logits_MK, tolerance)
    scores = logits_MK
    if settings.decoder is Decoder.GUMBEL:
        scores = logits_MK + settings.temperature * coins.gumbel(step, count)
    first = np.arange(count) == scores.argmax(1)[:, None]
    runner_up = np.where(first, -np.inf, scores + off).max(1)
    return (scores - off)[first] > runner_up
