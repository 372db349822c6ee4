"""EZ-MIA: where the model errs, did adaptation help or hurt (arXiv 2601.12104)."""

import math

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals

MIN_ERROR_TOKENS = 2


def ez_mia(target: TokenSignals, base: TokenSignals) -> Score:
    """Over the tokens that are not the target's most likely ones: ΣΔ⁺ / Σ|Δ⁻|, with Δ = ℓ − r.

    Where nothing got worse the score is +inf, the top of the ranking. Needs two such tokens.
    """
    if target.logp.shape != base.logp.shape:
        return Missing("target and reference split the text into different tokens")
    if (target.rank < 0).any():
        return Missing("the target does not show which token is its most likely one")
    errors_T = ~target.top1_match
    if errors_T.sum() < MIN_ERROR_TOKENS:
        return Missing(f"fewer than {MIN_ERROR_TOKENS} tokens differ from the target's most likely ones")
    delta_E = (target.logp - base.logp)[errors_T]
    losses = -float(delta_E[delta_E < 0].sum())
    return float(delta_E[delta_E > 0].sum()) / losses if losses else math.inf
