"""WBC: how often a window of tokens became more likely, over windows of many lengths (arXiv 2601.02751)."""

from collections.abc import Sequence

import numpy as np

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals

WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)


def wbc(target: TokenSignals, base: TokenSignals, windows: Sequence[int] = WINDOWS) -> Score:
    """Mean over window lengths of the fraction of positions where Σ ℓ > Σ r in the window.

    Windows longer than the text are left out.
    """
    if target.logp.shape != base.logp.shape:
        return Missing("target and reference split the text into different tokens")
    delta_T = target.logp - base.logp
    fractions = [
        # Summed window by window: differences of a running sum would lose ties to rounding.
        float((np.lib.stride_tricks.sliding_window_view(delta_T, window).sum(axis=1) > 0).mean())
        for window in windows
        if window <= len(delta_T)
    ]
    if not fractions:
        return Missing(f"the text is shorter than the shortest window, {min(windows)} tokens")
    return float(np.mean(fractions))
