"""Canary findings: exposure, extraction, and a lower bound on ε from one run.

* Exposure ranks each canary's log-probability among those of other secrets in its own sentence.
* Extraction asks the model to continue the canary's prefix, once greedily and `num_samples` times at random.
* Where the model shows text alone, exposure is by choice, see `canaries.choice`.
* ε takes the pairs of twins: each pair's coin is guessed from which twin became more likely, or is more exposed. It
  bounds the ε of *exchanging* a planted canary with all its copies for its twin, which is at most twice the ε of
  leaving it out.

Canaries that were held out from training, or planted elsewhere, are recognised by their hashes where the target knows
its members, and take no part.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reticent.auditing.canaries.choice import OPTIONS, Write, exposure_by_choice
from reticent.auditing.canaries.exposure import exposure
from reticent.auditing.canaries.extraction import ExtractionTarget, Extractor
from reticent.auditing.canaries.one_run import one_run_epsilon
from reticent.auditing.canaries.planting import Canary, CanaryKind, candidates
from reticent.auditing.results import CanaryExposure, CanaryResult, OneRunEpsilon
from reticent.protocols import TokenSignals
from reticent.stats.estimate import Estimate
from reticent.stats.intervals import clopper_pearson
from reticent.text.corpus import text_hash

MIN_PAIRS = 2
"""Fewer pairs than this say nothing about ε."""


@dataclass(frozen=True)
class CanarySettings:
    """Settings of the measurements on canaries.

    Attributes:
        num_candidates: other secrets each canary is ranked among, at most.
        num_samples: continuations drawn from each prefix.
        seed: of candidates and draws.
        confidence: of intervals and of ε.
        delta: the δ for which ε is bounded.
    """

    num_candidates: int = 1000
    num_samples: int = 10
    seed: int = 0
    confidence: float = 0.95
    delta: float = 0.0


@dataclass(frozen=True)
class CanaryFindings:
    """An audit's findings on canaries; `incomplete` says what of them the model has left unanswered."""

    results: tuple[CanaryResult, ...]
    one_run: OneRunEpsilon | None
    warnings: tuple[str, ...]
    incomplete: tuple[str, ...] = ()


SignalsOf = Callable[[Sequence[str]], Mapping[str, TokenSignals | None]]
"""Scores texts; the signals by text hash."""


def usable_canaries(
    canaries: Sequence[Canary], member_hashes: frozenset[str] | None
) -> tuple[tuple[Canary, ...], tuple[str, ...]]:
    """The pairs of twins whose labels agree with what the target was trained on, and a warning if some do not.

    Args:
        canaries: all canaries of a file.
        member_hashes: hashes of the texts that the target was trained on; None where that is not known.
    """
    if member_hashes is None:
        return tuple(canaries), ("the target does not say what it was trained on: canaries are taken as planted",)
    wrong = {_pair(canary) for canary in canaries if canary.member != (canary.hash in member_hashes)}
    kept = tuple(canary for canary in canaries if _pair(canary) not in wrong)
    if not wrong:
        return kept, ()
    return kept, (
        f"{len(wrong)} pair(s) of canaries are left out: the planted twin was held out from training or planted in "
        "another corpus, or its twin was trained on",
    )


def audit_canaries(
    canaries: Sequence[Canary],
    signals_of: SignalsOf | None,
    extractor: Extractor | None,
    settings: CanarySettings,
    write: Write | None = None,
) -> CanaryFindings:
    """Measure canaries by kind and number of repetitions, the held-out twins as repetitions 0.

    Args:
        canaries: those to measure, whole pairs.
        signals_of: scores texts with the target; None where it shows no log-probabilities.
        extractor: asks the target to continue prompts; None where that cannot be done.
        settings: how they are measured.
        write: asks the target to choose, where `signals_of` is None.
    """
    warnings: list[str] = []
    greedy = _find_emitted(canaries, extractor, None, settings.seed)
    sampled = _find_emitted(canaries, extractor, settings.num_samples, settings.seed)
    exposures, totals = _exposures(canaries, signals_of, write, settings)
    unscored = sum(canary.id not in totals for canary in canaries)
    if unscored and signals_of is not None:
        warnings.append(f"{unscored} of {len(canaries)} canaries could not be scored and have no exposure")
    groups: dict[tuple[str, int], list[Canary]] = {}
    for canary in canaries:
        groups.setdefault((canary.kind.value, canary.repetitions if canary.member else 0), []).append(canary)
    results = tuple(
        CanaryResult(
            kind=kind,
            repetitions=repetitions,
            num_canaries=len(group),
            exposures=tuple(exposures[canary.id] for canary in group if canary.id in exposures),
            exposure_by="likelihood" if write is None else "choice",
            extracted_greedy=_fraction(group, greedy, settings.confidence),
            extracted_sampled=_fraction(group, sampled, settings.confidence),
            samples_per_canary=settings.num_samples if sampled else 0,
        )
        for (kind, repetitions), group in sorted(groups.items())
    )
    bound = _bound_from_one_run(canaries, totals, settings)
    asked: dict[str, Collection[str]] = {}
    if extractor is not None:
        asked["continued greedily"] = greedy.keys()
    if extractor is not None and settings.num_samples:
        asked["continued at random"] = sampled.keys()
    if write is not None:
        asked["chosen among others"] = exposures.keys()
    return CanaryFindings(results, bound, tuple(warnings), tuple(_unanswered(canaries, asked)))


def _pair(canary: Canary) -> tuple[CanaryKind, int]:
    return canary.kind, canary.pair


def _exposures(
    canaries: Sequence[Canary], signals_of: SignalsOf | None, write: Write | None, settings: CanarySettings
) -> tuple[dict[str, CanaryExposure], dict[str, float]]:
    """Exposure of each canary, and the number that its twin's is held against, by id; those without are absent."""
    if signals_of is not None:
        return _exposures_by_likelihood(canaries, signals_of, settings)
    if write is None:
        return {}, {}
    found: dict[str, CanaryExposure] = {}
    for canary in canaries:
        generator = np.random.default_rng([settings.seed, canary.pair, int(canary.member), 1])
        tried = (exposure_by_choice(canary, write, settings.num_candidates, generator, c) for c in OPTIONS)
        chosen = next((place for place in tried if place is not None), None)
        if chosen is not None:
            found[canary.id] = chosen
    return found, {key: place.exposure_bits for key, place in found.items()}


def _exposures_by_likelihood(
    canaries: Sequence[Canary], signals_of: SignalsOf, settings: CanarySettings
) -> tuple[dict[str, CanaryExposure], dict[str, float]]:
    """Exposure and log-probability of each canary that could be scored, by id."""
    others = {
        canary.id: [
            canary.with_secret(secret)
            for secret in candidates(
                canary, settings.num_candidates, np.random.default_rng([settings.seed, canary.pair, int(canary.member)])
            )
        ]
        for canary in canaries
    }
    signals = signals_of(
        [*(canary.text for canary in canaries), *(text for texts in others.values() for text in texts)]
    )
    exposures: dict[str, CanaryExposure] = {}
    totals: dict[str, float] = {}
    for canary in canaries:
        own = signals[canary.hash]
        if own is None:
            continue
        totals[canary.id] = float(own.logp.sum())
        rivals = [found.logp.sum() for text in others[canary.id] if (found := signals[text_hash(text)]) is not None]
        if rivals:
            place = exposure(totals[canary.id], rivals)
            exposures[canary.id] = CanaryExposure(
                canary_id=canary.id, rank=place.rank, num_candidates=place.num_candidates, exposure_bits=place.bits
            )
    return exposures, totals


def _find_emitted(
    canaries: Sequence[Canary], extractor: Extractor | None, num_samples: int | None, seed: int
) -> dict[str, bool]:
    """True if each canary's secret was emitted at least once, by id; canaries without an answer are absent."""
    if extractor is None or num_samples == 0:
        return {}
    targets = [ExtractionTarget(canary.prefix, canary.secret) for canary in canaries]
    counts = extractor.count_emitted(targets, num_samples, seed)
    return {canary.id: count > 0 for canary, count in zip(canaries, counts, strict=True) if count is not None}


def _unanswered(canaries: Sequence[Canary], asked: Mapping[str, Collection[str]]) -> Iterator[str]:
    for how, answers in asked.items():
        missing = sum(canary.id not in answers for canary in canaries)
        if missing:
            yield f"partial result: {missing} of {len(canaries)} canaries were not {how}"


def _fraction(group: Sequence[Canary], emitted: Mapping[str, bool], confidence: float) -> Estimate | None:
    answers = [emitted[canary.id] for canary in group if canary.id in emitted]
    if not answers:
        return None
    low, high = clopper_pearson(sum(answers), len(answers), confidence)
    return Estimate(value=sum(answers) / len(answers), low=low, high=high, confidence=confidence)


def _bound_from_one_run(
    canaries: Sequence[Canary], totals: Mapping[str, float], settings: CanarySettings
) -> OneRunEpsilon | None:
    """The one-run bound on ε; each coin is guessed from which twin, `...a` or `...b`, is more likely or exposed."""
    pairs: dict[tuple[CanaryKind, int], list[Canary]] = {}
    for canary in canaries:
        pairs.setdefault(_pair(canary), []).append(canary)
    scores, coins = [], []
    for pair in pairs.values():
        twins = sorted(pair, key=lambda canary: canary.id)
        if len(twins) == 2 and all(twin.id in totals for twin in twins):
            scores.append(totals[twins[0].id] - totals[twins[1].id])
            coins.append(twins[0].member)
    if len(scores) < MIN_PAIRS:
        return None
    return one_run_epsilon(scores, coins, settings.delta, settings.seed, settings.confidence)
