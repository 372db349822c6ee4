"""The blind baseline: finds a difference in words, finds none where there is none, and never scores what it learnt."""

import math

import numpy as np
import pytest

from reticent.auditing.blind import blind_baseline
from reticent.errors import InvalidValueError

WORDS = ["river", "stone", "cloud", "ember", "maple", "frost", "lamp", "harbour", "quill", "thread"]


def texts(rng, count, extra=""):
    return [f"{' '.join(rng.choice(WORDS, 8))}{extra} {rng.integers(1_000_000)}" for _ in range(count)]


def test_a_word_that_only_members_use_is_found():
    rng = np.random.default_rng(0)
    found = blind_baseline(texts(rng, 60, " invoice"), texts(rng, 60), seed=0)
    assert found.auc.value > 0.95
    assert found.beats_chance
    assert found.num_folds == 5


def test_punctuation_alone_is_found():
    rng = np.random.default_rng(1)
    assert blind_baseline(texts(rng, 60, "!"), texts(rng, 60), seed=0).beats_chance


def test_sets_of_one_distribution_seldom_beat_chance():
    """100 pairs of sets from one source at 90 %, one side counted: 5 %, and one and a half standard errors.

    Without the correction for what folds share, 7 % of sets of 30 texts did, and 13 % of sets of 100."""
    rng = np.random.default_rng(2)
    beaten = sum(
        blind_baseline(texts(rng, 30), texts(rng, 30), seed, confidence=0.9).beats_chance for seed in range(100)
    )
    assert beaten <= 100 * 0.05 + 1.5 * math.sqrt(100 * 0.05 * 0.95)


def test_texts_of_one_group_are_held_out_together():
    """Each owner writes one private word; by owner, half of them members. Only a leak between folds can use that."""
    rng = np.random.default_rng(3)
    owners = np.repeat(np.arange(24), 5)
    written = [f"{' '.join(rng.choice(WORDS, 3))} signature{owner} signature{owner}" for owner in owners]
    members, nonmembers = written[:60], written[60:]
    leaking = blind_baseline(members, nonmembers, seed=0)
    grouped = blind_baseline(members, nonmembers, seed=0, groups=owners)
    assert leaking.auc.value > 0.9
    assert grouped.auc.value < 0.7


def test_identical_texts_are_held_out_together():
    rng = np.random.default_rng(4)
    members, nonmembers = texts(rng, 15) * 4, texts(rng, 15) * 4
    assert blind_baseline(members, nonmembers, seed=0).auc.value < 0.75


def test_the_result_is_a_function_of_the_seed():
    rng = np.random.default_rng(5)
    members, nonmembers = texts(rng, 20), texts(rng, 20)
    assert blind_baseline(members, nonmembers, seed=1) == blind_baseline(members, nonmembers, seed=1)
    assert blind_baseline(members, nonmembers, seed=1) != blind_baseline(members, nonmembers, seed=2)


def test_folds_are_fewer_where_texts_are():
    assert blind_baseline(["a b", "c d", "e f"], ["g h", "i j"], seed=0).num_folds == 2


def test_sets_that_cannot_be_split_are_refused():
    with pytest.raises(InvalidValueError, match="two distinct texts"):
        blind_baseline(["a", "a"], ["b", "c"], seed=0)
    with pytest.raises(InvalidValueError, match="group labels"):
        blind_baseline(["a", "b"], ["c", "d"], seed=0, groups=[1, 2, 3])
    with pytest.raises(InvalidValueError, match="num_folds"):
        blind_baseline(["a", "b"], ["c", "d"], seed=0, num_folds=1)
