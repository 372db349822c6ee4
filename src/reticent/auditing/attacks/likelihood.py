"""Likelihood: the mean log-probability of the text (Yeom 2018)."""

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals


def likelihood(target: TokenSignals) -> Score:
    """Mean ℓ over the scored tokens, in nats per token."""
    if target.num_tokens == 0:
        return Missing("the text has no scored token")
    return float(target.logp.mean())
