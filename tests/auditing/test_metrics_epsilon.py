"""The implied ε against values worked by hand and randomised response, whose ε is known."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from reticent.auditing.metrics import implied_epsilon, split_half_epsilon
from reticent.auditing.metrics.splitting import halves
from reticent.errors import InvalidValueError


def test_by_hand_for_perfect_separation():
    """100 of 100 and 0 of 100: TPR ≥ 0.025^(1/100) = 0.96378, FPR ≤ 0.03622, so that e^ε ≥ 26.61."""
    assert implied_epsilon((100, 100), (0, 100)) == pytest.approx(math.log(0.9637833 / 0.0362167), rel=1e-6)


@pytest.mark.parametrize(
    ("true_positives", "false_positives", "side"), [((12, 50), (0, 400), "flagged"), ((300, 300), (30, 50), "cleared")]
)
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_both_inequalities_are_used(true_positives, false_positives, side, delta):
    """Exact bounds from SciPy at half the error each; either inequality may be the stronger one."""
    tpr_low = binomtest(*true_positives).proportion_ci(0.95, method="exact").low
    fpr_high = binomtest(*false_positives).proportion_ci(0.95, method="exact").high
    ratios = {"flagged": (tpr_low - delta) / fpr_high, "cleared": (1 - fpr_high - delta) / (1 - tpr_low)}
    assert max(ratios, key=ratios.__getitem__) == side
    found = implied_epsilon(true_positives, false_positives, 0.95, delta)
    assert found == pytest.approx(math.log(ratios[side]), rel=1e-9)


def test_no_evidence_is_zero_and_never_negative():
    assert implied_epsilon((10, 100), (10, 100)) == 0.0
    assert implied_epsilon((0, 100), (100, 100)) == 0.0
    assert implied_epsilon((1, 1), (0, 1)) == 0.0


def test_more_evidence_and_less_confidence_give_a_larger_bound():
    bounds = [implied_epsilon((tp, 200), (10, 200)) for tp in range(10, 201, 10)]
    assert bounds == sorted(bounds)
    bounds = [implied_epsilon((150, 200), (fp, 200)) for fp in range(0, 201, 10)]
    assert bounds == sorted(bounds, reverse=True)
    assert implied_epsilon((150, 200), (10, 200), 0.9) > implied_epsilon((150, 200), (10, 200), 0.99)
    assert implied_epsilon((150, 200), (10, 200), delta=0.1) < implied_epsilon((150, 200), (10, 200))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_randomised_response_is_seldom_said_to_leak_more_than_it_does(epsilon):
    """TPR = e^ε/(1 + e^ε) and FPR = 1 − TPR meet ε exactly; 1,000 experiments at 90 % may exceed it in 10 %.

    The allowance is three standard errors of a share of 10 %.
    """
    rng = np.random.default_rng(0)
    accuracy = 1 / (1 + math.exp(-epsilon))
    exceeded = sum(
        implied_epsilon((int(tp), 150), (int(fp), 150), confidence=0.9) > epsilon
        for tp, fp in zip(rng.binomial(150, accuracy, 1000), rng.binomial(150, 1 - accuracy, 1000), strict=True)
    )
    assert exceeded <= 100 + 3 * math.sqrt(1000 * 0.1 * 0.9)


def test_a_threshold_searched_for_on_noise_does_not_invent_an_epsilon():
    """No signal, many thresholds: choosing on the other half keeps the error; choosing on the same texts would not."""
    rng = np.random.default_rng(1)
    split = same = 0
    for repetition in range(150):
        members, nonmembers = rng.normal(size=60), rng.normal(size=60)
        split += split_half_epsilon(members, nonmembers, repetition, confidence=0.9).epsilon > 0
        same += any(
            implied_epsilon((int((members >= t).sum()), 60), (int((nonmembers >= t).sum()), 60), 0.9) > 0
            for t in members
        )
    assert split <= 15 + 3 * math.sqrt(150 * 0.1 * 0.9)
    assert same > split


@pytest.mark.parametrize("seed", range(6))
def test_the_threshold_is_chosen_on_one_half_and_counted_on_the_other(seed):
    """Against a plain search over the first half; scores are whole numbers, so that "at least t" is a half below t."""
    rng = np.random.default_rng(seed)
    members, nonmembers = rng.integers(0, 40, 300) + 12.0, rng.integers(0, 40, 300) + 0.0
    chosen_on, judged = halves(members, nonmembers, seed)

    def counts(half, threshold):
        return tuple((int((scores >= threshold).sum()), len(scores)) for scores in half)

    best = max(
        sorted({*chosen_on[0], *chosen_on[1]}, reverse=True), key=lambda t: implied_epsilon(*counts(chosen_on, t))
    )
    found = split_half_epsilon(members, nonmembers, seed)
    expected_members, expected_nonmembers = counts(judged, best)
    assert (found.true_positives, found.num_members) == expected_members
    assert (found.false_positives, found.num_nonmembers) == expected_nonmembers
    assert 0 < found.epsilon == implied_epsilon(expected_members, expected_nonmembers)


def test_split_half_counts_are_of_the_judged_half():
    found = split_half_epsilon(np.arange(101.0) + 1000, np.arange(60.0), seed=3)
    assert (found.num_members, found.num_nonmembers) == (50, 30)
    assert (found.true_positives, found.false_positives) == (50, 0)
    assert found.epsilon == pytest.approx(implied_epsilon((50, 50), (0, 30)))


def test_top_scores_are_flagged_although_infinite():
    found = split_half_epsilon([math.inf] * 80, [0.0] * 80, seed=0)
    assert (found.true_positives, found.false_positives) == (40, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ((1, 0), (0, 1)),
        ((2, 1), (0, 1)),
        ((1, 1), (0, 1), 1.0),
        ((1, 1), (0, 1), 0.9, math.nan),
        ((1, 1), (0, 1), 0.9, 1.0),
    ],
)
def test_arguments_outside_their_range_are_refused(arguments):
    with pytest.raises(InvalidValueError):
        implied_epsilon(*arguments)
