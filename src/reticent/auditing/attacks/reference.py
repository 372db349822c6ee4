"""Likelihood with reference: what adaptation added to the text's likelihood (Carlini 2021)."""

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals


def reference(target: TokenSignals, base: TokenSignals) -> Score:
    """Mean ℓ − mean r, in nats per token; each mean is over that model's own scored tokens."""
    if target.num_tokens == 0 or base.num_tokens == 0:
        return Missing("the text has no scored token")
    return float(target.logp.mean() - base.logp.mean())
