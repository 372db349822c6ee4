"""One audit from texts to result: sets checked, signals gathered, attacks scored, metrics with intervals, canaries.

The order is fixed: what is wrong with the sets or the attacks is said before anything is scored; scores are written as
soon as they are computed, and the result before anything is rendered. No text enters a message, a log or the result;
`scores.parquet` holds texts only where they were asked for.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from reticent._records import package_versions
from reticent.auditing.artifacts import ScoreColumn, make_audit_folder, write_audit_result, write_scores
from reticent.auditing.attacks.evidence import Missing, Need
from reticent.auditing.attacks.registry import Attack, AttackName
from reticent.auditing.blind import blind_baseline
from reticent.auditing.canaries.canary_audit import CanaryFindings, CanarySettings, audit_canaries, usable_canaries
from reticent.auditing.canaries.planting import Canary
from reticent.auditing.failures import describe_failure
from reticent.auditing.feasibility import AttackPlan, plan_attacks
from reticent.auditing.inputs.gathering import AttackInputs, Gatherer, GatheringSettings
from reticent.auditing.inputs.membership import check_labels
from reticent.auditing.inputs.overlap import Overlap, TextSet, compare_sets, refuse_shared_texts
from reticent.auditing.metrics import training_warning
from reticent.auditing.owners import Owners
from reticent.auditing.results import (
    AttackResult,
    AuditResult,
    BlindBaseline,
    DataRecord,
    MissingScore,
    OwnerResults,
    SkippedAttack,
    summarise_attack,
)
from reticent.auditing.targets.continuations import RemoteExtractor
from reticent.auditing.targets.endpoint import RemoteScorer
from reticent.auditing.targets.scoring import ModelScorer
from reticent.auditing.targets.targets import Target
from reticent.errors import AuditError, InvalidValueError, StorageError
from reticent.protocols import Progress, TokenSignals
from reticent.stats.intervals import NUM_RESAMPLES
from reticent.text.fields import readable_text
from reticent.text.template import texts_as_trained


@dataclass(frozen=True)
class AuditRequest:
    """One audit.

    Attributes:
        target: what is audited, open.
        members: texts it was trained on.
        nonmembers: texts it was not trained on, otherwise alike.
        attacks: those to run, from `registry.parse_attacks`.
        out: the folder for `scores.parquet` and `report.json`.
        gathering: how ingredients are made, and where they are kept.
        attacks_named: whether the user named the attacks; one that the target does not allow is then an error, and one
            that fails makes the result partial. Otherwise it is left out with the reason.
        seed: of the bootstrap, the halves and the folds.
        confidence: of every interval and bound.
        num_resamples: of the bootstrap.
        canaries: those of the corpus, with their twins.
        canary_settings: how they are measured.
        show_texts: whether `scores.parquet` holds the texts.
        owners: whose each text is, where several texts may be one person's.
        settings: what the report repeats of how it was asked for; JSON values, no texts.
    """

    target: Target
    members: Sequence[str]
    nonmembers: Sequence[str]
    attacks: tuple[Attack, ...]
    out: Path
    gathering: GatheringSettings
    attacks_named: bool = False
    seed: int = 0
    confidence: float = 0.95
    num_resamples: int = NUM_RESAMPLES
    canaries: tuple[Canary, ...] = ()
    canary_settings: CanarySettings = field(default_factory=CanarySettings)
    show_texts: bool = False
    owners: Owners | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def run_audit(request: AuditRequest, progress: Progress) -> AuditResult:
    """Run an audit and write `scores.parquet` and `report.json` into its folder.

    A second run over the same cache computes nothing anew, so that a killed audit is resumed by repeating it. What one
    attack raises costs no other its figures; `AuditResult.incomplete` says whether all that was asked for is there.

    Raises:
        AuditError: the sets are empty, overlap or contradict the target's lists, a named attack cannot run, or the
            target scored no text.
        EndpointError, ModelError: the target cannot be asked.
        StorageError: something cannot be written.
    """
    target = request.target
    members, nonmembers = TextSet.of("members", request.members), TextSet.of("non-members", request.nonmembers)
    refuse_shared_texts(members, nonmembers)
    if request.owners is not None:
        request.owners.refuse_divided(members.hashes, nonmembers.hashes)
    warnings = [*target.warnings]
    warnings += check_labels(members, nonmembers, target.member_hashes, target.heldout_hashes)
    overlap = compare_sets(members, nonmembers, read_texts=_read_texts(target, members, nonmembers))
    if overlap.near_duplicates:
        warnings.append(_near_duplicates_note(overlap, nonmembers))
        progress.note(warnings[-1])
    plan = plan_attacks(
        request.attacks,
        target,
        by_name=request.attacks_named,
        has_masked_lm=request.gathering.mlm is not None,
        has_shadows=bool(request.gathering.shadows) or target.shadow_table is not None,
    )
    make_audit_folder(request.out)
    gatherer = Gatherer(target, members, nonmembers, request.gathering, progress)
    found = gatherer.gather(plan.needs)
    _refuse_nothing_scored(found)
    possible = plan.without_needs(found.failures)
    columns, failures = _score(possible, found, members, nonmembers)
    done = possible.without(failures)
    _write_columns(request, members, nonmembers, columns)
    canaries, lost_canaries = _canaries(request, gatherer)
    lost = (*_lost_attacks(request, plan, done), *lost_canaries)
    result = AuditResult(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        target=target.record,
        reference=target.reference_record if plan.needs & {Need.REFERENCE, Need.GUESSES} else None,
        neighbours_from=found.facts.pop("neighbours from", None),
        data=_data_record(target, members, nonmembers, overlap),
        scoring=_scoring_record(target) | found.facts,
        blind=_blind_baseline(request, members, nonmembers, overlap, warnings),
        **_summaries(request, done, columns, members, nonmembers),
        owners=_owner_results(request, done, columns, members, nonmembers),
        canaries=canaries.results,
        one_run=canaries.one_run,
        warnings=(*warnings, *found.warnings, *_training_warnings(found, members), *canaries.warnings, *lost),
        incomplete=(*found.incomplete, *lost),
        settings=_settings_record(request),
        versions=package_versions(),
    )
    write_audit_result(request.out, result)
    return result


def _lost_attacks(request: AuditRequest, plan: AttackPlan, done: AttackPlan) -> tuple[str, ...]:
    """Reasons to call the result partial: attacks that were named and failed, or no attack at all."""
    if request.attacks_named:
        failed = done.skipped[len(plan.skipped) :]
        return tuple(f"partial result: attack {attack.name} failed: {attack.reason}" for attack in failed)
    return () if done.attacks else ("partial result: every attack that this target allows failed",)


def _score(
    plan: AttackPlan, found: AttackInputs, members: TextSet, nonmembers: TextSet
) -> tuple[dict[str, ScoreColumn], dict[AttackName, str]]:
    """Every attack on every text, by the attack's name, and why some attacks failed; they have no column."""
    columns: dict[str, ScoreColumn] = {}
    failures: dict[AttackName, str] = {}
    texts = dict(zip((*members.hashes, *nonmembers.hashes), (*members.texts, *nonmembers.texts), strict=True))
    evidence = {key: found.evidence(key, text) for key, text in texts.items()}
    for attack in plan.attacks:
        try:
            scores = {key: attack.score(one) for key, one in evidence.items()}
        except Exception as error:  # noqa: BLE001 - what one attack raises costs no other its scores
            failures[attack.name] = describe_failure(error)
            continue
        columns[str(attack.name)] = ScoreColumn(
            {key: float(score) for key, score in scores.items() if not isinstance(score, Missing)},
            {key: score.reason for key, score in scores.items() if isinstance(score, Missing)},
        )
    return columns, failures


def _write_columns(
    request: AuditRequest, members: TextSet, nonmembers: TextSet, columns: dict[str, ScoreColumn]
) -> None:
    write_scores(
        request.out,
        (*members.hashes, *nonmembers.hashes),
        [True] * len(members.hashes) + [False] * len(nonmembers.hashes),
        columns,
        [readable_text(text) for text in (*members.texts, *nonmembers.texts)] if request.show_texts else None,
    )


def _summaries(
    request: AuditRequest, plan: AttackPlan, columns: dict[str, ScoreColumn], members: TextSet, nonmembers: TextSet
) -> dict[str, tuple[Any, ...]]:
    """The attacks' figures, and the attacks without any: fields of `AuditResult`."""
    done: list[AttackResult] = []
    skipped: list[SkippedAttack] = [*plan.skipped]
    owners = request.owners
    is_member = dict.fromkeys(members.hashes, True) | dict.fromkeys(nonmembers.hashes, False)
    for attack in plan.attacks:
        column = columns[str(attack.name)]
        scored = [[key for key in side.hashes if key in column.scores] for side in (members, nonmembers)]
        summary = summarise_attack(
            attack,
            [column.scores[key] for key in scored[0]],
            [column.scores[key] for key in scored[1]],
            [
                MissingScore(text_hash=key, is_member=is_member[key], reason=reason)
                for key, reason in column.missing.items()
            ],
            request.seed,
            request.confidence,
            request.num_resamples,
            None if owners is None else (owners.clusters(scored[0]), owners.clusters(scored[1])),
        )
        if isinstance(summary, SkippedAttack):
            skipped.append(summary)
        else:
            done.append(summary)
    return {"attacks": tuple(done), "skipped": tuple(skipped)}


def _owner_results(
    request: AuditRequest, plan: AttackPlan, columns: dict[str, ScoreColumn], members: TextSet, nonmembers: TextSet
) -> OwnerResults | None:
    """Every attack per owner; None where texts have no owners."""
    owners = request.owners
    if owners is None:
        return None
    found = [
        summarise_attack(
            attack,
            owners.mean_scores(columns[str(attack.name)].scores, members.hashes),
            owners.mean_scores(columns[str(attack.name)].scores, nonmembers.hashes),
            seed=request.seed,
            confidence=request.confidence,
            num_resamples=request.num_resamples,
        )
        for attack in plan.attacks
    ]
    return OwnerResults(
        num_members=len(set(owners.names(members.hashes))),
        num_nonmembers=len(set(owners.names(nonmembers.hashes))),
        attacks=tuple(each for each in found if isinstance(each, AttackResult)),
        skipped=tuple(each for each in found if isinstance(each, SkippedAttack)),
    )


def _canaries(request: AuditRequest, gatherer: Gatherer) -> tuple[CanaryFindings, tuple[str, ...]]:
    """Everything about canaries, and why it is not there if it failed."""
    if not request.canaries:
        return CanaryFindings((), None, ()), ()
    usable, warnings = usable_canaries(request.canaries, request.target.member_hashes)
    if not usable:
        return CanaryFindings((), None, warnings), ()

    target, continuer = request.target, gatherer.continuer

    def signals_of(texts: Sequence[str]) -> Any:
        return gatherer.signals("canaries and candidates", target.scorer, texts)

    remote = None if continuer is None else RemoteExtractor(continuer, target.template)
    try:
        if remote is not None and not isinstance(target.scorer, RemoteScorer):
            found = audit_canaries(usable, None, remote, request.canary_settings, remote.write)
        else:
            found = audit_canaries(usable, signals_of, remote or target.extractor, request.canary_settings)
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - the attacks' figures are there and stay
        reason = f"partial result: the canaries were not measured: {describe_failure(error)}"
        return CanaryFindings((), None, warnings), (reason,)
    return replace(found, warnings=(*warnings, *found.warnings)), found.incomplete


def _blind_baseline(
    request: AuditRequest, members: TextSet, nonmembers: TextSet, overlap: Overlap, warnings: list[str]
) -> BlindBaseline | None:
    """The baseline without a model; `warnings` is added to where it beats chance, or cannot be had."""
    try:
        groups = overlap.groups
        if request.owners is not None:
            groups = request.owners.join_groups(groups, (*members.hashes, *nonmembers.hashes))
        own, others = ([readable_text(text) for text in texts.texts] for texts in (members, nonmembers))
        blind = blind_baseline(own, others, request.seed, groups, confidence=request.confidence)
    except InvalidValueError as error:
        warnings.append(f"no blind baseline: {error}")
        return None
    if blind.beats_chance:
        warnings.append(
            f"the two sets are separated without any model (blind AUC {blind.auc.value:.3f}, interval from "
            f"{blind.auc.low:.3f}): they differ in distribution, and every attack's figures measure that as well"
        )
    return blind


def _refuse_nothing_scored(found: AttackInputs) -> None:
    """Refuse where the target said nothing about any text, neither in log-probabilities nor in text."""
    asked = [found.by_need[need] for need in (Need.TARGET, Need.SAMPLES, Need.GUESSES) if need in found.by_need]
    rows = [row for inputs in asked for row in inputs.values()]
    if rows and all(isinstance(row, Missing) for row in rows):
        reasons = sorted({row.reason for row in rows})
        raise AuditError(f"the target scored none of {len(asked[0])} texts: {reasons[0]}")


def _training_warnings(found: AttackInputs, members: TextSet) -> tuple[str, ...]:
    """True if the target gives its own members less than the reference does."""
    target, reference = found.by_need.get(Need.TARGET, {}), found.by_need.get(Need.REFERENCE, {})
    pairs = [(target.get(key), reference.get(key)) for key in members.hashes]
    both = [
        (t.logp.mean(), r.logp.mean()) for t, r in pairs if isinstance(t, TokenSignals) and isinstance(r, TokenSignals)
    ]
    if not both:
        return ()
    warning = training_warning(*np.array(both).T)
    return () if warning is None else (warning,)


def _read_texts(target: Target, members: TextSet, nonmembers: TextSet) -> list[str] | None:
    """Cut the texts as the target reads them; None where nobody here knows, or no text is cut."""
    scorer = target.scorer
    if not isinstance(scorer, ModelScorer):
        return None
    texts = (*members.texts, *nonmembers.texts)
    encoded = scorer.encode(texts)
    if not any(text.truncated for text in encoded):
        return None
    return texts_as_trained(scorer.tokenizer, scorer.template, texts, encoded)


def _near_duplicates_note(overlap: Overlap, nonmembers: TextSet) -> str:
    return (
        f"{len(overlap.near_duplicates)} of {len(nonmembers.texts)} non-members nearly repeat a member, whole or as "
        "the model reads them: what it learned from one it knows of the other"
    )


def _data_record(target: Target, members: TextSet, nonmembers: TextSet, overlap: Overlap) -> DataRecord:
    texts = (*members.texts, *nonmembers.texts)
    scorer = target.scorer
    return DataRecord(
        num_members=len(members.texts),
        num_nonmembers=len(nonmembers.texts),
        members_hash=_set_hash(members),
        nonmembers_hash=_set_hash(nonmembers),
        num_repeated=members.num_repeats + nonmembers.num_repeats,
        num_truncated=sum(e.truncated for e in scorer.encode(texts)) if isinstance(scorer, ModelScorer) else 0,
        near_duplicates=overlap.near_duplicates,
    )


def _set_hash(texts: TextSet) -> str:
    return hashlib.sha256("\n".join(sorted(texts.hashes)).encode()).hexdigest()


def _scoring_record(target: Target) -> dict[str, Any]:
    """Record what was scored of a text, so that two audits can be seen to be comparable or not."""
    scorer = target.scorer
    facts: dict[str, Any] = {"template": target.template, "fingerprint": scorer.fingerprint}
    if isinstance(scorer, RemoteScorer):
        first = "scored: the server puts something before it" if scorer.scores_first_token else "not scored"
        return facts | {"first token": first, "end of text": "not scored", "tokens": "as the server splits the text"}
    if isinstance(scorer, ModelScorer):
        begins = len(scorer.begin_ids) > 0
        facts["type"] = str(scorer.dtype).removeprefix("torch.")
        if scorer.is_encoder_decoder:
            facts["first token"] = "scored, from the decoder's start token"
        elif begins:
            facts["first token"] = (
                f"scored, from the tokenizer's own beginning-of-text token {int(scorer.begin_ids[0])}"
            )
        else:
            facts["first token"] = "not scored: the tokenizer puts nothing before it"
        facts["end of text"] = "scored where the text is not cut" if target.template.add_eos else "not scored"
    return facts


def _settings_record(request: AuditRequest) -> dict[str, Any]:
    gathering = request.gathering
    return {
        "attacks": [str(attack.name) for attack in request.attacks],
        "seed": request.seed,
        "confidence": request.confidence,
        "bootstrap": request.num_resamples,
        "neighbours": gathering.num_neighbours,
        "paraphrases": gathering.num_paraphrases,
        "shots": gathering.num_shots,
        "shadows": list(gathering.shadows),
        **request.settings,
    }
