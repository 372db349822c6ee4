"""Neighbourhood: the text against slightly altered versions of it (Mattern 2023)."""

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals


def neighbourhood(target: TokenSignals, neighbour_means: NDArray[np.float64]) -> Score:
    """Mean ℓ(x) − the mean over neighbours of mean ℓ(x̃), in nats per token.

    Args:
        target: the text under the target.
        neighbour_means: mean ℓ of each neighbour under the target, float64[neighbours].
    """
    if target.num_tokens == 0:
        return Missing("the text has no scored token")
    if len(neighbour_means) == 0:
        return Missing("the text has no neighbours")
    return float(target.logp.mean() - neighbour_means.mean())
