"""Scores by hand, areas by pairs, coverage of the intervals by simulation."""

import math

import numpy as np
import pytest

from experiments.studies.corpus_attack import corpus_attack, correct_decisions, match_scores, mean_wins
from reticent.errors import InvalidValueError
from reticent.stats.means import TextSpans
from reticent.stats.roc import auc


def test_scores_by_hand():
    spans = TextSpans(np.array([0, 2, 3]))
    tokens = np.array([[4, 4], [5, 0], [6, 7]])
    scores = match_scores(tokens, np.array([4, 5, 7]), np.array([1.0, 0.25, 0.0]), np.array([0.5, 2.0, 3.0]), spans)
    # First record: position 0 is matched by the public model as well, position 1 in the first deployment alone.
    expected = [[(0.0 + 2.0 * 0.75) / 2, 0.0], [(0.0 - 2.0 * 0.25) / 2, 3.0]]
    np.testing.assert_allclose(scores, expected)


def test_areas_are_those_of_each_deployment():
    generator = np.random.default_rng(0)
    scores = np.round(generator.normal(size=(5, 20)), 1)
    members = np.arange(20) < 8
    wins = mean_wins(scores[:, members], scores[:, ~members])
    areas = [auc(row[members], row[~members]) for row in scores]
    assert wins.mean() == pytest.approx(np.mean(areas))
    found = corpus_attack(scores, members, seed=1)
    assert found.auc.value == pytest.approx(np.mean(areas))
    assert (found.num_members, found.num_nonmembers, found.num_deployments) == (8, 12, 5)


def test_separated_records_are_told_apart_and_equal_ones_are_not():
    members = np.arange(40) % 2 == 0
    scores = np.where(members, 1.0, 0.0) + np.linspace(0, 0.5, 40)
    assert corpus_attack(scores[None], members, 0).accuracy.value == 1.0
    same = corpus_attack(np.zeros((3, 40)), members, 0)
    assert [same.auc.value, same.accuracy.value] == pytest.approx([0.5, 0.5])


def test_no_record_helps_to_choose_its_own_threshold():
    """One outlier that only its own label explains: a threshold chosen on it would call it rightly."""
    members = np.array([True] * 6 + [False] * 6)
    scores = np.array([1.0] * 5 + [-9.0] + [0.0] * 6)
    right = correct_decisions(scores[None], members, np.random.default_rng(0))[0]
    assert not right[5]
    assert right.sum() == 11


def test_intervals_cover_the_true_area():
    """Deployments share their records, so their number must not narrow the interval of records."""
    generator = np.random.default_rng(2)
    shift, count, covered = 0.8, 40, 0
    truth = 0.5 * (1 + math.erf(shift / 2 / math.sqrt(1.0)))
    members = np.arange(2 * count) < count
    for trial in range(60):
        of_record = generator.normal(size=2 * count) + shift * members
        scores = of_record + 1e-6 * generator.normal(size=(20, 2 * count))
        interval = corpus_attack(scores, members, trial).auc
        covered += interval.low <= truth <= interval.high
    # 95 % nominal; 60 trials fall below 49 with chance below 1e-4.
    assert covered >= 49


@pytest.mark.parametrize(
    ("scores", "members"),
    [
        (np.zeros((2, 4)), np.array([True, False, False, False])),
        (np.zeros((2, 4)), np.array([True, True, False])),
        (np.zeros(4), np.array([True, True, False, False])),
    ],
)
def test_too_few_records_are_refused(scores, members):
    with pytest.raises(InvalidValueError):
        corpus_attack(scores, members, 0)


def test_scores_need_everything_of_one_length():
    spans = TextSpans(np.array([0, 2]))
    with pytest.raises(InvalidValueError):
        match_scores(np.zeros((2, 1)), np.zeros(2), np.zeros(2), np.zeros(3), spans)
