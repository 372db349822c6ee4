"""An audit result made from invented scores, with everything a report can show."""

import numpy as np

from reticent.auditing.results import (
    AttackResult,
    AuditResult,
    BlindBaseline,
    CanaryExposure,
    CanaryResult,
    DataRecord,
    EpsilonBound,
    Estimate,
    MissingScore,
    NearDuplicate,
    OneRunEpsilon,
    RateAtFpr,
    RocCurve,
    ScoreHistogram,
    SkippedAttack,
)

HOSTILE = "<script>alert('x')</script>"


def estimate(value: float, half_width: float = 0.05) -> Estimate:
    return Estimate(value=value, low=value - half_width, high=value + half_width, confidence=0.95)


def sample_attack(name: str, title: str, auc: float, *, num_nonmembers: int = 200) -> AttackResult:
    fpr = tuple(np.linspace(0, 1, 11).tolist())
    return AttackResult(
        name=name,
        title=title,
        source="Someone 2024",
        auc=estimate(auc),
        rates=(
            RateAtFpr(fpr=0.001, unavailable=f"needs 3,000 non-members, there are {num_nonmembers}"),
            RateAtFpr(fpr=0.05, tpr=estimate(0.2)),
        ),
        advantage=estimate(0.3),
        epsilon=EpsilonBound(
            low=0.7, confidence=0.95, delta=0, true_positives=40, num_members=100, false_positives=9, num_nonmembers=100
        ),
        num_members=190,
        num_nonmembers=num_nonmembers,
        missing=(MissingScore(text_hash="ab" * 32, is_member=True, reason="one scored token"),),
        roc=RocCurve(fpr=fpr, tpr=tuple(x**0.5 for x in fpr)),
        histogram=ScoreHistogram(
            edges=(-2.0, -1.0, 0.0, 1.0), members=(10, 80, 97), nonmembers=(60, 100, 40), members_infinite=(0, 3)
        ),
    )


def sample_audit(**changes: object) -> AuditResult:
    fields: dict[str, object] = {
        "created": "2025-01-02T03:04:05Z",
        "target": {"name": f"clinic model {HOSTILE}", "technique": "lora", "training": {"epochs": 3}},
        "reference": {"name": "smollm2-135m"},
        "neighbours_from": "the base model",
        "data": DataRecord(
            num_members=190,
            num_nonmembers=200,
            members_hash="1" * 64,
            nonmembers_hash="2" * 64,
            near_duplicates=(NearDuplicate(member_hash="3" * 64, nonmember_hash="4" * 64),),
        ),
        "scoring": {"bos": "added once", "first_scored": 1},
        "blind": BlindBaseline(auc=estimate(0.51), beats_chance=False, num_folds=5),
        "attacks": (sample_attack("likelihood", "Likelihood", 0.6), sample_attack("reference", "Reference", 0.8)),
        "skipped": (
            SkippedAttack(name="lira", title="LiRA", source="Carlini 2022", reason="no shadow models were given"),
        ),
        "canaries": (
            CanaryResult(
                kind="digits",
                repetitions=4,
                num_canaries=2,
                exposures=(
                    CanaryExposure(canary_id="c1", rank=1, num_candidates=1024, exposure_bits=10.0),
                    CanaryExposure(canary_id="c2", rank=4, num_candidates=1024, exposure_bits=8.0),
                ),
                extracted_greedy=estimate(0.5, 0.4),
            ),
        ),
        "one_run": OneRunEpsilon(
            epsilon=0.4, delta=1e-5, confidence=0.95, num_canaries=64, num_guesses=20, num_correct=15
        ),
        "warnings": ("the two sets share a near-duplicate",),
        "settings": {"seed": 0, "attacks": ["likelihood", "reference"]},
        "versions": {"reticent": "0"},
    }
    return AuditResult.model_validate(fields | changes)
