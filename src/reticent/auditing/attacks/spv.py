"""SPV-MIA: variation around the text, calibrated by a reference trained on the target's own output (NeurIPS 2024)."""

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals


def probabilistic_variation(signals: TokenSignals, paraphrase_means: NDArray[np.float64]) -> float:
    """p(x) − the mean over paraphrases of p(x̃), with p = exp(mean ℓ), the per-token probability.

    Args:
        signals: the text under one model.
        paraphrase_means: mean ℓ of each paraphrase under the same model, float64[paraphrases].
    """
    return float(np.exp(signals.logp.mean()) - np.exp(paraphrase_means).mean())


def spv(
    target: TokenSignals,
    paraphrases_target: NDArray[np.float64],
    self_prompted: TokenSignals,
    paraphrases_self_prompted: NDArray[np.float64],
) -> Score:
    """The probabilistic variation under the target, minus that under the self-prompted reference."""
    if target.num_tokens == 0 or self_prompted.num_tokens == 0:
        return Missing("the text has no scored token")
    if len(paraphrases_target) == 0 or len(paraphrases_self_prompted) == 0:
        return Missing("the text has no paraphrases")
    return probabilistic_variation(target, paraphrases_target) - probabilistic_variation(
        self_prompted, paraphrases_self_prompted
    )
