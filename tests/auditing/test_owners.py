"""Owners of texts: kept together, refused where divided, and attacked as a whole."""

import math

import numpy as np
import pytest

from reticent.auditing.attacks.registry import parse_attacks
from reticent.auditing.owners import Owners
from reticent.auditing.results import summarise_attack
from reticent.errors import AuditError
from reticent.text.corpus import text_hash

TEXTS = ["a", "b", "c", "d", "e"]
HASHES = [text_hash(text) for text in TEXTS]
OWNERS = Owners.of(TEXTS, ["p", "q", "p", "r", "q"])


def test_texts_of_one_owner_have_one_number():
    assert OWNERS.clusters(HASHES).tolist() == [0, 1, 0, 2, 1]
    assert OWNERS.names(HASHES[:2]) == ["p", "q"]


def test_an_owner_on_both_sides_is_refused_without_its_name():
    OWNERS.refuse_divided([HASHES[0], HASHES[2]], [HASHES[1], HASHES[3]])
    with pytest.raises(AuditError, match="1 owner") as caught:
        OWNERS.refuse_divided(HASHES[:2], HASHES[2:4])
    assert "'p'" not in str(caught.value)


def test_groups_that_share_an_owner_are_joined():
    joined = OWNERS.join_groups([0, 1, 2, 1, 4], HASHES)
    # q joins b and e, and group 1 joins b and d; p joins a and c.
    assert len({joined[1], joined[3], joined[4]}) == 1
    assert joined[0] == joined[2] != joined[1]


def test_an_owners_score_is_the_mean_of_what_was_scored():
    scores = {HASHES[0]: 1.0, HASHES[2]: 3.0, HASHES[1]: math.inf, HASHES[4]: 0.0}
    assert OWNERS.mean_scores(scores, HASHES) == [2.0, math.inf]
    assert OWNERS.mean_scores(scores | {HASHES[4]: -math.inf}, HASHES) == [2.0]


def test_several_weak_signs_add_up():
    """Thirty texts an owner, each shifted by a fifth of a standard deviation: plain in an owner, hardly in a text."""
    generator = np.random.default_rng(0)
    [attack] = parse_attacks("likelihood")
    members, nonmembers = generator.normal(0.2, 1, 40 * 30), generator.normal(0, 1, 60 * 30)
    clusters = np.repeat(np.arange(40), 30), np.repeat(np.arange(60), 30)
    per_text = summarise_attack(attack, members, nonmembers, clusters=clusters)
    per_owner = summarise_attack(attack, members.reshape(40, 30).mean(1), nonmembers.reshape(60, 30).mean(1))
    assert per_text.auc.value < 0.6 < 0.75 < per_owner.auc.value
    assert per_text.epsilon is None
    assert per_owner.epsilon is not None


def test_a_set_of_one_owner_has_no_figures():
    [attack] = parse_attacks("likelihood")
    one, several = np.zeros(4, np.int64), np.arange(4)
    assert "two of each are needed" in summarise_attack(attack, [1.0] * 4, [0.0] * 4, clusters=(one, several)).reason
