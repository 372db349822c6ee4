"""`reticent evaluate`: what a run's worlds are worth on texts outside its corpus, at every budget.

The votes are cast once into `OUT/votes` and reused by every later evaluation of the same run, texts and settings; the
studies on them take seconds to minutes. Nothing here reads or touches a deployment's ledger: secrets and noise are
drawn for the simulation, from a seed.
"""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reticent._files import atomic_write_bytes, sha256_of_file
from reticent._records import package_versions
from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import CorpusError, OutputExistsError, StorageError
from reticent.evaluation.cost import Cost, cost
from reticent.evaluation.fidelity import Fidelity, fidelity
from reticent.evaluation.held_out import DEFAULT_MAX_TOKENS, TestTexts, cut_records, read_test_texts, reading_template
from reticent.evaluation.leakage import Leakage, leakage
from reticent.evaluation.recommendation import Recommendation, recommend
from reticent.evaluation.sessions import Composition, SessionSettings, composition, simulate_sessions
from reticent.evaluation.stability import Stability, stability
from reticent.evaluation.utility import BUDGETS, Utility, UtilitySettings, utility
from reticent.evaluation.verdict import verdict_warnings
from reticent.evaluation.vote_casting import CastingRequest, VoteSettings, cast_vote_tensor
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.layers.forward import batched_decoder
from reticent.models.base import LanguageModel, usable_device
from reticent.pac.mechanism import ReleaseMechanism
from reticent.protocols import Progress
from reticent.text.template import encode, nothing_to_predict
from reticent.worlds.assignment import Assignment
from reticent.worlds.manifest import FULL_NAME, MANIFEST_NAME, MEMBERSHIP_NAME
from reticent.worlds.run_directory import RunDirectory

SCHEMA_VERSION = 1
RESULT_NAME = "evaluation.json"
VOTES_FOLDER = "votes"


class Study(StrEnum):
    """A study of the votes."""

    UTILITY = "utility"
    STABILITY = "stability"
    FIDELITY = "fidelity"
    COMPOSITION = "composition"
    LEAKAGE = "leakage"
    COST = "cost"


@dataclass(frozen=True)
class EvaluateRequest:
    """A request to evaluate a run.

    Attributes:
        run: the run directory.
        test: texts outside its corpus; text_key, limit: how to read them.
        out: folder for votes and report.
        corpus: the run's corpus, to look for near-duplicates.
        studies, decoders, mechanisms, budgets: what is measured; budgets in nats a token.
        votes: how votes are cast. sessions: of composition and leakage.
        num_draws: secrets and noise draws of utility.
        seed: of every simulation. max_tokens: cut texts; as trained unless given.
        model, dtype, device: where the base is if it moved, and how to compute.
    """

    run: Path
    test: Path
    out: Path
    corpus: Path | None = None
    text_key: str = "text"
    limit: int | None = None
    studies: tuple[Study, ...] = tuple(Study)
    decoders: tuple[Decoder, ...] = tuple(Decoder)
    mechanisms: tuple[ReleaseMechanism, ...] = tuple(ReleaseMechanism)
    budgets: tuple[float, ...] = BUDGETS
    votes: VoteSettings = field(default_factory=VoteSettings)
    sessions: SessionSettings = field(default_factory=SessionSettings)
    num_draws: int = 64
    seed: int = 0
    max_tokens: int | None = None
    model: str | None = None
    dtype: torch.dtype | None = None
    device: str = "cpu"

    @property
    def utility(self) -> UtilitySettings:
        """The settings of the utility study; checks budgets and draws."""
        return UtilitySettings(self.budgets, self.mechanisms, self.num_draws, self.seed)


class Evaluation(FiniteModel):
    """Everything one evaluation found. Texts appear by number and hash alone."""

    schema_version: int
    created: str
    run: dict[str, Any]
    data: dict[str, Any]
    settings: dict[str, Any]
    utility: tuple[Utility, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    stability: Stability | None = None
    fidelity: Fidelity | None = None
    composition: tuple[Composition, ...] = ()
    leakage: tuple[Leakage, ...] = ()
    cost: tuple[Cost, ...] = ()
    warnings: tuple[str, ...]
    versions: dict[str, str]
    machine: dict[str, Any]


def evaluate(request: EvaluateRequest, progress: Progress) -> Evaluation:
    """Cast the votes, or reuse them, run the studies, and write `OUT/evaluation.json`.

    Raises:
        ReticentError: the request cannot be met; the message says why.
    """
    settings = request.utility
    _check_output(request.out)
    run = RunDirectory.open(request.run, (Assignment.OVERLAPPING, Assignment.UNKNOWN))
    base = run.base(request.model)
    template = reading_template(run, request.max_tokens)
    texts = read_test_texts(
        run,
        request.test,
        text_key=request.text_key,
        limit=request.limit,
        corpus=request.corpus,
        layout=template.layout,
        cut=partial(cut_records, base.load_tokenizer(), template),
    )
    for warning in texts.warnings:
        progress.note(f"warning: {warning}")
    tensor, vocab_size, max_tokens, truncated = _votes(request, run, base, texts, progress)
    found = _studies(request, run, settings, tensor, vocab_size, progress)
    utilities: tuple[Utility, ...] = found.get("utility", ())
    verdicts = verdict_warnings(utilities)
    for warning in verdicts:
        progress.note(f"warning: {warning}")
    evaluation = Evaluation(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        run=_run_record(run),
        data={
            "test_texts": tensor.spans.num_texts,
            "positions": tensor.num_positions,
            "repeats_left_out": texts.num_repeats,
            "near_duplicates_left_out": texts.num_near_duplicates,
            "truncated": truncated,
        },
        settings=_settings_record(request, max_tokens),
        warnings=(*texts.warnings, *verdicts),
        versions=package_versions(),
        machine={"platform": platform.platform(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        recommendations=tuple(each for each in map(recommend, utilities) if each is not None),
        **found,
    )
    text = evaluation.model_dump_json(indent=2) + "\n"
    atomic_write_bytes(request.out / RESULT_NAME, text.encode())
    return evaluation


def _check_output(out: Path) -> None:
    """Make the folder, unless something else is there."""
    ours = {VOTES_FOLDER, RESULT_NAME}
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not ours & {path.name for path in out.iterdir()})):
        raise OutputExistsError(f"{out} exists and holds no evaluation; choose another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {out}: {error.strerror}; choose another --out") from error


def _votes(
    request: EvaluateRequest, run: RunDirectory, base: LanguageModel, texts: TestTexts, progress: Progress
) -> tuple[VoteTensor, int, int, int]:
    """The votes, the size of the vocabulary, the length limit, and how many texts it cut."""
    trained = run.manifest.training
    dtype = request.dtype or run.dtype
    decoder = batched_decoder(base.load(dtype).to(usable_device(request.device)))
    wanted = request.max_tokens or (trained.max_tokens if trained else DEFAULT_MAX_TOKENS)
    max_tokens = min(wanted, decoder.architecture.context_length)
    template = reading_template(run, request.max_tokens).model_copy(update={"max_tokens": max_tokens})
    encoded = encode(base.load_tokenizer(), template, texts.texts)
    for number, text in enumerate(encoded, start=1):
        if not text.num_scored:
            raise CorpusError(nothing_to_predict(f"{request.test}: text {number}", text, template))
    forcing = TeacherForcing(decoder, run.worlds(), run.full() if FULL_NAME in run.manifest.files else None)
    tokens = [text.token_ids.tolist() for text in encoded]
    identity = {
        "run": sha256_of_file(run.folder / MANIFEST_NAME),
        "dtype": str(dtype).removeprefix("torch."),
        "max_tokens": max_tokens,
    }
    scored = [text.is_scored for text in encoded] if template.has_answers else None
    casting = CastingRequest(tokens, texts.hashes, identity, request.out / VOTES_FOLDER, scored)
    tensor = cast_vote_tensor(forcing, casting, request.votes, progress, resume=True)
    return tensor, forcing.vocab_size, max_tokens, sum(text.truncated for text in encoded)


def _studies(
    request: EvaluateRequest,
    run: RunDirectory,
    settings: UtilitySettings,
    tensor: VoteTensor,
    vocab_size: int,
    progress: Progress,
) -> dict[str, Any]:
    """The wanted studies by the field that holds each."""
    decoders = request.decoders
    single: dict[Study, Callable[[], Any]] = {
        Study.STABILITY: lambda: stability(tensor),
        Study.UTILITY: lambda: tuple(utility(tensor, decoder, settings) for decoder in decoders),
        Study.FIDELITY: lambda: fidelity(tensor, request.votes.temperature, [min(request.budgets)], seed=request.seed),
        Study.COST: lambda: tuple(cost(tensor, decoder, vocab_size, min(request.budgets)) for decoder in decoders),
    }
    found: dict[str, Any] = {}
    for study, measure in single.items():
        if study in request.studies:
            progress.note(f"measuring {study.value}")
            found[study.value] = measure()
    if {Study.COMPOSITION, Study.LEAKAGE} & set(request.studies):
        progress.note("simulating sessions")
        found |= _sessions(request, run, tensor)
    return found


def _sessions(request: EvaluateRequest, run: RunDirectory, tensor: VoteTensor) -> dict[str, Any]:
    """Composition and leakage of the same simulated deployments; a query is no longer than the longest text."""
    members_UM = run.membership().members if MEMBERSHIP_NAME in run.manifest.files else None
    compositions: list[Composition] = []
    leaks: list[Leakage] = []
    longest = int(np.diff(tensor.offsets).max())
    sessions = replace(request.sessions, tokens_per_query=min(request.sessions.tokens_per_query, longest))
    for decoder in request.decoders:
        for mechanism in request.mechanisms:
            for budget in sorted(request.budgets, reverse=True):
                outcomes = simulate_sessions(tensor, decoder, mechanism, budget, sessions)
                compositions.append(composition(outcomes, decoder, mechanism, members_UM, request.seed))
                leaks.append(leakage(outcomes, decoder, mechanism))
    wanted = {Study.COMPOSITION: tuple(compositions), Study.LEAKAGE: tuple(leaks)}
    return {study.value: rows for study, rows in wanted.items() if study in request.studies}


def _run_record(run: RunDirectory) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "folder": str(run.folder),
        "manifest_sha256": sha256_of_file(run.folder / MANIFEST_NAME),
        "base": manifest.base.name,
        "num_worlds": manifest.num_worlds,
        "num_units": manifest.corpus.num_units if manifest.corpus else None,
        "lora": manifest.lora.model_dump(mode="json"),
        "training": manifest.training.model_dump(mode="json") if manifest.training else None,
    }


def _settings_record(request: EvaluateRequest, max_tokens: int) -> dict[str, Any]:
    return {
        "budgets": list(request.budgets),
        "decoders": [decoder.value for decoder in request.decoders],
        "mechanisms": [mechanism.value for mechanism in request.mechanisms],
        "votes": request.votes.model_dump(mode="json"),
        "sessions": vars(request.sessions),
        "draws": request.num_draws,
        "seed": request.seed,
        "max_tokens": max_tokens,
    }
