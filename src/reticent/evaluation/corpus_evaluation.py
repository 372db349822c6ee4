"""The evaluation of a run that carries the corpus guarantee: utility against what a token costs.

    OUT/sums/HASH.npz     sums of votes on one text; a further evaluation with the same settings reuses them
    OUT/evaluation.json   the result; texts appear by number alone

Members are not read, so nothing here is about who is in the corpus; yet utility on private worlds is itself a release:
it is the operator's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reticent._files import atomic_write_bytes, sha256_of_file
from reticent._records import package_versions
from reticent._settings import FiniteModel
from reticent.dp.plan import check_delta, default_delta
from reticent.dp.relations import relation_for
from reticent.dp.release import CorpusSettings
from reticent.engine.teacher_forced import TeacherForcing
from reticent.errors import CorpusError, OutputExistsError, RunDirectoryError, StorageError
from reticent.evaluation.corpus_sums import CorpusSums, concatenate_sums, sum_votes
from reticent.evaluation.corpus_utility import CorpusUtility, corpus_utility
from reticent.evaluation.held_out import TestTexts, cut_records, read_test_texts, reading_template
from reticent.layers.forward import batched_decoder
from reticent.models.base import LanguageModel, usable_device
from reticent.protocols import Progress
from reticent.text.template import EncodedText, encode, nothing_to_predict
from reticent.worlds.manifest import FULL_NAME, MANIFEST_NAME
from reticent.worlds.run_directory import RunDirectory

RESULT_NAME = "evaluation.json"
SUMS_FOLDER = "sums"
SETTINGS_NAME = "settings.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class CorpusEvaluationRequest:
    """A request to evaluate a run with places.

    Attributes:
        run: the run directory.
        test: texts that are not in its corpus.
        out: folder for sums and result.
        gains: g of each row of the table.
        epsilons: for each, how many tokens it leaves.
        delta: δ of these; as a plan unless given.
        clip, temperature, num_candidates: c in nats, τ and k.
        corpus: the run's corpus, to leave out near-duplicates of it.
        text_key, limit: how to read the texts.
        max_tokens: cut test texts; as in training unless given.
        model, dtype, device: where the base is, and how to compute.
    """

    run: Path
    test: Path
    out: Path
    gains: tuple[float, ...]
    epsilons: tuple[float, ...]
    delta: float | None
    clip: float
    temperature: float
    num_candidates: int
    corpus: Path | None = None
    text_key: str = "text"
    limit: int | None = None
    max_tokens: int | None = None
    model: str | None = None
    dtype: torch.dtype | None = None
    device: str = "cpu"


class CorpusEvaluation(FiniteModel):
    """Everything one evaluation of a run with places found."""

    schema_version: int
    created: str
    run: dict[str, Any]
    data: dict[str, Any]
    settings: dict[str, Any]
    utility: CorpusUtility
    warnings: tuple[str, ...]
    versions: dict[str, str]


def evaluate_corpus_run(request: CorpusEvaluationRequest, progress: Progress) -> CorpusEvaluation:
    """Add up votes on the test texts, or reuse them, measure, and write `OUT/evaluation.json`.

    Raises:
        ReticentError: the request cannot be met; the message says why.
    """
    run = RunDirectory.open(request.run, None)
    capacity = run.manifest.capacity
    if capacity is None:
        raise RunDirectoryError(f"{request.run} does not carry the corpus guarantee")
    delta = default_delta(capacity.num_places)
    if request.delta is not None:
        delta = check_delta(request.delta, capacity.num_places)

    def settings(gain: float) -> CorpusSettings:
        return CorpusSettings(
            request.clip,
            gain,
            request.temperature,
            request.num_candidates,
            capacity.num_worlds,
            relation_for(capacity.places),
        )

    for gain in request.gains:
        settings(gain)
    base = run.base(request.model)
    trained = run.manifest.training
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
    encoded = encode(base.load_tokenizer(), template, texts.texts)
    for number, text in enumerate(encoded, start=1):
        if not text.num_scored:
            raise CorpusError(nothing_to_predict(f"{request.test}: text {number}", text, template))
    sums = _sums(request, run, base, texts, encoded, progress)
    result = CorpusEvaluation(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        run={
            "folder": str(run.folder),
            "manifest_sha256": sha256_of_file(run.folder / MANIFEST_NAME),
            "base": run.manifest.base.name,
            "num_worlds": capacity.num_worlds,
            "places": capacity.places,
            "training": trained.model_dump(mode="json") if trained else None,
        },
        data={
            "test_texts": len(texts.texts),
            "positions": len(sums.target_N),
            "truncated": sum(text.truncated for text in encoded),
        },
        settings=_identity(request, run) | {"delta": delta, "relation": relation_for(capacity.places).value},
        utility=corpus_utility(sums, settings, request.gains, request.epsilons, delta),
        warnings=texts.warnings,
        versions=package_versions(),
    )
    atomic_write_bytes(request.out / RESULT_NAME, (result.model_dump_json(indent=2) + "\n").encode())
    return result


def _identity(request: CorpusEvaluationRequest, run: RunDirectory) -> dict[str, Any]:
    """All that the sums depend on."""
    return {
        "run": sha256_of_file(run.folder / MANIFEST_NAME),
        "clip": request.clip,
        "candidates": request.num_candidates,
        "max_tokens": request.max_tokens,
        "dtype": str(request.dtype or run.dtype).removeprefix("torch."),
        "temperature": request.temperature,
    }


def _sums(
    request: CorpusEvaluationRequest,
    run: RunDirectory,
    base: LanguageModel,
    texts: TestTexts,
    encoded: Sequence[EncodedText],
    progress: Progress,
) -> CorpusSums:
    """The sums on all texts; those of an earlier evaluation with the same settings are read."""
    folder = _open_folder(request, run)
    forcing: TeacherForcing | None = None
    occupied_M = run.occupied()
    parts = []
    progress.begin("votes", sum(len(text.token_ids) for text in encoded))
    for own_hash, text in zip(texts.hashes, encoded, strict=True):
        path = folder / f"{own_hash}.npz"
        if path.is_file():
            parts.append(CorpusSums.load(path))
        else:
            if forcing is None:
                decoder = batched_decoder(base.load(request.dtype or run.dtype).to(usable_device(request.device)))
                full = run.full() if FULL_NAME in run.manifest.files else None
                forcing = TeacherForcing(decoder, run.worlds(), full)
            tokens = text.token_ids.tolist()
            parts.append(sum_votes(forcing, tokens, request.num_candidates, request.clip, occupied_M, text.is_scored))
            parts[-1].save(path)
        progress.advance(len(text.token_ids))
    return concatenate_sums(parts)


def _open_folder(request: CorpusEvaluationRequest, run: RunDirectory) -> Path:
    """The folder of sums, made now or of an evaluation with the same settings.

    Raises:
        OutputExistsError: `out` holds something else, or sums of other settings.
        StorageError: it cannot be made.
    """
    folder, identity = request.out / SUMS_FOLDER, json.dumps(_identity(request, run), sort_keys=True)
    found = folder / SETTINGS_NAME
    if found.is_file() and found.read_text("utf-8") == identity:
        return folder
    if request.out.exists() and (not request.out.is_dir() or any(request.out.iterdir())):
        raise OutputExistsError(
            f"{request.out} holds something else than an evaluation with these settings; choose another --out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror or error}; choose another --out") from None
    atomic_write_bytes(found, identity.encode())
    return folder
