"""One cell of a grid: adapt a base model on the members, audit it on members and held-out texts.

Who is a member is what the trainer wrote down, by hash. Attacks with their own limit are run on the first texts of
each set, which are in random order, and join the others' figures; each figure says how many texts it is from.
"""

import math
import shutil
from collections import defaultdict
from pathlib import Path

import torch

from reticent.auditing.attacks.evidence import Need
from reticent.auditing.attacks.registry import ATTACKS, Attack, AttackName
from reticent.auditing.feasibility import plan_attacks
from reticent.auditing.inputs.gathering import GatheringSettings
from reticent.auditing.results import AuditResult, SkippedAttack
from reticent.auditing.run import AuditRequest, run_audit
from reticent.auditing.targets.targets import Target, TargetOptions, open_target
from reticent.benchmark.grid import CellWork
from reticent.benchmark.records import CellFacts
from reticent.benchmark.settings import AttackChoice
from reticent.benchmark.tiny_models import tiny_model
from reticent.models.base import LanguageModel, resolve_base_model
from reticent.protocols import Progress
from reticent.text.corpus import read_corpus, text_hash
from reticent.text.template import TextTemplate
from reticent.training.adapted_folder import AdaptedFolder
from reticent.training.single_settings import SingleTrainingSettings, SplitSettings
from reticent.training.techniques.registry import TECHNIQUES
from reticent.training.trainer import AdaptRequest, adapt


def run_cell(work: CellWork, progress: Progress) -> tuple[AuditResult, CellFacts]:
    """Adapt and audit; resume where an earlier attempt stopped.

    Raises:
        ReticentError: either of them failed; the message says why.
    """
    source = _source(work)
    adapted = adapt(_adapt_request(work, source), progress, resume=True)
    members, nonmembers = _texts(work.corpus, adapted)
    dtype = getattr(torch, work.grid.dtype)
    target = open_target(str(adapted.folder), TargetOptions(model=source, dtype=dtype, device=work.grid.device))
    result = _audit(work, target, members, nonmembers, progress)
    facts = _facts(adapted, resolve_base_model(source), len(nonmembers))
    if not work.grid.keep_models:
        shutil.rmtree(adapted.weights, ignore_errors=True)
    return result, facts


def _source(work: CellWork) -> str:
    model = work.cell.model
    if model.source is not None:
        return model.source
    return str(tiny_model(model.family, work.shared / "models" / f"tiny-{model.family}"))


def _adapt_request(work: CellWork, source: str) -> AdaptRequest:
    grid, choice, defaults = work.grid, work.cell.technique, work.grid.training
    is_encoder_decoder = work.cell.model.family == "t5"
    return AdaptRequest(
        corpus=work.corpus,
        model=source,
        out=work.folder / "adapted",
        technique=choice.technique,
        settings=choice.settings,
        template=TextTemplate(
            max_tokens=grid.max_tokens, encoder_input=work.cell.dataset.encoder_input if is_encoder_decoder else ""
        ),
        split=SplitSettings(heldout_count=grid.nonmembers, demonstrations=choice.demonstrations, seed=work.cell.seed),
        training=SingleTrainingSettings(
            epochs=choice.epochs or defaults.epochs,
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


def _texts(corpus: Path, adapted: AdaptedFolder) -> tuple[list[str], list[str]]:
    """Members and non-members, in the order of the trainer's lists."""
    by_hash = {text_hash(record.text): record.text for record in read_corpus(corpus).records}
    return [by_hash[key] for key in adapted.member_hashes], [by_hash[key] for key in adapted.heldout_hashes]


def _audit(
    work: CellWork, target: Target, members: list[str], nonmembers: list[str], progress: Progress
) -> AuditResult:
    choice = work.grid.attacks
    attacks = tuple(ATTACKS[name] for name in AttackName if name in choice.names)
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
            out=work.folder / f"on-{num_members}-and-{num_nonmembers}",
            gathering=gathering,
            seed=work.cell.seed,
            settings={"grid": work.grid.name, "cell": work.cell.name, "limits": dict(choice.limits)},
        )
        results.append(run_audit(request, progress))
    return _merge_results(results, plan.skipped, attacks)


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


def _facts(adapted: AdaptedFolder, base: LanguageModel, num_nonmembers: int) -> CellFacts:
    manifest = adapted.manifest
    return CellFacts(
        num_parameters=_num_parameters(base),
        num_trained=manifest.counts.trained_parameters,
        num_members=manifest.counts.members,
        num_nonmembers=num_nonmembers,
        mean_tokens=manifest.counts.tokens / manifest.counts.members,
        epochs=manifest.training.epochs if manifest.training else 0,
        learning_rate=manifest.training.learning_rate if manifest.training else None,
        training_loss=manifest.epochs[-1].training if manifest.epochs else None,
    )


def _num_parameters(base: LanguageModel) -> int | None:
    """Count a base model's numbers, read from its files' headers; None where it is not in safetensors."""
    from safetensors import safe_open

    count = 0
    for path in base.folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            count += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return count or None
