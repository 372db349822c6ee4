"""How well scores tell members from non-members: rates, areas and the ε they imply, with intervals. Pure NumPy/SciPy.

More score = more likely a member. Equal scores are never told apart; infinite scores rank like others; NaN is refused.
"""

from reticent.audit.metrics.advantage import membership_advantage
from reticent.audit.metrics.checks import constant_scores, separation_warning, training_warning
from reticent.audit.metrics.epsilon import implied_epsilon, split_half_epsilon
from reticent.audit.metrics.intervals import bootstrap_auc_interval, clopper_pearson, newcombe_difference
from reticent.audit.metrics.rates import tpr_at_fpr, unavailable_rate
from reticent.audit.metrics.roc import auc, roc_curve

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
