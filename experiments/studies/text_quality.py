"""Repetition and diversity of token sequences, with standard errors over texts.

| name | what it is | source |
|---|---|---|
| rep-n of a text | 1 − distinct n-grams / n-grams | Welleck et al. 2020, arXiv 1908.04319 |
| distinct-n of a set | distinct n-grams of all texts together / n-grams | Li et al. 2016, arXiv 1510.03055 |

Both depend on length, and distinct-n on the number of texts: compare sets of equal lengths and sizes only.
"""

import math
from collections import Counter
from collections.abc import Sequence

from reticent._validate import integer_in_range
from reticent.errors import InvalidValueError
from reticent.stats.means import Mean, sample_mean

Tokens = Sequence[int]


def repetition(texts: Sequence[Tokens], n: int) -> Mean:
    """The mean of the texts' rep-n.

    Raises:
        InvalidValueError: a text is shorter than n tokens, or there is none.
    """
    return sample_mean([1.0 - len(set(grams)) / len(grams) for grams in _all_ngrams(texts, n)])


def distinct(texts: Sequence[Tokens], n: int) -> Mean:
    """The distinct-n of a set; its standard error is the jackknife's, leaving out one text at a time.

    Raises:
        InvalidValueError: a text is shorter than n tokens, or there is none.
    """
    grams_of_text = _all_ngrams(texts, n)
    texts_with = Counter(gram for grams in grams_of_text for gram in set(grams))
    num_distinct, total, count = len(texts_with), sum(map(len, grams_of_text)), len(grams_of_text)
    value = num_distinct / total
    if count < 2:
        return Mean(value=value, standard_error=None, num_samples=count)
    without = [
        (num_distinct - sum(texts_with[gram] == 1 for gram in set(grams))) / (total - len(grams))
        for grams in grams_of_text
    ]
    middle = math.fsum(without) / count
    error = math.sqrt((count - 1) / count * math.fsum((each - middle) ** 2 for each in without))
    return Mean(value=value, standard_error=error, num_samples=count)


def _all_ngrams(texts: Sequence[Tokens], n: int) -> list[list[tuple[int, ...]]]:
    integer_in_range("n", n, 1)
    if not texts or min(map(len, texts)) < n:
        raise InvalidValueError(f"{n}-grams need one or more texts of at least {n} tokens")
    return [[tuple(text[start : start + n]) for start in range(len(text) - n + 1)] for text in texts]
