"""Results of an audit as records that go to JSON and back unchanged, and one attack's figures from its scores.

Every number is finite: scores of ±inf are counted beside the histogram, an ε that the data do not bound is 0, and
free-form records turn NumPy scalars into plain ones when they are made, so that writing a finished audit cannot fail.
Texts appear by SHA-256 alone.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, BeforeValidator, Field

from reticent._settings import FiniteModel
from reticent.auditing import metrics
from reticent.auditing.attacks.registry import Attack
from reticent.stats.clusters import clustered_auc_interval, effective_size
from reticent.stats.estimate import Estimate
from reticent.stats.intervals import NUM_RESAMPLES


def plain(value: Any) -> Any:
    """The value in JSON's own types: NumPy scalars and arrays, paths, enums and records unwrapped.

    Numbers that JSON cannot hold become the strings "nan", "inf" and "-inf".

    Raises:
        ValueError: the value is of another type; the message names the type.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [plain(entry) for entry in (sorted(value) if isinstance(value, set | frozenset) else value)]
    raise ValueError(f"a record cannot hold a {type(value).__name__}")


Details = Annotated[dict[str, Any], BeforeValidator(plain)]
"""A free-form record of plain JSON values."""


class RateAtFpr(FiniteModel):
    """The true-positive rate at a false-positive rate, or why the data cannot show it. Exactly one of the two."""

    fpr: float = Field(gt=0, lt=1)
    tpr: Estimate | None = None
    unavailable: str | None = None


class EpsilonBound(FiniteModel):
    """A lower bound on ε of any (ε, δ)-private training that made the target, from one threshold's two rates.

    The threshold was chosen on one half of the texts; the counts are of the other half. `low` is 0 where the data show
    nothing.
    """

    low: float = Field(ge=0)
    confidence: float = Field(gt=0, lt=1)
    delta: float = Field(ge=0, lt=1)
    true_positives: int = Field(ge=0)
    num_members: int = Field(ge=1)
    false_positives: int = Field(ge=0)
    num_nonmembers: int = Field(ge=1)


class MissingScore(FiniteModel):
    """A text that an attack could not score."""

    text_hash: str
    is_member: bool
    reason: str


class RocCurve(FiniteModel):
    """The corners of the empirical curve, from (0, 0) to (1, 1), equal scores taken together."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


class ScoreHistogram(FiniteModel):
    """Counts of finite scores between edges (one more edge than counts); scores of −inf and +inf are counted aside."""

    edges: tuple[float, ...]
    members: tuple[int, ...]
    nonmembers: tuple[int, ...]
    members_infinite: tuple[int, int] = (0, 0)
    nonmembers_infinite: tuple[int, int] = (0, 0)


class AttackResult(FiniteModel):
    """One attack's figures on the texts it could score; more score = more likely a member."""

    name: str
    title: str
    source: str
    auc: Estimate
    rates: tuple[RateAtFpr, ...]
    advantage: Estimate
    """TPR minus FPR; each half of the texts is judged by the threshold that was best on the other half."""
    epsilon: EpsilonBound | None
    num_members: int = Field(ge=1)
    num_nonmembers: int = Field(ge=1)
    missing: tuple[MissingScore, ...] = ()
    roc: RocCurve
    histogram: ScoreHistogram
    warnings: tuple[str, ...] = ()

    def tpr_at(self, fpr: float) -> Estimate | None:
        """Return the rate of true positives at one of the rates that are reported; None where texts are too few."""
        return next((rate.tpr for rate in self.rates if rate.fpr == fpr), None)

    @property
    def balanced_accuracy(self) -> Estimate:
        """The same as the advantage on another scale: ½ (1 + TPR − FPR)."""
        low, value, high = ((1 + x) / 2 for x in (self.advantage.low, self.advantage.value, self.advantage.high))
        return Estimate(value=value, low=low, high=high, confidence=self.advantage.confidence)


class SkippedAttack(FiniteModel):
    """An attack that has no figures: it was not possible on this target, or it could score too few texts."""

    name: str
    title: str
    source: str
    reason: str
    missing: tuple[MissingScore, ...] = ()


class BlindBaseline(FiniteModel):
    """Separation of the two sets without any model; above chance, they differ in distribution."""

    auc: Estimate
    beats_chance: bool
    num_folds: int = Field(ge=2)


class NearDuplicate(FiniteModel):
    """A member and a non-member that are nearly the same text."""

    member_hash: str
    nonmember_hash: str


class DataRecord(FiniteModel):
    """The two sets by count and hash: a set's hash is over its sorted text hashes."""

    num_members: int = Field(ge=0)
    num_nonmembers: int = Field(ge=0)
    members_hash: str
    nonmembers_hash: str
    num_repeated: int = Field(default=0, ge=0)
    """Exact repetitions within a set that were dropped."""
    num_truncated: int = Field(default=0, ge=0)
    near_duplicates: tuple[NearDuplicate, ...] = ()


class CanaryExposure(FiniteModel):
    """The rank of one canary's score among candidates that were never planted."""

    canary_id: str
    rank: int = Field(ge=1)
    num_candidates: int = Field(ge=1)
    exposure_bits: float = Field(ge=0)


class CanaryResult(FiniteModel):
    """All canaries of one kind that were planted equally often."""

    kind: str
    repetitions: int = Field(ge=0)
    num_canaries: int = Field(ge=1)
    exposures: tuple[CanaryExposure, ...] = ()
    exposure_by: Literal["likelihood", "choice"] = "likelihood"
    """`choice`: from a knockout by text alone; the rank is then the most that it can be, the exposure the least."""
    extracted_greedy: Estimate | None = None
    extracted_sampled: Estimate | None = None
    """Fraction emitted verbatim in at least one of `samples_per_canary` samples."""
    samples_per_canary: int = Field(default=0, ge=0)

    @property
    def mean_exposure_bits(self) -> float | None:
        """Mean exposure; of canaries that the model never saw log2(e) = 1.44 by likelihood, at most 1 by choice."""
        if not self.exposures:
            return None
        return sum(exposure.exposure_bits for exposure in self.exposures) / len(self.exposures)


class OneRunEpsilon(FiniteModel):
    """The largest ε rejected at the confidence, from one model and many independently included canaries."""

    epsilon: float = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    confidence: float = Field(gt=0, lt=1)
    num_canaries: int = Field(ge=1)
    num_guesses: int = Field(ge=1)
    num_correct: int = Field(ge=0)


class OwnerResults(FiniteModel):
    """Every attack per owner: an owner's score is the mean of the scores of the owner's texts.

    Attributes:
        num_members: owners whose texts are members.
        num_nonmembers: the others.
        attacks: their figures; ε is for data sets of which one has an owner more.
        skipped: attacks that scored too few owners.
    """

    num_members: int = Field(ge=1)
    num_nonmembers: int = Field(ge=1)
    attacks: tuple[AttackResult, ...] = ()
    skipped: tuple[SkippedAttack, ...] = ()


class AuditResult(FiniteModel):
    """One whole audit. `schema_version` rises when a reader of the old form could be misled."""

    schema_version: Literal[1] = 1
    created: str
    target: Details
    reference: Details | None = None
    neighbours_from: str | None = None
    data: DataRecord
    scoring: Details
    blind: BlindBaseline | None = None
    attacks: tuple[AttackResult, ...] = ()
    skipped: tuple[SkippedAttack, ...] = ()
    owners: OwnerResults | None = None
    """Present where texts have owners; the intervals of `attacks` then take owners as what was sampled."""
    canaries: tuple[CanaryResult, ...] = ()
    one_run: OneRunEpsilon | None = None
    warnings: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Everything asked for that has no result although the target seemed to allow it; empty for a whole audit."""
    settings: Details = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)


RATES = (0.001, 0.01, 0.05)
"""The false-positive rates that are reported."""

_NUM_BINS = 30
MANY_MISSING = 0.05
"""The share of texts without a score from which figures are said to be of the others."""


def summarise_attack(
    attack: Attack,
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    missing: Sequence[MissingScore] = (),
    seed: int = 0,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    clusters: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
) -> AttackResult | SkippedAttack:
    """One attack's figures; skipped, with the reason, where it scored fewer than two texts of either set.

    Args:
        attack: what made the scores.
        member_scores: of the members that have one, float64[members]; ±inf is allowed.
        nonmember_scores: of the non-members that have one.
        missing: the texts without a score.
        seed: of the bootstrap and of the halves on which thresholds are chosen.
        confidence: of every interval and bound.
        num_resamples: of the bootstrap.
        clusters: the number of the owner of each member and of each non-member that has a score. Intervals are then
            over owners, and there is no ε: texts of one owner are no independent trials.

    Raises:
        InvalidValueError: a score is NaN.
    """
    members, nonmembers = np.asarray(member_scores, np.float64), np.asarray(nonmember_scores, np.float64)
    identity = {"name": str(attack.name), "title": attack.title, "source": attack.source, "missing": tuple(missing)}
    counts = (len(members), len(nonmembers)) if clusters is None else tuple(len(np.unique(c)) for c in clusters)
    if min(counts) < 2:
        return SkippedAttack(**identity, reason=_explain_skip(len(members), len(nonmembers), missing))
    area = metrics.auc(members, nonmembers)
    low, high = _auc_interval(members, nonmembers, clusters, seed, confidence, num_resamples)
    advantage = metrics.membership_advantage(members, nonmembers, seed, confidence, clusters)
    worth = None if clusters is None else (effective_size(clusters[0]), effective_size(clusters[1]))
    fpr, tpr = metrics.roc_curve(members, nonmembers)
    return AttackResult(
        **identity,
        auc=Estimate(value=area, low=low, high=high, confidence=confidence),
        rates=tuple(_rate(members, nonmembers, rate, confidence, worth) for rate in RATES),
        advantage=Estimate(value=advantage[0], low=advantage[1], high=advantage[2], confidence=confidence),
        epsilon=_epsilon_bound(members, nonmembers, seed, confidence) if clusters is None else None,
        num_members=len(members),
        num_nonmembers=len(nonmembers),
        roc=RocCurve(fpr=tuple(fpr.tolist()), tpr=tuple(tpr.tolist())),
        histogram=_histogram(members, nonmembers),
        warnings=tuple(_warnings(members, nonmembers, missing, area)),
    )


def _auc_interval(
    members: NDArray[np.float64],
    nonmembers: NDArray[np.float64],
    clusters: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    seed: int,
    confidence: float,
    num_resamples: int,
) -> tuple[float, float]:
    if clusters is None:
        return metrics.bootstrap_auc_interval(members, nonmembers, seed, confidence, num_resamples)
    return clustered_auc_interval(members, nonmembers, *clusters, seed, confidence, num_resamples)


def _epsilon_bound(
    members: NDArray[np.float64], nonmembers: NDArray[np.float64], seed: int, confidence: float
) -> EpsilonBound:
    bound = metrics.split_half_epsilon(members, nonmembers, seed, confidence)
    return EpsilonBound(
        low=bound.epsilon,
        confidence=confidence,
        delta=0.0,
        true_positives=bound.true_positives,
        num_members=bound.num_members,
        false_positives=bound.false_positives,
        num_nonmembers=bound.num_nonmembers,
    )


def _explain_skip(num_members: int, num_nonmembers: int, missing: Sequence[MissingScore]) -> str:
    reason = f"it scored {num_members} members and {num_nonmembers} non-members, and two of each are needed"
    if not missing:
        return reason
    [(commonest, count)] = Counter(entry.reason for entry in missing).most_common(1)
    return f"{reason}; {count} texts have no score because {commonest}"


def _rate(
    members: NDArray[np.float64],
    nonmembers: NDArray[np.float64],
    fpr: float,
    confidence: float,
    worth: tuple[float, float] | None,
) -> RateAtFpr:
    reason = metrics.unavailable_rate(fpr, len(nonmembers) if worth is None else int(worth[1]))
    if reason is not None:
        return RateAtFpr(fpr=fpr, unavailable=reason)
    value, low, high = metrics.tpr_at_fpr(members, nonmembers, fpr, confidence, worth)
    return RateAtFpr(fpr=fpr, tpr=Estimate(value=value, low=low, high=high, confidence=confidence))


def _histogram(members: NDArray[np.float64], nonmembers: NDArray[np.float64]) -> ScoreHistogram:
    finite = np.concatenate([members[np.isfinite(members)], nonmembers[np.isfinite(nonmembers)]])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    # A range that rounding could have made is no range: bins narrower than a float's spacing do not exist.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = max(0.5, abs(low) / 2)
        low, high = low - margin, high + margin
    edges = np.linspace(low, high, _NUM_BINS + 1)
    return ScoreHistogram(
        edges=tuple(edges.tolist()),
        members=tuple(np.histogram(members[np.isfinite(members)], edges)[0].tolist()),
        nonmembers=tuple(np.histogram(nonmembers[np.isfinite(nonmembers)], edges)[0].tolist()),
        members_infinite=(int(np.isneginf(members).sum()), int(np.isposinf(members).sum())),
        nonmembers_infinite=(int(np.isneginf(nonmembers).sum()), int(np.isposinf(nonmembers).sum())),
    )


def _warnings(
    members: NDArray[np.float64], nonmembers: NDArray[np.float64], missing: Sequence[MissingScore], area: float
) -> Iterator[str]:
    if metrics.constant_scores(members, nonmembers):
        yield "all texts have the same score: the attack decided nothing"
    separation = metrics.separation_warning(area)
    if separation is not None:
        yield separation
    for name, scores, is_member in (("members", members, True), ("non-members", nonmembers, False)):
        without = sum(entry.is_member == is_member for entry in missing)
        if without > MANY_MISSING * (without + len(scores)):
            yield f"{without} of {without + len(scores)} {name} have no score; the figures are of the others"
