"""The blind baseline: how well members and non-members are separated without any model.

Bag of words and logistic regression, cross-validated. If it beats chance the two sets differ in distribution, and an
attack's figures measure that difference as well as membership.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline

from reticent._validate import integer_in_range
from reticent.auditing.metrics import auc, bootstrap_auc_interval
from reticent.auditing.results import BlindBaseline
from reticent.errors import InvalidValueError
from reticent.stats.estimate import Estimate

NUM_FOLDS = 5
_WORD_OR_MARK = r"(?u)\w+|[^\w\s]"
_MAX_ITERATIONS = 1000


def blind_baseline(
    members: Sequence[str],
    nonmembers: Sequence[str],
    seed: int,
    groups: Sequence[int] | None = None,
    num_folds: int = NUM_FOLDS,
    confidence: float = 0.95,
) -> BlindBaseline:
    """AUC of a bag-of-words classifier on texts that it was not trained on, with an interval.

    The words, lower-cased, and punctuation marks of a text are counted. Folds share training texts, so that their
    errors are correlated and a bootstrap over texts alone is too narrow: its half-widths are multiplied by
    √(1 + K/(K − 1)) for K folds, the correction of Nadeau and Bengio (2003, section 3).

    Args:
        members: the members' texts.
        nonmembers: the non-members' texts.
        seed: of the folds and the bootstrap.
        groups: a label for each text, members first; texts with one label (near-duplicates, one owner) stay in one
            fold. Without it, identical texts do.
        num_folds: folds; fewer where a set has fewer groups.
        confidence: of the interval.

    Raises:
        InvalidValueError: a set has fewer than two groups, or there is not one label a text.
    """
    integer_in_range("num_folds", num_folds, 2)
    texts = [*members, *nonmembers]
    labels = np.repeat([1, 0], [len(members), len(nonmembers)])
    group_of_text = np.unique(texts if groups is None else np.asarray(groups), return_inverse=True)[1]
    if group_of_text.shape != labels.shape:
        raise InvalidValueError(f"there are {len(texts)} texts and {len(group_of_text)} group labels")
    fewest = min(len(np.unique(group_of_text[labels == label])) for label in (0, 1))
    if fewest < 2:
        raise InvalidValueError("the blind baseline needs two distinct texts in each set, to be cross-validated")
    folds = StratifiedGroupKFold(min(num_folds, fewest), shuffle=True, random_state=seed)
    scores = np.zeros(len(texts))
    for train, held_out in folds.split(labels, labels, group_of_text):
        if len(np.unique(labels[train])) < 2:
            continue  # One group holds a whole set: nothing to learn, and 0 is the classifier's "undecided".
        classifier = make_pipeline(
            CountVectorizer(token_pattern=_WORD_OR_MARK), LogisticRegression(max_iter=_MAX_ITERATIONS)
        )
        classifier.fit([texts[i] for i in train], labels[train])
        scores[held_out] = classifier.decision_function([texts[i] for i in held_out])
    return _compare_with_chance(scores[labels == 1], scores[labels == 0], folds.get_n_splits(), seed, confidence)


def _compare_with_chance(
    of_members: NDArray[np.float64], of_nonmembers: NDArray[np.float64], num_folds: int, seed: int, confidence: float
) -> BlindBaseline:
    value = auc(of_members, of_nonmembers)
    low, high = bootstrap_auc_interval(of_members, of_nonmembers, seed, confidence)
    widening = math.sqrt(1 + num_folds / (num_folds - 1))
    low, high = max(0.0, value - widening * (value - low)), min(1.0, value + widening * (high - value))
    area = Estimate(value=value, low=low, high=high, confidence=confidence)
    return BlindBaseline(auc=area, beats_chance=low > 0.5, num_folds=num_folds)
