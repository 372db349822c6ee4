"""Intervals against SciPy, enumeration and repeated experiments whose truth is known."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from reticent.auditing.metrics import (
    auc,
    bootstrap_auc_interval,
    clopper_pearson,
    membership_advantage,
    newcombe_difference,
    tpr_at_fpr,
)
from reticent.auditing.metrics.advantage import best_threshold
from reticent.auditing.metrics.splitting import halves
from reticent.errors import InvalidValueError
from reticent.stats.intervals import bootstrap_aucs, tpr_interval, wilson


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 30), (30, 30), (3, 17), (999, 1000)])
def test_clopper_pearson_and_wilson_agree_with_scipy(successes, trials, confidence):
    exact = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    score = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert clopper_pearson(successes, trials, confidence) == pytest.approx((exact.low, exact.high), abs=1e-12)
    assert wilson(successes, trials, confidence) == pytest.approx((score.low, score.high), abs=1e-12)


@pytest.mark.parametrize("rate", [0.001, 0.03, 0.2, 0.5, 0.97])
def test_clopper_pearson_covers_at_every_rate(rate):
    """Exact coverage: the chance of all counts whose interval holds the rate."""
    intervals = [clopper_pearson(count, 40, 0.9) for count in range(41)]
    covered = sum(binom.pmf(count, 40, rate) for count, (low, high) in enumerate(intervals) if low <= rate <= high)
    assert covered >= 0.9


@pytest.mark.parametrize("arguments", [(1, 0), (-1, 5), (6, 5), (2.5, 5), (1, 5, 1.0), (1, 5, math.nan)])
def test_counts_and_confidences_outside_their_range_are_refused(arguments):
    with pytest.raises(InvalidValueError):
        clopper_pearson(*arguments)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        # Newcombe 1998, table II, method 10, contrasts (a) to (h) at 95 %.
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_difference_of_rates_is_as_in_the_published_table(first, second, low, high):
    assert newcombe_difference(first, second, 0.95) == pytest.approx((low, high), abs=6e-5)


def test_mistake_bootstrap_aucs_are_of_resampled_texts_and_not_one_minus_them():
    """The mean over resamples is the AUC itself, 0.84 here; averaging 1 − AUC would give 0.16."""
    rng = np.random.default_rng(0)
    members, nonmembers = rng.normal(1.4, 1, 80), rng.normal(0, 1, 70)
    areas = bootstrap_aucs(members, nonmembers, seed=1)
    value = auc(members, nonmembers)
    assert value > 0.75
    assert areas.mean() == pytest.approx(value, abs=4 * areas.std() / math.sqrt(len(areas)) + 1e-3)


def test_bootstrap_aucs_have_the_law_of_all_resamples():
    """Two members, two non-members, a tie: all 16 equally likely resamples, enumerated."""
    members, nonmembers = [1.0, 0.0], [0.0, -math.inf]
    distribution: dict[float, float] = {}
    for m in itertools.product(members, repeat=2):
        for n in itertools.product(nonmembers, repeat=2):
            value = sum((x > y) + 0.5 * (x == y) for x in m for y in n) / 4
            distribution[value] = distribution.get(value, 0.0) + 1 / 16
    areas = bootstrap_aucs(members, nonmembers, seed=0, num_resamples=20_000)
    values, counts = np.unique(areas, return_counts=True)
    assert values.tolist() == sorted(distribution)
    assert counts / 20_000 == pytest.approx([distribution[value] for value in sorted(distribution)], abs=0.015)


def test_bootstrap_is_a_function_of_its_seed():
    rng = np.random.default_rng(5)
    members, nonmembers = rng.normal(0.5, 1, 30), rng.normal(0, 1, 30)
    assert bootstrap_auc_interval(members, nonmembers, 7) == bootstrap_auc_interval(members, nonmembers, 7)
    assert bootstrap_auc_interval(members, nonmembers, 7) != bootstrap_auc_interval(members, nonmembers, 8)


@pytest.mark.parametrize(("shift", "n"), [(0.0, 40), (0.7, 40), (1.5, 100)])
def test_bootstrap_interval_covers_the_true_area(shift, n):
    """Gaussian scores, whose AUC is known; 400 experiments at 90 %, three standard errors of 1.5 % either way."""
    rng = np.random.default_rng(11)
    truth = float(norm.cdf(shift / math.sqrt(2)))
    covered = 0
    for repetition in range(400):
        low, high = bootstrap_auc_interval(
            rng.normal(shift, 1, n), rng.normal(0, 1, n), repetition, 0.9, num_resamples=400
        )
        covered += low <= truth <= high
    assert 0.855 <= covered / 400 <= 0.945


def test_perfect_separation_does_not_claim_certainty():
    low, high = bootstrap_auc_interval([2.0] * 20, [1.0] * 30, 0, 0.95)
    assert (low, high) == pytest.approx((0.025 ** (1 / 20), 1.0))
    low, high = bootstrap_auc_interval([1.0] * 20, [2.0] * 30, 0, 0.95)
    assert (low, high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 20)))


def test_equal_scores_are_a_certain_half():
    assert bootstrap_auc_interval([1.0] * 5, [1.0] * 5, 0) == (0.5, 0.5)


def test_best_threshold_by_hand():
    # At least 4: 2/3 − 0. At least 1: 1 − 1/3, the same; the higher one is taken, halfway down to 3.
    assert best_threshold([5.0, 4.0, 1.0], [3.0, 0.0, 0.0]) == 3.5
    assert best_threshold([1.0, 2.0], [3.0, 4.0]) == 1.0
    assert best_threshold([math.inf], [1.0]) == math.inf
    adjacent = math.nextafter(1.0, 2.0)
    assert best_threshold([adjacent], [1.0]) == adjacent


def test_advantage_of_perfect_and_of_reversed_scores():
    members, nonmembers = np.linspace(2, 3, 40), np.linspace(0, 1, 40)
    value, low, high = membership_advantage(members, nonmembers, 0)
    assert value > 0.9
    assert 0.7 < low < value <= high <= 1.0
    value, low, _ = membership_advantage(nonmembers, members, 0)
    assert value <= 0.1
    assert low < 0


def test_a_threshold_is_not_judged_on_the_texts_that_chose_it():
    """No signal at all: the best threshold on the same texts claims an advantage, the split one none on average."""
    rng = np.random.default_rng(2)
    honest, in_sample = [], []
    for repetition in range(300):
        members, nonmembers = rng.normal(size=20), rng.normal(size=20)
        honest.append(membership_advantage(members, nonmembers, repetition)[0])
        threshold = best_threshold(members, nonmembers)
        in_sample.append((members >= threshold).mean() - (nonmembers >= threshold).mean())
    assert np.mean(in_sample) > 0.15
    assert abs(np.mean(honest)) < 4 * np.std(honest) / math.sqrt(300)


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_advantage_interval_covers_what_its_thresholds_achieve(shift):
    """The truth is the mean over the two chosen thresholds of their true TPR − FPR, known for Gaussian scores."""
    rng = np.random.default_rng(4)
    covered = 0
    for repetition in range(300):
        members, nonmembers = rng.normal(shift, 1, 60), rng.normal(0, 1, 60)
        _, low, high = membership_advantage(members, nonmembers, repetition, 0.9)
        first, second = halves(members, nonmembers, repetition)
        thresholds = np.array([best_threshold(*first), best_threshold(*second)])
        truth = float((norm.sf(thresholds - shift) - norm.sf(thresholds)).mean())
        covered += low <= truth <= high
    assert covered / 300 >= 0.85


def test_texts_that_cannot_be_halved_are_refused():
    with pytest.raises(InvalidValueError, match="at least 2"):
        membership_advantage([1.0], [0.0, 0.0], 0)
    with pytest.raises(InvalidValueError, match="non-member scores must be at least 2"):
        membership_advantage([1.0, 1.0], [0.0], 0)


def coverage_at_one_percent(num_members, num_nonmembers, separation, interval):
    """Share of 600 simulations, normal scores, whose interval at 1 % holds the true rate at the true threshold."""
    rng = np.random.default_rng([num_members, num_nonmembers, round(10 * separation)])
    truth = norm.sf(norm.isf(0.01) - separation)
    covered = 0
    for _ in range(600):
        low, high = interval(rng.normal(separation, 1, num_members), rng.normal(0, 1, num_nonmembers))
        covered += low <= truth <= high
    return covered / 600


SETTINGS = [(200, 300, 0.5), (200, 300, 1.0), (200, 300, 2.0), (1000, 3000, 1.0)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_interval_at_a_false_positive_rate_covers_the_true_rate(setting):
    assert coverage_at_one_percent(*setting, lambda a, b: tpr_at_fpr(a, b, 0.01)[1:]) >= 0.94


def exact_at_the_found_threshold(members, nonmembers):
    flagged = int((members > np.sort(nonmembers)[-1 - round(0.01 * len(nonmembers))]).sum())
    return clopper_pearson(flagged, len(members))


def test_the_members_alone_do_not_make_an_interval_that_covers():
    """The fault: with the threshold taken as known, the interval covers far less than it says."""
    coverages = [coverage_at_one_percent(*setting, exact_at_the_found_threshold) for setting in SETTINGS]
    assert max(coverages) < 0.85


@pytest.mark.parametrize("seed", range(3))
def test_interval_at_a_false_positive_rate_against_a_draw_of_thresholds(seed):
    """Its ends are quantiles over drawn thresholds and drawn rates, by Monte Carlo."""
    rng = np.random.default_rng(seed)
    members, nonmembers = rng.normal(1.5, 1, 80), rng.normal(0, 1, 400)
    low, high = tpr_interval(members, nonmembers, 0.02, 0.9)
    places = rng.binomial(400, 0.02, size=100_000)
    ranked = np.sort(nonmembers)[::-1]
    above = np.array([(members > score).sum() for score in ranked[:60]])
    fewer, more = above[np.maximum(places - 1, 0)], above[places]
    assert np.quantile(rng.beta(fewer, 81 - fewer), 0.05) == pytest.approx(low, abs=0.005)
    assert np.quantile(rng.beta(more + 1, 80 - more), 0.95) == pytest.approx(high, abs=0.005)


def test_interval_at_a_false_positive_rate_at_its_ends():
    assert tpr_interval([1.0] * 20, [0.0] * 300, 0.01) == pytest.approx(clopper_pearson(20, 20))
    assert tpr_interval([0.0] * 20, [0.0] * 300, 0.01) == pytest.approx(clopper_pearson(0, 20))
    assert tpr_interval([math.inf, 0.0], [1e308] * 300, 0.01) == pytest.approx(clopper_pearson(1, 2))
    wide, narrow = (tpr_interval(np.arange(50.0), np.arange(-260.0, 40.0), 0.05, c) for c in (0.99, 0.8))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
