"""PETAL: a text's likelihood, estimated from how near the target's single guesses are to its tokens (arXiv 2502.18943).

A model that gives no probabilities still names, at every place of a text, the token that it holds most likely. How
near that token is to the text's own (1 where it is the same) grows with the probability of the latter. How fast, is
learnt on a public model, the surrogate, whose probabilities are known, for each text anew.

Shape suffix: P places of the text.
"""

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, Score

MIN_PLACES = 2


def petal(
    target_P: NDArray[np.float64], surrogate_P: NDArray[np.float64], surrogate_logp_P: NDArray[np.float64]
) -> Score:
    """Mean of the estimated ℓ: the line, by least squares, from the surrogate's similarities to its r, at the target's.

    Args:
        target_P: similarity of the target's guess to the text's token.
        surrogate_P: the same of the surrogate's guess.
        surrogate_logp_P: r, the surrogate's log-probability of the text's token, in nats.
    """
    if len(target_P) < MIN_PLACES:
        return Missing(f"fewer than {MIN_PLACES} places of the text can be asked about")
    centred_P = surrogate_P - surrogate_P.mean()
    spread = float(centred_P @ centred_P)
    if not spread > 0.0:
        return Missing("the surrogate's guesses are equally near everywhere, so that no line can be fitted")
    slope = float(centred_P @ surrogate_logp_P) / spread
    return float(surrogate_logp_P.mean() + slope * (target_P.mean() - surrogate_P.mean()))


def petal_with_reference(target_P: NDArray[np.float64], surrogate_P: NDArray[np.float64]) -> Score:
    """Mean similarity of the target's guesses − that of the surrogate's: what adaptation added.

    No line is needed, and a text that any model guesses well gains nothing by it.
    """
    if len(target_P) < 1:
        return Missing("no place of the text can be asked about")
    return float(target_P.mean() - surrogate_P.mean())
