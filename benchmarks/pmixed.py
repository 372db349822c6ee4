"""Row on PMixED: all experts' projections at once against a plain bisection for each."""

import numpy as np
from numpy.typing import NDArray

from benchmarks import parity, pmixed_oracle
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import time_in_turn
from benchmarks.workspace import Workspace
from experiments.studies.pmixed import mixing_weights, projection_orders

_NUM_EXPERTS = 32
_MAX_ORDER = 2
_BETA = 1e-3
_TOLERANCE = 1e-5
_EXPERTS_TIMED = 2


def projection(workspace: Workspace) -> Measured:
    """One token's projections over the whole vocabulary, α = 2."""
    generator = np.random.default_rng(workspace.seed)
    public_logits_V = 3.0 * generator.standard_normal(workspace.architecture.vocab_size)
    shifts_NV = 0.6 * generator.standard_normal((_NUM_EXPERTS, public_logits_V.size))
    public_V, experts_NV = _softmax(public_logits_V), _softmax(public_logits_V + shifts_NV)
    orders = projection_orders(_MAX_ORDER)
    plain_N = pmixed_oracle.mixing_weights(experts_NV[:_EXPERTS_TIMED], public_V, _BETA, orders)
    ours_N = mixing_weights(experts_NV, public_V, _BETA, orders)
    parity.require_close("mixing weights", ours_N[:_EXPERTS_TIMED], plain_N, _TOLERANCE)
    times = time_in_turn(
        lambda: mixing_weights(experts_NV, public_V, _BETA, orders),
        lambda: pmixed_oracle.mixing_weights(experts_NV[:_EXPERTS_TIMED], public_V, _BETA, orders),
        workspace.sizes.heavy_pairs,
    )
    notes = f"the plain way is timed on {_EXPERTS_TIMED} of {_NUM_EXPERTS} experts and scaled"
    return Measured(times.scale(1.0, _NUM_EXPERTS / _EXPERTS_TIMED), None, notes=notes)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


BENCHMARKS = (
    Benchmark(
        "pmixed-projection",
        f"PMixED's projections of {_NUM_EXPERTS} experts, every order for accounting up to order {_MAX_ORDER}",
        "plain bisection, one expert after another",
        1 / 20,
        "<=",
        projection,
        40,
    ),
)
