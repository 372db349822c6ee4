"""SaMIA: how many of a text's words the model writes of its own after the text's first half (arXiv 2404.11262)."""

import re
from collections import Counter
from collections.abc import Sequence

from reticent.auditing.attacks.evidence import Missing, Score

_WORD = re.compile(r"\w+")


def samia(rest: str, samples: Sequence[str]) -> Score:
    """Mean over the samples of ROUGE-1 recall: the share of the words of `rest`, with repetitions, that a sample has.

    Words are compared without regard to case and punctuation.

    Args:
        rest: the text after what the model was given.
        samples: what the model wrote there.
    """
    words = Counter(_words(rest))
    if not words:
        return Missing("the text's second half has no word")
    if not samples:
        return Missing("the model wrote nothing after the text's first half")
    shares = [(words & Counter(_words(sample))).total() / words.total() for sample in samples]
    return sum(shares) / len(shares)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
