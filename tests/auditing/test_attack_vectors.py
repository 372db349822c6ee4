"""Every score of tests/vectors/audit.json, computed outside the project from the definitions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from signals_by_hand import signals

from reticent.auditing.attacks.evidence import Missing, TextEvidence
from reticent.auditing.attacks.registry import ATTACKS, AttackName

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "audit.json").read_text())
SCORES = {
    "likelihood": AttackName.LIKELIHOOD,
    "reference": AttackName.REFERENCE,
    "zlib": AttackName.ZLIB,
    "min_k": AttackName.MIN_K,
    "min_k_plus_plus": AttackName.MIN_K_PLUS_PLUS,
    "ez_mia": AttackName.EZ_MIA,
    "wbc": AttackName.WBC,
}


def evidence(vector):
    target = signals(
        vector["target_logp"],
        mu=vector["mu"],
        sigma2=np.square(vector["sigma"]),
        rank=np.where(vector["top1_match"], 0, 7),
    )
    return TextEvidence(target=target, reference=signals(vector["reference_logp"]), text=vector["text"])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("vector", VECTORS["texts"], ids=lambda vector: vector["text"][:9])
def test_the_score_of_the_vector(vector, score):
    found, expected = ATTACKS[SCORES[score]].score(evidence(vector)), vector[score]
    if expected is None:
        assert isinstance(found, Missing)
    elif expected == "inf":
        assert found == math.inf
    else:
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_the_vectors_are_for_the_default_fraction_and_hold_every_score():
    assert VECTORS["k"] == 0.2
    assert len(VECTORS["texts"]) == 12
    assert all(vector.keys() >= SCORES.keys() for vector in VECTORS["texts"])
