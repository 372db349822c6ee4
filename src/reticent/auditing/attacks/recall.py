"""ReCaLL: how much a prefix of non-members changes the text's likelihood (arXiv 2406.15968)."""

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals


def recall(conditional: TokenSignals, unconditional: TokenSignals) -> Score:
    """Mean ℓ(x given P) / mean ℓ(x), both over the text's own tokens.

    The first one is left out of both where the prefix runs into it: `conditional` then lacks it.

    Both are negative, and a foreign prefix costs a member more: its ratio is larger.
    """
    if conditional.num_tokens == 0 or unconditional.num_tokens == 0:
        return Missing("the text has no scored token")
    more = unconditional.num_tokens - conditional.num_tokens
    if more not in (0, 1):
        return Missing("behind the prefix the text is split into other tokens")
    without_prefix = float(unconditional.logp[more:].mean())
    if without_prefix == 0.0:
        return Missing("the target is certain of every token, so that the ratio is undefined")
    return float(conditional.logp.mean()) / without_prefix
