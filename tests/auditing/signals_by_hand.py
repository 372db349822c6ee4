"""Token signals from plain lists, for tests of attacks."""

import numpy as np

from reticent.protocols import TokenSignals


def signals(logp, mu=None, sigma2=None, rank=None):
    """Signals with these values; what a test leaves out is not known (NaN, rank -1)."""
    unknown = np.full(len(logp), np.nan)
    mu_T = unknown if mu is None else np.asarray(mu, dtype=float)
    return TokenSignals(
        logp=np.asarray(logp, dtype=float),
        mu=mu_T,
        sigma2=unknown if sigma2 is None else np.asarray(sigma2, dtype=float),
        entropy=-mu_T,
        rank=np.full(len(logp), -1) if rank is None else np.asarray(rank),
    )
