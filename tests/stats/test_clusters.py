"""Clustered intervals: against a naive resampling, against the unclustered case, and by their coverage."""

import itertools

import numpy as np
import pytest
from scipy import stats

from reticent.auditing.metrics import membership_advantage, tpr_at_fpr
from reticent.errors import InvalidValueError
from reticent.stats.clusters import cluster_numbers, clustered_auc_interval, effective_size
from reticent.stats.roc import auc


def test_clusters_are_numbered_in_order_of_first_occurrence():
    assert cluster_numbers(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]


def test_the_effective_size_is_worked_by_hand():
    assert effective_size([0, 1, 2, 3]) == 4
    assert effective_size([0, 0, 1, 1]) == 2
    assert effective_size([0, 0, 0, 1]) == pytest.approx(16 / 10)


def test_all_resamples_of_a_small_case_give_the_intervals_ends():
    """Two clusters a side: 16 equally likely resamples, whose quantiles a large bootstrap must find."""
    members, nonmembers = np.array([3.0, 1.0, 2.0]), np.array([0.0, 2.5, 1.0])
    of_members, of_nonmembers = np.array([0, 0, 1]), np.array([0, 1, 1])
    areas = [
        auc(
            np.concatenate([members[of_members == cluster] for cluster in drawn]),
            np.concatenate([nonmembers[of_nonmembers == cluster] for cluster in others]),
        )
        for drawn in itertools.product((0, 1), repeat=2)
        for others in itertools.product((0, 1), repeat=2)
    ]
    low, high = clustered_auc_interval(members, nonmembers, of_members, of_nonmembers, 0, 0.95, 20_000)
    assert low == pytest.approx(min(areas))
    assert high == pytest.approx(max(areas))


def test_clusters_of_one_are_the_interval_over_texts():
    generator = np.random.default_rng(1)
    members, nonmembers = generator.normal(0.7, 1, 150), generator.normal(0, 1, 200)
    found = clustered_auc_interval(members, nonmembers, np.arange(150), np.arange(200), 0, 0.95, 4000)
    value = auc(members, nonmembers)
    error = np.sqrt(value * (1 - value) / 150)
    assert found == (pytest.approx(value - 1.96 * error, abs=0.02), pytest.approx(value + 1.96 * error, abs=0.02))


def draw(generator, owners, texts, shift):
    """Scores of some owners' texts, of which owners are half of the variance."""
    own = np.repeat(generator.normal(0, 1, owners), texts)
    return shift + (own + generator.normal(0, 1, owners * texts)) / np.sqrt(2), np.repeat(np.arange(owners), texts)


def coverage(measure, truth, runs):
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(runs):
        low, high = measure(*draw(generator, 40, 5, 1.0), *draw(generator, 60, 5, 0.0))
        hits += low <= truth <= high
    return hits


def refuted_below(hits, runs, level):
    """True if so few hits are improbable (1 in 1,000) for a coverage of the level."""
    return stats.binom.cdf(hits, runs, level) < 1e-3


def test_the_area_is_covered_where_intervals_over_texts_are_far_too_narrow():
    truth = float(stats.norm.cdf(1 / np.sqrt(2)))
    runs = 400

    def over_owners(members, of_members, nonmembers, of_nonmembers):
        return clustered_auc_interval(members, nonmembers, of_members, of_nonmembers, 0, 0.95, 300)

    def over_texts(members, of_members, nonmembers, of_nonmembers):
        own = np.arange(len(members)), np.arange(len(nonmembers))
        return clustered_auc_interval(members, nonmembers, *own, 0, 0.95, 300)

    assert not refuted_below(coverage(over_owners, truth, runs), runs, 0.94)
    assert refuted_below(coverage(over_texts, truth, runs), runs, 0.90)


def test_a_rate_is_covered_with_owners():
    truth = float(stats.norm.sf(stats.norm.isf(0.1) - 1.0))

    def measure(members, of_members, nonmembers, of_nonmembers):
        worth = effective_size(of_members), effective_size(of_nonmembers)
        return tpr_at_fpr(members, nonmembers, 0.1, 0.95, worth)[1:]

    assert not refuted_below(coverage(measure, truth, 400), 400, 0.95)


def test_no_owner_judges_by_a_threshold_it_helped_to_choose():
    """Each owner's texts share one score of their own, so that a threshold tells owners apart that it has seen."""
    generator = np.random.default_rng(3)
    members, nonmembers = (np.repeat(generator.normal(0, 1, 30), 8) for _ in range(2))
    clusters = np.repeat(np.arange(30), 8), np.repeat(np.arange(30), 8)
    _, low, high = membership_advantage(members, nonmembers, 0, 0.95, clusters)
    assert low <= 0 <= high
    _, narrow_low, narrow_high = membership_advantage(members, nonmembers, 0, 0.95)
    assert narrow_low > 0, "texts on both sides of the split make chance look like an advantage"
    assert high - low > 1.5 * (narrow_high - narrow_low)


def test_scores_and_clusters_must_match():
    with pytest.raises(InvalidValueError, match="2 scores need as many clusters"):
        clustered_auc_interval([1.0, 2.0], [0.0, 1.0], [0], [0, 1], 0)
