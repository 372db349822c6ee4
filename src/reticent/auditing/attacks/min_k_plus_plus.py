"""Min-K%++: Min-K% of log-probabilities standardised by the model's own distribution (Zhang 2024)."""

import numpy as np

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.auditing.attacks.min_k import DEFAULT_FRACTION, mean_of_lowest
from reticent.protocols import TokenSignals

SIGMA_FLOOR = 1e-6
"""In nats. A certain model has sigma 0 up to rounding, and so has the distance of its token from the mean."""


def min_k_plus_plus(target: TokenSignals, fraction: float = DEFAULT_FRACTION) -> Score:
    """Mean of the lowest max(1, ⌈kT⌉) of (ℓ − μ)/σ, where μ and σ are over the vocabulary, weighted by p."""
    if target.num_tokens == 0:
        return Missing("the text has no scored token")
    if np.isnan(target.mu).any() or np.isnan(target.sigma2).any():
        return Missing("the target does not show its distribution over the vocabulary")
    sigma_T = np.sqrt(np.maximum(target.sigma2, SIGMA_FLOOR**2))
    return mean_of_lowest((target.logp - target.mu) / sigma_T, fraction)
