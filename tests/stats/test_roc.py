"""Areas, curves and rates against scikit-learn, plain loops and values worked by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from reticent.auditing.metrics import auc, constant_scores, roc_curve, tpr_at_fpr, unavailable_rate
from reticent.auditing.metrics.checks import separation_warning, training_warning
from reticent.errors import InvalidValueError

SCORES = st.lists(st.integers(-4, 4).map(float) | st.sampled_from([math.inf, -math.inf]), min_size=1, max_size=12)


@settings(deadline=None)
@given(SCORES, SCORES)
def test_auc_counts_pairs_and_half_of_ties(members, nonmembers):
    pairs = [(x > y) + 0.5 * (x == y) for x, y in itertools.product(members, nonmembers)]
    assert auc(members, nonmembers) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


@settings(deadline=None)
@given(SCORES, SCORES)
def test_rate_is_the_best_of_all_thresholds_that_keep_the_false_positive_rate(members, nonmembers):
    """Exhaustive: every threshold that can be written down, "at least t" and none at all."""
    for fpr in (0.0, 0.1, 0.25, 0.5, 0.9):
        best = 0.0
        for threshold in {*members, *nonmembers}:
            if sum(score >= threshold for score in nonmembers) <= fpr * len(nonmembers):
                best = max(best, sum(score >= threshold for score in members) / len(members))
        assert tpr_at_fpr(members, nonmembers, fpr)[0] == best


@pytest.mark.parametrize("seed", range(5))
def test_auc_and_curve_agree_with_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    members, nonmembers = rng.integers(0, 15, 60).astype(float), rng.integers(-3, 12, 45).astype(float)
    labels, scores = np.repeat([1, 0], [60, 45]), np.concatenate([members, nonmembers])
    assert auc(members, nonmembers) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    fpr, tpr = roc_curve(members, nonmembers)
    all_fpr, all_tpr, _ = sklearn_roc_curve(labels, scores, drop_intermediate=False)
    assert set(zip(fpr, tpr, strict=True)) <= set(zip(all_fpr, all_tpr, strict=True))
    assert np.trapezoid(tpr, fpr) == pytest.approx(auc(members, nonmembers), abs=1e-12)
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)


def test_curve_keeps_corners_alone():
    fpr, tpr = roc_curve([4.0, 3.0, 1.0], [2.0, 0.0])
    assert fpr.tolist() == [0, 0, 0.5, 0.5, 1]
    assert tpr == pytest.approx([0, 2 / 3, 2 / 3, 1, 1])
    assert [values.tolist() for values in roc_curve([1.0, 1.0], [1.0])] == [[0, 1], [0, 1]]


def test_mistake_rate_is_neither_interpolated_nor_taken_above_the_target():
    """One of ten non-members above all members: at 5 % FPR nothing is allowed, so that the TPR is 0.

    Interpolation would say 0.5, and the first FPR above the target would say 1.
    """
    members, nonmembers = [5.0] * 4, [9.0] + [1.0] * 9
    assert tpr_at_fpr(members, nonmembers, 0.05)[0] == 0.0
    assert tpr_at_fpr(members, nonmembers, 0.1)[0] == 1.0


def test_mistake_equal_scores_are_flagged_together():
    members, nonmembers = [3.0, 2.0, 2.0], [2.0] * 5 + [0.0] * 95
    assert tpr_at_fpr(members, nonmembers, 0.04)[0] == pytest.approx(1 / 3)
    assert tpr_at_fpr(members, nonmembers, 0.05)[0] == 1.0


def test_a_rate_that_is_a_whole_number_of_texts_is_not_lost_to_rounding():
    assert 0.29 * 100 < 29
    members, nonmembers = [50.0], [float(score) for score in range(100, 0, -1)]
    assert tpr_at_fpr([71.5], nonmembers, 0.29)[0] == 1.0
    assert tpr_at_fpr(members, nonmembers, 0.29)[0] == 0.0


def test_interval_of_a_rate_is_the_exact_one_where_the_threshold_makes_no_difference():
    members, nonmembers = [5.0] * 7 + [0.0] * 13, [1.0] * 100
    value, low, high = tpr_at_fpr(members, nonmembers, 0.01, confidence=0.9)
    exact = binomtest(7, 20).proportion_ci(0.9, method="exact")
    assert (value, low, high) == pytest.approx((0.35, exact.low, exact.high), abs=1e-12)


@pytest.mark.parametrize(("fpr", "needed"), [(0.001, 3000), (0.01, 300), (0.05, 60), (0.07, 43)])
def test_mistake_a_rate_from_too_few_nonmembers_is_refused_with_the_number_needed(fpr, needed):
    assert unavailable_rate(fpr, needed) is None
    reason = unavailable_rate(fpr, needed - 1)
    assert str(needed) in reason
    assert str(needed - 1) in reason


def test_top_score_outranks_every_number():
    assert auc([math.inf, math.inf], [1e308, -math.inf]) == 1.0
    assert auc([math.inf], [math.inf]) == 0.5
    assert tpr_at_fpr([math.inf, 0.0], [1e308] * 100, 0.0)[0] == 0.5


@pytest.mark.parametrize("broken", [[math.nan, 1.0], [], [[1.0, 2.0]]])
def test_nan_or_no_scores_are_refused(broken):
    for compute in (auc, roc_curve, lambda a, b: tpr_at_fpr(a, b, 0.5), constant_scores):
        with pytest.raises(InvalidValueError, match="scores must"):
            compute(broken, [1.0])
        with pytest.raises(InvalidValueError, match="scores must"):
            compute([1.0], broken)


@pytest.mark.parametrize("fpr", [-0.1, 1.0, math.nan])
def test_a_false_positive_rate_outside_its_range_is_refused(fpr):
    with pytest.raises(InvalidValueError, match="false-positive rate"):
        tpr_at_fpr([1.0], [0.0], fpr)
    with pytest.raises(InvalidValueError, match="false-positive rate"):
        unavailable_rate(fpr, 10)


def test_constant_scores_are_noticed():
    assert constant_scores([2.0, 2.0], [2.0])
    assert not constant_scores([2.0, 2.0], [2.5])
    assert not constant_scores([2.0, 1.0], [2.0])
    assert constant_scores([math.inf], [math.inf])


@pytest.mark.parametrize(("area", "warns"), [(0.5, False), (0.95, False), (0.05, False), (0.99, True), (0.004, True)])
def test_mistake_an_area_near_0_or_1_comes_with_a_warning(area, warns):
    assert (separation_warning(area) is not None) == warns


def test_a_model_worse_on_its_members_than_its_reference_is_called_collapsed():
    assert training_warning([-1.0, -2.0], [-1.5, -2.5]) is None
    assert training_warning([-2.0, -2.0], [-1.95, -1.95]) is None
    assert "collapsed" in training_warning([-9.0, -8.0], [-2.0, -3.0])
    assert training_warning([-math.inf], [-math.inf]) is not None
