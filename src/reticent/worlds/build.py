"""Build a run: from a corpus and a base model to m worlds' adapters in a run directory, resumably.

Everything is checked before anything is written. Worlds are trained some at a time; each finished group is a file in
`training/`, and the group being trained has a checkpoint there. The same request with `resume` picks up where a build
stopped, at any moment and for any reason, and ends in the same adapters as a build that never stopped.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reticent import _validate
from reticent._work_folder import WorkFolder
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import BatchedDecoder, batched_decoder
from reticent.models.base import BaseModelRecord, LanguageModel, resolve_base_model, usable_device
from reticent.protocols import Progress
from reticent.text.corpus import Corpus, Units, corpus_hash, group_units, grouping_notes, read_corpus, units_hash
from reticent.text.tokenise import EncodedTexts, decode_texts, encode_texts
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.compilation import confirm_fusing, decide_fusing
from reticent.training.multiworld import MultiWorldTrainer, TrainedWorlds
from reticent.training.schedule import Schedule, make_schedule
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import Assignment, assign_units
from reticent.worlds.manifest import (
    FULL_NAME,
    MANIFEST_NAME,
    MEMBERSHIP_NAME,
    WORLDS_NAME,
    CorpusRecord,
)
from reticent.worlds.run_directory import (
    Membership,
    RunDirectory,
    read_adapters,
    write_adapters,
    write_manifest,
    write_membership,
)

_COMPILED = "compiled"
"""Where an unfinished build keeps whether it is compiled: a choice that depends on the machine at its first start."""


@dataclass(frozen=True)
class BuildRequest:
    """A request to build a run.

    Attributes:
        corpus: a file or folder, which `text_key`, `unit_key` and `limit` say how to read; or records already read.
        model: base model, as `resolve_base_model` takes it.
        out: the run directory to make.
        num_worlds: m. membership_seed: public; assigns units to worlds.
        lora, training: what each adapter is and how it is trained.
        device: where to train.
        assignment: overlapping worlds, or disjoint shards.
        compile: whether to compile training's element-wise work; None to do it where it pays. A build that is resumed
            keeps the choice it was begun with.
    """

    corpus: Path | Corpus
    model: str
    out: Path
    num_worlds: int
    lora: LoraSettings = field(default_factory=LoraSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    text_key: str = "text"
    unit_key: str | None = None
    limit: int | None = None
    membership_seed: int = 0
    device: str = "cpu"
    assignment: Assignment = Assignment.OVERLAPPING
    compile: bool | None = None


def build_run(request: BuildRequest, progress: Progress, *, resume: bool = False) -> RunDirectory:
    """Build a run directory, or finish one.

    Raises:
        CorpusError, ModelError, InvalidValueError: the request cannot be met; nothing was written.
        OutputExistsError: the output folder exists and `resume` is not set, or it holds something else.
        RunDirectoryError: `resume` is set, but the folder was begun or built with another request.
        TrainingError: a loss or gradient is not finite.
        StorageError: the disk is full; free some space and resume.
    """
    _validate.num_worlds(request.num_worlds)
    device = usable_device(request.device)
    _folder(request).check_free(resume)
    corpus = _read_corpus(request)
    base = resolve_base_model(request.model)
    decoder = batched_decoder(base.load(getattr(torch, request.training.dtype)).to(device))
    max_tokens = min(request.training.max_tokens, decoder.architecture.context_length)
    tokenizer = base.load_tokenizer()
    texts = encode_texts(
        tokenizer,
        [record.text for record in corpus.records],
        max_tokens,
        sources=[record.source for record in corpus.records],
    )
    if texts.num_truncated:
        progress.note(f"{texts.num_truncated} of {len(texts)} records are longer than {max_tokens} tokens and were cut")
    units = group_units(corpus.records, texts_as_trained=decode_texts(tokenizer, texts.sequences))
    for note in grouping_notes(corpus, units):
        progress.note(note)
    return _Build(request, progress, corpus, units, base, decoder, texts).run()


class _Build:
    def __init__(
        self,
        request: BuildRequest,
        progress: Progress,
        corpus: Corpus,
        units: Units,
        base: LanguageModel,
        decoder: BatchedDecoder,
        texts: EncodedTexts,
    ) -> None:
        self._request = request
        self._progress = progress
        self._base = base
        self._architecture = decoder.architecture
        self._texts = texts
        self._membership = Membership(
            assign_units(request.assignment, units.num_units, request.num_worlds, request.membership_seed),
            units.unit_of_record,
            _record_hashes(corpus),
        )
        self._corpus_record = CorpusRecord(
            num_records=len(corpus.records),
            num_units=units.num_units,
            num_merged_units=units.merged,
            num_merged_once_cut=units.merged_once_cut,
            num_respelled_units=corpus.respelled_units,
            num_truncated=texts.num_truncated,
            num_skipped_blank=corpus.skipped_blank,
            num_tokens=len(texts.tokens),
            corpus_hash=corpus_hash(corpus.records),
            units_hash=units_hash(units),
        )
        self._base_record = BaseModelRecord.of(base, decoder.architecture.class_name)
        self._folder = _folder(request)
        self._work = self._folder.working_files
        self._trainer = MultiWorldTrainer(decoder, texts, request.lora, request.training, self._work / "trunk.scratch")

    def run(self) -> RunDirectory:
        if self._folder.is_finished:
            return self._open_finished()
        worlds_schedule = self._schedule(self._membership.record_members)
        full_schedule = self._schedule(np.ones((len(self._texts), 1), dtype=np.bool_))
        num_targets = self._num_targets(worlds_schedule) + self._num_targets(full_schedule)
        fuse = self._begin(num_targets * self._trainer.flop_per_token)
        groups = self._groups()
        trunk = self._trainer.trunk
        if trunk.num_tokens:
            self._progress.begin("lower layers", trunk.num_tokens)
            trunk.compute(self._progress.advance)
        self._progress.begin("adapters", num_targets)
        parts = [self._train(f"worlds-{group.start:05d}", worlds_schedule, group, fuse) for group in groups]
        full = self._train("full", full_schedule, slice(0, 1), fuse)
        write_membership(self._request.out / MEMBERSHIP_NAME, self._membership)
        write_adapters(self._request.out / WORLDS_NAME, concatenate_worlds(parts))
        write_adapters(self._request.out / FULL_NAME, full)
        write_manifest(
            self._request.out,
            num_worlds=self._request.num_worlds,
            base=self._base_record,
            lora=self._request.lora,
            corpus=self._corpus_record,
            training=self._request.training,
            membership_seed=self._request.membership_seed,
            assignment=self._request.assignment,
        )
        self._folder.tidy()
        return RunDirectory.open(self._request.out, [self._request.assignment])

    def _begin(self, flop: int) -> bool:
        """Write the request down, or check that the build was begun with the same; returns whether to compile."""
        wanted, begun, identity = self._request.compile, self._folder.read_request(), self._identity()
        if begun is not None and _COMPILED in begun:
            self._folder.begin(identity | {_COMPILED: begun[_COMPILED]})
            return confirm_fusing(begun[_COMPILED], wanted, self._architecture, self._progress)
        fuse = decide_fusing(wanted, flop, self._architecture, self._progress)
        # A build begun before choices were written down resumes without them.
        self._folder.begin(identity | {_COMPILED: fuse} if begun is None else identity)
        return fuse

    def _open_finished(self) -> RunDirectory:
        run = RunDirectory.open(self._request.out, None)
        earlier = run.manifest.model_dump(mode="json", include=set(self._identity()))
        self._folder.check_same(earlier, self._identity(), "built")
        self._folder.tidy()
        self._progress.note(f"{run.folder} is already finished")
        return run

    def _identity(self) -> dict[str, Any]:
        """All that the adapters depend on, under the names that the manifest has for it."""
        return {
            "num_worlds": self._request.num_worlds,
            "membership_seed": self._request.membership_seed,
            "assignment": self._request.assignment.value,
            "base": self._base_record.model_dump(mode="json"),
            "corpus": self._corpus_record.model_dump(mode="json"),
            "lora": self._request.lora.model_dump(mode="json"),
            "training": self._request.training.model_dump(mode="json"),
        }

    def _groups(self) -> list[slice]:
        size = self._request.training.worlds_at_once
        count = self._request.num_worlds
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def _schedule(self, members: NDArray[np.bool_]) -> Schedule:
        training = self._request.training
        return make_schedule(members, training.batch_size, training.epochs, training.seed)

    def _num_targets(self, schedule: Schedule, worlds: slice = slice(None)) -> int:
        held = schedule.members[:, worlds].sum(1)
        return int(held @ (self._texts.lengths - 1)) * schedule.epochs

    def _train(self, name: str, schedule: Schedule, worlds: slice, fuse: bool) -> StackedAdapters:
        """The adapters of one group: read if an earlier run finished them, trained otherwise."""
        finished = self._work / f"{name}.safetensors"
        if finished.is_file():
            self._progress.advance(self._num_targets(schedule, worlds))
            return read_adapters(finished, self._request.lora.alpha)
        checkpoint = TrainingCheckpoint(self._work / f"{name}.checkpoint")
        trained: TrainedWorlds = self._trainer.train(schedule, worlds, checkpoint, self._progress.advance, fuse=fuse)
        write_adapters(finished, trained.adapters)
        checkpoint.path.unlink(missing_ok=True)
        return trained.adapters


def concatenate_worlds(parts: list[StackedAdapters]) -> StackedAdapters:
    """Join adapters of consecutive worlds."""
    first = parts[0]
    return StackedAdapters(
        {path: torch.cat([part.down[path] for part in parts]) for path in first.down},
        {path: torch.cat([part.up[path] for part in parts]) for path in first.up},
        first.alpha,
    )


def _read_corpus(request: BuildRequest) -> Corpus:
    if isinstance(request.corpus, Corpus):
        return request.corpus
    return read_corpus(request.corpus, text_key=request.text_key, unit_key=request.unit_key, limit=request.limit)


def _folder(request: BuildRequest) -> WorkFolder:
    return WorkFolder(request.out, MANIFEST_NAME, "run")


def _record_hashes(corpus: Corpus) -> NDArray[np.uint8]:
    digests = [hashlib.sha256(record.text.encode()).digest() for record in corpus.records]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, hashlib.sha256().digest_size)
