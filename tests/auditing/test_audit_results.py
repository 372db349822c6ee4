"""Results go to JSON and back; one attack's figures agree with the metrics they come from."""

import enum
import json
import math
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from reticent.auditing.attacks.registry import ATTACKS, AttackName
from reticent.auditing.metrics import auc, membership_advantage, tpr_at_fpr
from reticent.auditing.results import (
    AttackResult,
    AuditResult,
    CanaryExposure,
    CanaryResult,
    DataRecord,
    Estimate,
    MissingScore,
    SkippedAttack,
    plain,
    summarise_attack,
)
from reticent.errors import InvalidValueError

ATTACK = ATTACKS[AttackName.LIKELIHOOD]


def audit(**changes):
    record = DataRecord(num_members=2, num_nonmembers=2, members_hash="a", nonmembers_hash="b")
    return AuditResult(**{"created": "2026-01-01", "target": {}, "data": record, "scoring": {}, **changes})


def summary(members, nonmembers, **options):
    return summarise_attack(ATTACK, members, nonmembers, **options)


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    return rng.normal(1, 1, 400), rng.normal(0, 1, 400)


def test_the_figures_are_those_of_the_metrics(scores):
    members, nonmembers = scores
    result = summary(members, nonmembers, seed=3)
    assert isinstance(result, AttackResult)
    assert (result.name, result.title, result.source) == ("likelihood", "Likelihood", "Yeom 2018")
    assert result.auc.value == auc(members, nonmembers)
    assert result.auc.low < result.auc.value < result.auc.high
    value, low, high = membership_advantage(members, nonmembers, 3)
    assert result.advantage == Estimate(value=value, low=low, high=high, confidence=0.95)
    assert result.balanced_accuracy.value == pytest.approx((1 + value) / 2)
    assert [rate.fpr for rate in result.rates] == [0.001, 0.01, 0.05]
    assert result.rates[1].tpr.value == tpr_at_fpr(members, nonmembers, 0.01)[0]
    assert result.epsilon.num_members + result.epsilon.num_nonmembers == 400
    assert result.warnings == ()


def test_mistake_a_rate_that_400_nonmembers_cannot_show_is_refused(scores):
    lowest = summary(*scores).rates[0]
    assert lowest.tpr is None
    assert "3000 scored non-members" in lowest.unavailable


def test_histogram_holds_every_score(scores):
    members, nonmembers = scores
    histogram = summary([*members, math.inf], [*nonmembers, math.inf, -math.inf]).histogram
    assert sum(histogram.members) == sum(histogram.nonmembers) == 400
    assert (histogram.members_infinite, histogram.nonmembers_infinite) == ((0, 1), (1, 1))
    assert len(histogram.edges) == len(histogram.members) + 1
    first = sum(histogram.edges[0] <= score < histogram.edges[1] for score in members)
    assert histogram.members[0] == first


@pytest.mark.parametrize(
    ("members", "nonmembers"),
    [
        ([1.0, 1.0], [1.0, 1.0]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e9, 1e9 + 1e-7], [1e9, 1e9]),
        ([math.inf, math.inf], [-math.inf, -math.inf]),
        ([1e300, -1e300], [1e-300, 0.0]),
        ([math.inf, 2.0], [math.inf, 3.0]),
    ],
)
def test_degenerate_scores_still_make_a_result_that_json_can_hold(members, nonmembers):
    result = summary(members, nonmembers)
    assert (np.diff(result.histogram.edges) > 0).all()
    text = result.model_dump_json()
    assert json.loads(text, parse_constant=pytest.fail)
    assert AttackResult.model_validate_json(text) == result


def test_constant_scores_and_near_perfect_areas_are_warned_of():
    assert "same score" in summary([1.0] * 5, [1.0] * 5).warnings[0]
    assert "collapsed" in summary([2.0] * 5, [1.0] * 5).warnings[0]
    assert "collapsed" in summary([1.0] * 5, [2.0] * 5).warnings[0]


def test_many_missing_scores_are_warned_of_by_set(scores):
    missing = [MissingScore(text_hash=f"{i}", is_member=True, reason="too short") for i in range(40)]
    (warning,) = summary(*scores, missing=missing).warnings
    assert "40 of 440 members" in warning
    assert summary(*scores, missing=missing[:20]).warnings == ()
    assert summary(*scores, missing=missing).missing == tuple(missing)


def test_an_attack_that_scored_too_few_texts_is_skipped_with_the_commonest_reason():
    missing = [MissingScore(text_hash=f"{i}", is_member=False, reason="too short" if i else "other") for i in range(3)]
    skipped = summary([1.0, 2.0], [1.0], missing=missing)
    assert isinstance(skipped, SkippedAttack)
    assert "1 non-members" in skipped.reason
    assert "2 texts have no score because too short" in skipped.reason
    assert isinstance(summary([], []), SkippedAttack)


def test_nan_scores_are_refused():
    with pytest.raises(InvalidValueError, match="NaN"):
        summary([math.nan, 1.0], [1.0, 2.0])


def test_a_whole_audit_survives_the_round_trip(scores):
    exposures = tuple(
        CanaryExposure(canary_id=f"{i}", rank=1, num_candidates=1024, exposure_bits=b) for i, b in ((0, 10.0), (1, 4.0))
    )
    canary = CanaryResult(kind="digits", repetitions=4, num_canaries=2, exposures=exposures)
    assert canary.mean_exposure_bits == 7.0
    result = audit(attacks=(summary(*scores),), skipped=(summary([], []),), canaries=(canary,), warnings=("one",))
    assert AuditResult.model_validate_json(result.model_dump_json()) == result


class Colour(enum.StrEnum):
    RED = "red"


def test_mistake_numpy_scalars_do_not_stop_a_result_from_being_written():
    settings = {
        "rank": np.int64(8), "alpha": np.float32(0.5), "flag": np.bool_(True), "path": Path("a") / "b",
        "sizes": np.arange(3), "nested": [(np.float64(1.5), Colour.RED)], "names": {"b", "a"}, 3: math.nan,
        "record": Estimate(value=np.float64(0.5), low=0.0, high=1.0, confidence=0.95),
    }  # fmt: skip
    result = audit(
        settings=settings,
        data=DataRecord(num_members=np.int64(2), num_nonmembers=2, members_hash="a", nonmembers_hash="b"),
    )
    assert json.loads(result.model_dump_json(), parse_constant=pytest.fail)["settings"] == {
        "rank": 8, "alpha": 0.5, "flag": True, "path": str(Path("a") / "b"), "sizes": [0, 1, 2],
        "nested": [[1.5, "red"]], "names": ["a", "b"], "3": "nan",
        "record": {"value": 0.5, "low": 0.0, "high": 1.0, "confidence": 0.95},
    }  # fmt: skip
    assert AuditResult.model_validate_json(result.model_dump_json()) == result


def test_what_json_cannot_hold_is_refused_when_the_record_is_made():
    with pytest.raises(ValueError, match="bytes"):
        plain({"key": b"raw"})
    for value in (math.nan, math.inf):
        with pytest.raises(ValidationError):
            Estimate(value=value, low=0, high=1, confidence=0.95)
