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
from reticent.errors import CorpusError, InvalidValueError
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder
from reticent.models.base import BaseModelRecord, LanguageModel, resolve_base_model, usable_device
from reticent.protocols import Progress
from reticent.text.corpus import (
    Corpus,
    Units,
    corpus_hash,
    group_units,
    grouping_notes,
    name_units,
    read_corpus,
    units_hash,
)
from reticent.text.template import TextTemplate, encode, nothing_to_predict, texts_as_trained
from reticent.text.tokenise import EncodedTexts
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.compilation import confirm_fusing, decide_fusing
from reticent.training.multiworld import MultiWorldTrainer, TrainedWorlds
from reticent.training.schedule import StepSchedule
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import Assignment
from reticent.worlds.layout import PlacesLayout, SeededLayout, TrainingInputs, WorldLayout
from reticent.worlds.manifest import (
    FULL_NAME,
    MANIFEST_NAME,
    WORLDS_NAME,
    CorpusRecord,
)
from reticent.worlds.places import Capacity
from reticent.worlds.run_directory import RunDirectory, read_adapters, write_adapters, write_manifest

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
        template: what surrounds each text, and which of it is trained on; the length limit is that of the training.
        device: where to train.
        assignment: overlapping worlds, or disjoint shards; neither where there are places.
        capacity: worlds and places, for a run that carries the corpus guarantee.
        compile: whether to compile training's element-wise work; None to do it where it pays. A build that is resumed
            keeps the choice it was begun with.
    """

    corpus: Path | Corpus
    model: str
    out: Path
    num_worlds: int
    lora: LoraSettings = field(default_factory=LoraSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    template: TextTemplate = field(default_factory=TextTemplate)
    text_key: str = "text"
    unit_key: str | None = None
    limit: int | None = None
    membership_seed: int = 0
    device: str = "cpu"
    assignment: Assignment = Assignment.OVERLAPPING
    capacity: Capacity | None = None
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
    if request.capacity is None:
        _validate.num_worlds(request.num_worlds)
    elif request.capacity.num_worlds != request.num_worlds:
        raise InvalidValueError(f"{request.num_worlds} worlds, and places for {request.capacity.num_worlds}")
    device = usable_device(request.device)
    _folder(request).check_free(resume)
    corpus = _read_corpus(request)
    base = resolve_base_model(request.model)
    decoder = batched_decoder(base.load(getattr(torch, request.training.dtype)).to(device))
    max_tokens = min(request.training.max_tokens, decoder.architecture.context_length)
    template = request.template.model_copy(update={"max_tokens": max_tokens})
    tokenizer = base.load_tokenizer()
    texts, as_trained = _encode_records(tokenizer, template, corpus)
    if texts.num_truncated:
        progress.note(f"{texts.num_truncated} of {len(texts)} records are longer than {max_tokens} tokens and were cut")
    units = _units(request, corpus, as_trained, progress)
    inputs = TrainingInputs(decoder, texts, units, _record_hashes(corpus), max_tokens, request.lora, request.training)
    return _Build(request, progress, corpus, base, inputs, template).run()


class _Build:
    def __init__(
        self,
        request: BuildRequest,
        progress: Progress,
        corpus: Corpus,
        base: LanguageModel,
        inputs: TrainingInputs,
        template: TextTemplate,
    ) -> None:
        self._request = request
        self._progress = progress
        self._inputs = inputs
        self._template = template
        self._architecture = inputs.decoder.architecture
        self._layout: WorldLayout = (
            SeededLayout(inputs, request.assignment, request.num_worlds, request.membership_seed)
            if request.capacity is None
            else PlacesLayout(inputs, request.capacity)
        )
        units = inputs.units
        self._corpus_record = CorpusRecord(
            num_records=len(corpus.records),
            num_units=units.num_units,
            num_merged_units=units.merged,
            num_merged_once_cut=units.merged_once_cut,
            num_respelled_units=corpus.respelled_units,
            num_truncated=inputs.texts.num_truncated,
            num_skipped_blank=corpus.skipped_blank,
            num_tokens=len(inputs.texts.tokens),
            corpus_hash=corpus_hash(corpus.records),
            units_hash=units_hash(units),
        )
        self._base_record = BaseModelRecord.of(base, self._architecture.class_name)
        self._folder = _folder(request)
        self._work = self._folder.working_files

    def run(self) -> RunDirectory:
        if self._folder.is_finished:
            return self._open_finished()
        inputs, layout = self._inputs, self._layout
        full_trainer = inputs.trainer(self._work / "trunk.scratch")
        full_schedule = inputs.schedule(np.ones((len(inputs.texts), 1), dtype=np.bool_))
        full_targets = inputs.num_targets(full_schedule)
        num_targets = layout.num_targets() + full_targets
        fuse = self._begin(num_targets * full_trainer.flop_per_token)
        trainer, schedule = layout.begin(self._work, full_trainer)
        trunks = dict.fromkeys((trainer.trunk, full_trainer.trunk))
        if trunk_tokens := sum(trunk.num_tokens for trunk in trunks):
            self._progress.begin("lower layers", trunk_tokens)
            for trunk in trunks:
                trunk.compute(self._progress.advance)
        self._progress.begin("adapters", num_targets)
        parts = [
            self._train(f"worlds-{group.start:05d}", trainer, schedule, group, layout.num_targets(group), fuse)
            for group in self._groups()
        ]
        full = self._train("full", full_trainer, full_schedule, slice(0, 1), full_targets, fuse)
        layout.write(self._request.out)
        write_adapters(self._request.out / WORLDS_NAME, concatenate_worlds(parts))
        write_adapters(self._request.out / FULL_NAME, full)
        write_manifest(
            self._request.out,
            num_worlds=self._request.num_worlds,
            base=self._base_record,
            lora=self._request.lora,
            corpus=self._corpus_record,
            training=self._request.training,
            template=None if self._template.is_plain else self._template,
            **layout.identity(),
        )
        self._folder.tidy()
        return RunDirectory.open(self._request.out, None)

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
            **self._layout.identity(),
            "base": self._base_record.model_dump(mode="json"),
            "corpus": self._corpus_record.model_dump(mode="json"),
            "lora": self._request.lora.model_dump(mode="json"),
            "training": self._request.training.model_dump(mode="json"),
            "template": None if self._template.is_plain else self._template.model_dump(mode="json"),
        }

    def _groups(self) -> list[slice]:
        size = self._request.training.worlds_at_once
        count = self._request.num_worlds
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]

    def _train(
        self,
        name: str,
        trainer: MultiWorldTrainer,
        schedule: StepSchedule,
        worlds: slice,
        num_targets: int,
        fuse: bool,
    ) -> StackedAdapters:
        """The adapters of one group: read if an earlier run finished them, trained otherwise."""
        finished = self._work / f"{name}.safetensors"
        if finished.is_file():
            self._progress.advance(num_targets)
            return read_adapters(finished, self._request.lora.alpha)
        checkpoint = TrainingCheckpoint(self._work / f"{name}.checkpoint")
        trained: TrainedWorlds = trainer.train(schedule, worlds, checkpoint, self._progress.advance, fuse=fuse)
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
    return read_corpus(
        request.corpus,
        text_key=request.text_key,
        unit_key=request.unit_key,
        limit=request.limit,
        layout=request.template.layout,
    )


def _encode_records(tokenizer: Any, template: TextTemplate, corpus: Corpus) -> tuple[EncodedTexts, list[str]]:
    """The records as worlds are trained on them: as tokens, and as texts, cut.

    Raises:
        CorpusError: a record has nothing to predict.
    """
    records = [record.text for record in corpus.records]
    encoded = encode(tokenizer, template, records)
    for record, text in zip(corpus.records, encoded, strict=True):
        if not text.num_scored:
            raise CorpusError(nothing_to_predict(record.source, text, template))
    texts = EncodedTexts.of(
        [text.token_ids for text in encoded],
        [text.is_scored for text in encoded],
        sum(text.truncated for text in encoded),
    )
    return texts, texts_as_trained(tokenizer, template, records, encoded)


def _units(request: BuildRequest, corpus: Corpus, texts_as_trained: list[str], progress: Progress) -> Units:
    """The privacy units: near-duplicates merged, or, where worlds are isolated, only reported."""
    if request.capacity is None:
        units = group_units(corpus.records, texts_as_trained=texts_as_trained)
        for note in grouping_notes(corpus, units):
            progress.note(note)
        return units
    units = name_units(corpus.records)
    if merged := _count_near_duplicates(corpus, texts_as_trained):
        progress.note(
            f"units with near-duplicates of other units' texts: {merged}. They stay apart, as each is protected under "
            "its own name; where they are one person's, name that person with --unit-key"
        )
    return units


def _count_near_duplicates(corpus: Corpus, texts_as_trained: list[str]) -> int:
    try:
        return group_units(corpus.records, texts_as_trained=texts_as_trained).merged
    except CorpusError:
        # All records make one unit.
        return len({record.unit for record in corpus.records}) - 1


def _folder(request: BuildRequest) -> WorkFolder:
    return WorkFolder(request.out, MANIFEST_NAME, "run")


def _record_hashes(corpus: Corpus) -> NDArray[np.uint8]:
    digests = [hashlib.sha256(record.text.encode()).digest() for record in corpus.records]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, hashlib.sha256().digest_size)
