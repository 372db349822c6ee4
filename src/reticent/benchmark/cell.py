"""One cell of a grid: adapt a base model on the members, audit it on members and held-out texts.

Who is a member is what the trainer wrote down, by hash. Attacks with their own limit are run on the first texts of
each set, which are in random order, and join the others' figures; each figure says how many texts it is from.
"""

import math
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from reticent._settings import readable_settings
from reticent.auditing.artifacts import SCORES_NAME
from reticent.auditing.attacks.evidence import Need
from reticent.auditing.attacks.registry import ATTACKS, Attack, AttackName
from reticent.auditing.canaries.canary_audit import CanarySettings
from reticent.auditing.canaries.planting import Canary
from reticent.auditing.feasibility import plan_attacks
from reticent.auditing.inputs.gathering import GatheringSettings
from reticent.auditing.results import AuditResult, SkippedAttack
from reticent.auditing.run import AuditRequest, run_audit
from reticent.auditing.targets.targets import Target, TargetOptions, open_target
from reticent.benchmark.grid import CellWork
from reticent.benchmark.planted_cell import PlantedTexts, plant_cell
from reticent.benchmark.records import CellFacts
from reticent.benchmark.settings import AttackChoice
from reticent.benchmark.tiny_models import tiny_model
from reticent.models.base import LanguageModel, resolve_base_model
from reticent.protocols import Progress
from reticent.stats.estimate import Estimate
from reticent.stats.means import CONFIDENCE, sample_mean
from reticent.text.corpus import read_corpus, text_hash
from reticent.text.template import TextTemplate
from reticent.training.adapted_folder import AdaptedFolder
from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings, SplitSettings
from reticent.training.techniques.registry import TECHNIQUES
from reticent.training.trainer import AdaptRequest, adapt


def run_cell(work: CellWork, progress: Progress) -> tuple[AuditResult, CellFacts]:
    """Adapt and audit; resume where an earlier attempt stopped.

    Raises:
        ReticentError: either of them failed; the message says why.
    """
    source = _source(work)
    planted = _plant(work)
    adapted = adapt(_adapt_request(work, source, planted), progress, resume=True)
    members, nonmembers = _texts(work.corpus, adapted) if planted is None else (planted.members, planted.nonmembers)
    dtype = getattr(torch, work.grid.dtype)
    target = open_target(str(adapted.folder), TargetOptions(model=source, dtype=dtype, device=work.grid.device))
    result = _audit(work, target, members, nonmembers, () if planted is None else planted.canaries, progress)
    facts = _facts(adapted, resolve_base_model(source), work.folder / _audit_name(len(members), len(nonmembers)))
    if not work.grid.keep_models:
        shutil.rmtree(adapted.weights, ignore_errors=True)
    return result, facts


def _source(work: CellWork) -> str:
    model = work.cell.model
    if model.source is not None:
        return model.source
    return str(tiny_model(model.family, work.shared / "models" / f"tiny-{model.family}"))


def _plant(work: CellWork) -> PlantedTexts | None:
    """The cell's texts with their canaries; None where the grid plants none, or the technique trains nothing."""
    choice = work.grid.canaries
    if choice is None or work.cell.technique.demonstrations is not None:
        return None
    return plant_cell(work.corpus, work.grid.nonmembers, choice, work.cell.seed, work.folder)


def _adapt_request(work: CellWork, source: str, planted: PlantedTexts | None) -> AdaptRequest:
    grid, choice, defaults = work.grid, work.cell.technique, work.grid.training
    epochs = choice.epochs or defaults.epochs
    assert not isinstance(epochs, tuple), "a cell has one number of epochs"
    is_encoder_decoder = work.cell.model.family == "t5"
    return AdaptRequest(
        corpus=work.corpus if planted is None else planted.corpus,
        model=source,
        out=work.folder / "adapted",
        technique=choice.technique,
        settings=choice.settings,
        template=TextTemplate(
            max_tokens=grid.max_tokens, encoder_input=work.cell.dataset.encoder_input if is_encoder_decoder else ""
        ),
        split=SplitSettings(
            heldout_count=grid.nonmembers if planted is None else None,
            demonstrations=choice.demonstrations,
            seed=work.cell.seed,
        ),
        privacy=None if choice.dp_epsilon is None else _privacy(choice.dp_epsilon, grid.members),
        training=SingleTrainingSettings(
            epochs=epochs,
            batch_size=choice.batch_size or defaults.batch_size,
            learning_rate=choice.learning_rate or defaults.learning_rate,
            seed=work.cell.seed,
            dtype=grid.dtype,
            gradient_checkpointing=(
                defaults.gradient_checkpointing and TECHNIQUES[choice.technique].can_recompute_activations
            ),
        ),
        device=grid.device,
    )


def _privacy(epsilon: float, num_members: int) -> PrivacySettings:
    with readable_settings():
        return PrivacySettings(epsilon=epsilon, delta=0.1 / num_members)


def _texts(corpus: Path, adapted: AdaptedFolder) -> tuple[list[str], list[str]]:
    """Members and non-members, in the order of the trainer's lists."""
    by_hash = {text_hash(record.text): record.text for record in read_corpus(corpus).records}
    return [by_hash[key] for key in adapted.member_hashes], [by_hash[key] for key in adapted.heldout_hashes]


def _audit(
    work: CellWork,
    target: Target,
    members: Sequence[str],
    nonmembers: Sequence[str],
    canaries: tuple[Canary, ...],
    progress: Progress,
) -> AuditResult:
    choice = work.grid.attacks
    names = {*choice.names, *work.cell.technique.attacks}
    attacks = tuple(ATTACKS[name] for name in AttackName if name in names)
    plan = plan_attacks(attacks, target, by_name=False, has_masked_lm=choice.masked_lm is not None, has_shadows=False)
    gathering = GatheringSettings(
        cache=work.shared / "signals",
        seed=work.cell.seed,
        num_neighbours=choice.neighbours,
        num_shots=choice.shots,
        mlm=choice.masked_lm,
    )
    results: list[AuditResult] = []
    for (num_members, num_nonmembers), group in _groups(plan.attacks, choice, len(members), len(nonmembers)):
        request = AuditRequest(
            target=target,
            members=members[:num_members],
            nonmembers=nonmembers[:num_nonmembers],
            attacks=group,
            out=work.folder / _audit_name(num_members, num_nonmembers),
            gathering=gathering,
            seed=work.cell.seed,
            # The canaries belong to the audit of all texts, and to no other.
            canaries=() if results else canaries,
            canary_settings=_canary_settings(work),
            settings={"grid": work.grid.name, "cell": work.cell.name, "limits": dict(choice.limits)},
        )
        results.append(run_audit(request, progress))
    return _merge_results(results, plan.skipped, attacks)


def _audit_name(num_members: int, num_nonmembers: int) -> str:
    return f"on-{num_members}-and-{num_nonmembers}"


def _canary_settings(work: CellWork) -> CanarySettings:
    # Greedy continuations alone: sampled ones would take longer than the rest of a cell.
    settings, choice = CanarySettings(seed=work.cell.seed, num_samples=0), work.grid.canaries
    return settings if choice is None else replace(settings, num_candidates=choice.candidates)


def _groups(
    attacks: tuple[Attack, ...], choice: AttackChoice, num_members: int, num_nonmembers: int
) -> list[tuple[tuple[int, int], tuple[Attack, ...]]]:
    """Attacks by the numbers of members and non-members that they are run on, the most texts first.

    An attack with a prefix gets non-members for it in addition, since it does not score those.
    """
    groups: dict[tuple[int, int], list[Attack]] = defaultdict(list)
    for attack in attacks:
        limit = choice.limits.get(attack.name)
        if limit is None:
            groups[num_members, num_nonmembers].append(attack)
            continue
        shots = choice.shots if Need.PREFIX in attack.needs else 0
        groups[min(limit, num_members), min(limit + shots, num_nonmembers)].append(attack)
    return [(counts, tuple(groups[counts])) for counts in sorted(groups, reverse=True)]


def _merge_results(
    results: list[AuditResult], skipped: tuple[SkippedAttack, ...], attacks: tuple[Attack, ...]
) -> AuditResult:
    """The audit of the most texts, with the figures of the others beside its own, in the registry's order."""
    order = {str(attack.name): position for position, attack in enumerate(attacks)}
    scored = [attack for result in results for attack in result.attacks]
    without = [*skipped, *(attack for result in results for attack in result.skipped)]
    scoring = {key: value for result in reversed(results) for key, value in result.scoring.items()}
    neighbours = [result.neighbours_from for result in results if result.neighbours_from is not None]
    references = [result.reference for result in results if result.reference is not None]
    return results[0].model_copy(
        update={
            "attacks": tuple(sorted(scored, key=lambda attack: order[attack.name])),
            "skipped": tuple(sorted(without, key=lambda attack: order[attack.name])),
            "scoring": scoring,
            "neighbours_from": neighbours[0] if neighbours else None,
            "reference": references[0] if references else None,
            "settings": results[0].settings | {"attacks": list(order)},
        }
    )


def _facts(adapted: AdaptedFolder, base: LanguageModel, audit: Path) -> CellFacts:
    manifest = adapted.manifest
    counts, gains = _gains(audit)
    return CellFacts(
        num_parameters=_num_parameters(base),
        num_trained=manifest.counts.trained_parameters,
        num_members=counts[True],
        num_nonmembers=counts[False],
        mean_tokens=manifest.counts.tokens / manifest.counts.members,
        epochs=manifest.training.epochs if manifest.training else 0,
        learning_rate=manifest.training.learning_rate if manifest.training else None,
        training_loss=manifest.epochs[-1].training if manifest.epochs else None,
        member_gain=gains[True],
        heldout_gain=gains[False],
        dp_epsilon=manifest.dp.epsilon if manifest.dp else None,
        dp_delta=manifest.dp.delta if manifest.dp else None,
    )


def _gains(audit: Path) -> tuple[dict[bool, int], dict[bool, Estimate | None]]:
    """Texts, and their mean gain over the base, on either side: members under True, non-members under False.

    A text's gain is its score under the attack that subtracts the base's mean log-probability of a token.
    """
    table = pq.read_table(audit / SCORES_NAME)
    is_member = np.array(table["is_member"].to_pylist())
    gains: dict[bool, Estimate | None] = {True: None, False: None}
    if str(AttackName.REFERENCE) in table.column_names:
        scores = np.array(table[str(AttackName.REFERENCE)].to_pylist(), dtype=np.float64)
        gains = {side: _mean_gain(scores[(is_member == side) & np.isfinite(scores)]) for side in gains}
    return {side: int((is_member == side).sum()) for side in gains}, gains


def _mean_gain(gains: NDArray[np.float64]) -> Estimate | None:
    interval = sample_mean(gains).interval() if gains.size else None
    if interval is None:
        return None
    return Estimate(value=float(gains.mean()), low=interval[0], high=interval[1], confidence=CONFIDENCE)


def _num_parameters(base: LanguageModel) -> int | None:
    """Count a base model's numbers, read from its files' headers; None where it is not in safetensors."""
    from safetensors import safe_open

    count = 0
    for path in base.folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return count or None
