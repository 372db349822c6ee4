"""Zlib: likelihood against how well the text compresses (Carlini 2021)."""

import zlib

from reticent.auditing.attacks.evidence import Missing, Score
from reticent.protocols import TokenSignals

LEVEL = 6


def zlib_entropy(target: TokenSignals, text: str) -> Score:
    """Mean ℓ divided by the length in bytes of the text's UTF-8, compressed by zlib at level 6."""
    if target.num_tokens == 0:
        return Missing("the text has no scored token")
    return float(target.logp.mean()) / len(zlib.compress(text.encode("utf-8"), LEVEL))
