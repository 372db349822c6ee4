"""Separation of members from non-members by scores: rates, areas and the ε they imply, with intervals. NumPy/SciPy.

More score = more likely a member. Ties are never broken; infinite scores rank like others; NaN is refused.
"""

from reticent.auditing.metrics.advantage import membership_advantage
from reticent.auditing.metrics.checks import constant_scores, separation_warning, training_warning
from reticent.auditing.metrics.epsilon import implied_epsilon, split_half_epsilon
from reticent.auditing.metrics.rates import tpr_at_fpr, unavailable_rate
from reticent.stats.intervals import bootstrap_auc_interval, clopper_pearson, newcombe_difference
from reticent.stats.roc import auc, roc_curve

__all__ = [
    "auc",
    "bootstrap_auc_interval",
    "clopper_pearson",
    "constant_scores",
    "implied_epsilon",
    "membership_advantage",
    "newcombe_difference",
    "roc_curve",
    "separation_warning",
    "split_half_epsilon",
    "tpr_at_fpr",
    "training_warning",
    "unavailable_rate",
]
