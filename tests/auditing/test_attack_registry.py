"""The registry: names, needs and parsing, and that no attack lets a gap pass as a number."""

import dataclasses
import math

import numpy as np
import pytest
from signals_by_hand import signals

from reticent.auditing.attacks.evidence import (
    GuessEvidence,
    Missing,
    Need,
    SampledEvidence,
    SelfPromptedEvidence,
    ShadowEvidence,
    TextEvidence,
)
from reticent.auditing.attacks.registry import ATTACKS, AttackName, parse_attacks
from reticent.errors import InvalidValueError

TARGET = signals([-1.0, -2.0, -3.0], mu=[-2.0] * 3, sigma2=[1.0] * 3, rank=[0, 5, 9])
FULL = TextEvidence(
    target=TARGET,
    reference=signals([-2.0, -1.0, -5.0]),
    text="a text",
    neighbour_means=np.array([-2.5, -3.5]),
    gradient_norm=0.25,
    shadows=ShadowEvidence(np.array([-1.0, -1.5]), np.array([-2.0, -3.0]), (0.5, 0.5), np.array([-9.0, 9.0]), 1.0),
    self_prompted=SelfPromptedEvidence(np.array([-2.5]), signals([-2.0, -2.0]), np.array([-2.0])),
    prefixed=signals([-2.0, -3.0, -4.0]),
    samples=SampledEvidence("the rest of it", ("the other rest",)),
    guesses=GuessEvidence(np.array([1.0, 0.5]), np.array([0.5, 0.25]), np.array([-1.0, -2.0])),
)
FIELD_OF_NEED = {
    Need.TARGET: "target",
    Need.REFERENCE: "reference",
    Need.TEXT: "text",
    Need.NEIGHBOURS: "neighbour_means",
    Need.GRADIENT: "gradient_norm",
    Need.SHADOWS: "shadows",
    Need.SELF_PROMPTED: "self_prompted",
    Need.PREFIX: "prefixed",
    Need.SAMPLES: "samples",
    Need.GUESSES: "guesses",
}


def test_every_name_has_its_attack_in_order():
    assert list(ATTACKS) == list(AttackName)
    assert all(attack.name is name for name, attack in ATTACKS.items())
    assert {attack.name for attack in ATTACKS.values() if attack.is_white_box} == {AttackName.GRADIENT_NORM}


@pytest.mark.parametrize("name", AttackName)
def test_an_attack_scores_from_its_stated_needs_alone(name):
    stated = {FIELD_OF_NEED[need]: getattr(FULL, FIELD_OF_NEED[need]) for need in ATTACKS[name].needs}
    score = ATTACKS[name].score(TextEvidence(**stated))
    assert isinstance(score, float)
    assert score == ATTACKS[name].score(FULL)


@pytest.mark.parametrize(
    ("name", "need"),
    [
        (name, need)
        for name in AttackName
        for need in sorted(ATTACKS[name].needs)
        if not (name is AttackName.GRADIENT_NORM and need is Need.TARGET)
    ],
)
def test_an_ingredient_that_is_not_there_is_named_and_its_own_reason_is_kept(name, need):
    without = dataclasses.replace(FULL, **{FIELD_OF_NEED[need]: None})
    assert ATTACKS[name].score(without) == Missing(f"this audit has no {need} for the text")
    if need is not Need.TEXT:
        broken = dataclasses.replace(FULL, **{FIELD_OF_NEED[need]: Missing("it did not fit")})
        assert ATTACKS[name].score(broken) == Missing("it did not fit")


@pytest.mark.parametrize("name", [AttackName.LIKELIHOOD, AttackName.REFERENCE, AttackName.ZLIB, AttackName.RECALL])
def test_mistake_a_nan_never_passes_as_a_score(name):
    broken = dataclasses.replace(FULL, target=signals([-1.0, math.nan, -3.0]))
    assert isinstance(ATTACKS[name].score(broken), Missing)


def test_more_score_means_more_likely_a_member_for_every_attack():
    """The same text, once as a model sees what it learnt and once as it sees what it did not."""
    learnt, unlearnt = [-0.5, -0.6, -0.7], [-1.9, -2.1, -2.6]
    base = signals([-2.0, -2.0, -2.0])

    def seen(logp, norm, prefixed, written, guessed):
        return dataclasses.replace(
            FULL,
            target=signals(logp, mu=[-1.5] * 3, sigma2=[1.0] * 3, rank=[1, 1, 1]),
            reference=base,
            gradient_norm=norm,
            prefixed=signals(prefixed),
            samples=SampledEvidence("the rest of it", (written,)),
            guesses=GuessEvidence(np.array(guessed), np.array([0.5, 0.25]), np.array([-1.0, -2.0])),
            shadows=ShadowEvidence(np.array([-0.6]), np.array([-2.0]), (0.1, 0.1), np.log([0.3, 0.5, 1.2]), 1.0),
        )

    member, nonmember = (
        seen(learnt, 0.1, [-1.5, -1.6, -1.7], "the rest of it", [1.0, 1.0]),
        seen(unlearnt, 2.0, [-1.9, -2.1, -2.6], "of no use", [0.5, 0.0]),
    )
    for attack in ATTACKS.values():
        assert attack.score(member) > attack.score(nonmember), attack.name


def test_all_and_lists_are_parsed_once_each_in_order():
    assert parse_attacks("all") == tuple(ATTACKS.values())
    names = [attack.name for attack in parse_attacks(" min-k++, Likelihood,min-k++ ")]
    assert names == [AttackName.LIKELIHOOD, AttackName.MIN_K_PLUS_PLUS]


@pytest.mark.parametrize("text", ["", " , ", "likelihod", "all,nothing"])
def test_an_unknown_attack_is_refused_with_the_names(text):
    with pytest.raises(InvalidValueError, match=r"likelihood, reference, zlib, .*recall"):
        parse_attacks(text)
