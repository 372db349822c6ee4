"""Adapt one model to a corpus: from texts and a base to an adapted folder, resumably.

Everything is checked before anything is written. Who is a member is settled first and written down with the result, so
that an audit's labels cannot be wrong: members are trained on, held-out and validation records never are. A training
that is interrupted, at any moment and for any reason, ends in the same weights as one that was not when it is resumed
with the same request (differentially private training, whose noise has no seed, ends in others of the same ε).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from reticent._work_folder import WorkFolder
from reticent.errors import CorpusError, InvalidValueError
from reticent.models.base import LanguageModel, resolve_base_model, usable_device
from reticent.protocols import Progress
from reticent.randomness import SystemNoise
from reticent.text.corpus import Corpus, TextRecord, grouping_notes, read_corpus, text_hash
from reticent.text.template import EncodedText, TextTemplate, encode, nothing_to_predict, padding_id, texts_as_trained
from reticent.training.adapted_folder import (
    ADAPT_NAME,
    AdaptedFolder,
    CountsRecord,
    EpochRecord,
    PrivacyRecord,
    write_adapted,
)
from reticent.training.attention_gradients import keep_attention_weights
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.dpsgd import SMALLEST_SIGMA, NoiseCalibration
from reticent.training.private_training import PrivateGradients, calibrate_training_noise, refuse_unsuited
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings, SplitSettings
from reticent.training.single_training import EpochLoss, GradientSource, MeanGradients, SingleTrainer, Texts
from reticent.training.splitting import Split, split_records
from reticent.training.techniques.registry import (
    TECHNIQUES,
    attach,
    attach_demonstrations,
    enable_gradient_checkpointing,
    num_trainable,
    num_virtual_rows,
    positions_taken,
)
from reticent.training.text_loss import TextLoss

_LEAST_SECONDS_BETWEEN_SAVES = 30.0
_BYTES_SAVED_A_SECOND = 1e7
"""How fast checkpoints may be written on average, so that a large one is not written all the time."""

_BYTES_A_PARAMETER = 12


@dataclass(frozen=True)
class AdaptRequest:
    """A request to adapt a model: the corpus, the base, the technique and all settings.

    Attributes:
        corpus: file or folder; text_key, unit_key, limit: how to read it.
        model: base model, as `resolve_base_model` takes it.
        out: the folder to make.
        technique, settings: what trains.
        template: what surrounds each text and where it is cut; cut further where the model's context is shorter.
        split: who is a member.
        training: how to train; in-context learning trains nothing.
        privacy: the differential privacy to train with, if any.
        device: where to train.
    """

    corpus: Path
    model: str
    out: Path
    technique: Technique
    settings: TechniqueSettings = field(default_factory=TechniqueSettings)
    template: TextTemplate = field(default_factory=TextTemplate)
    split: SplitSettings = field(default_factory=SplitSettings)
    training: SingleTrainingSettings = field(default_factory=SingleTrainingSettings)
    privacy: PrivacySettings | None = None
    text_key: str = "text"
    unit_key: str | None = None
    limit: int | None = None
    device: str = "cpu"

    @property
    def is_in_context(self) -> bool:
        """True if members are demonstrations and nothing is trained."""
        return TECHNIQUES[self.technique].reads_demonstrations


def adapt(request: AdaptRequest, progress: Progress, *, resume: bool = False) -> AdaptedFolder:
    """Make an adapted folder, or finish one.

    Raises:
        CorpusError, ModelError, InvalidValueError: the request cannot be met; nothing was written.
        OutputExistsError: the output folder exists and `resume` is not set, or it holds something else.
        RunDirectoryError: `resume` is set, but the folder was begun or made with another request.
        TrainingError: the loss is no longer a number.
        StorageError: the disk is full; free some space and resume.
    """
    _check_request(request)
    device = usable_device(request.device)
    folder = WorkFolder(request.out, ADAPT_NAME, "adapted model")
    folder.check_free(resume)
    corpus = read_corpus(
        request.corpus,
        text_key=request.text_key,
        unit_key=request.unit_key,
        limit=request.limit,
        layout=request.template.layout,
    )
    base = resolve_base_model(request.model)
    return _Adaptation(request, progress, folder, corpus, base, device).run()


class _Adaptation:
    def __init__(
        self,
        request: AdaptRequest,
        progress: Progress,
        folder: WorkFolder,
        corpus: Corpus,
        base: LanguageModel,
        device: torch.device,
    ) -> None:
        self._request, self._progress, self._folder = request, progress, folder
        self._corpus, self._base, self._device = corpus, base, device
        self._tokenizer = base.load_tokenizer()
        model = base.load(getattr(torch, request.training.dtype)).to(device)
        self._is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self._split, self._template, self._module = self._attach_technique(model)
        for note in grouping_notes(corpus, self._split.units):
            progress.note(f"{note}; each unit is on one side of the split")
        self._members = self._encode(self._split.members, self._template)
        self._validation = self._encode(self._split.validation, self._template)
        truncated = sum(text.truncated for text in self._members)
        if truncated:
            progress.note(
                f"{truncated} of {len(self._members)} members are longer than {self._template.max_tokens} tokens "
                "and were cut"
            )
        self._calibration: NoiseCalibration | None = None
        if request.privacy is not None:
            protected = len(self._member_units()) if request.privacy.per_unit else len(self._members)
            self._calibration = calibrate_training_noise(protected, request.training, request.privacy)
            if self._calibration.noise_multiplier == SMALLEST_SIGMA:
                progress.note(
                    f"the noise multiplier is never below {SMALLEST_SIGMA}: epsilon is "
                    f"{self._calibration.epsilon:.4g}, not the {request.privacy.epsilon:g} asked for"
                )

    def run(self) -> AdaptedFolder:
        if self._folder.is_finished:
            return self._open_finished()
        self._folder.begin(self._identity())
        epochs = () if self._request.is_in_context else self._train()
        adapted = write_adapted(
            self._request.out,
            self._module,
            self._base,
            technique=self._request.technique,
            settings=self._request.settings,
            template=self._template,
            member_hashes=self._hashes(self._split.members),
            heldout_hashes=self._hashes(self._split.heldout),
            counts=self._counts(),
            split=self._request.split,
            training=None if self._request.is_in_context else self._request.training,
            dp=self._privacy_record(),
            epochs=[EpochRecord(training=loss.training, validation=loss.validation) for loss in epochs],
        )
        self._folder.tidy()
        return adapted

    def _attach_technique(self, model: Any) -> tuple[Split, TextTemplate, nn.Module]:
        """The split, the template cut to what the model can hold, and the model with its technique on."""
        request = self._request
        if request.is_in_context:
            split = self._draw_split(request.template)
            demonstrations = self._encode(split.members, request.template)
            ids = [text.token_ids for text in demonstrations]
            module = attach_demonstrations(model, ids, self._tokenizer.bos_token_id)
            return split, self._template_that_fits(model, module), module
        module = attach(model, request.technique, request.settings, seed=request.training.seed)
        if request.training.gradient_checkpointing:
            enable_gradient_checkpointing(module)
        template = self._template_that_fits(model, module)
        return self._draw_split(template), template, module

    def _draw_split(self, template: TextTemplate) -> Split:
        """Draw members, held-out and validation texts, after comparing texts whole and as the template cuts them."""
        records = self._corpus.records
        texts = [record.text for record in records]
        encoded = encode(self._tokenizer, template, texts, is_encoder_decoder=self._is_encoder_decoder)
        return split_records(records, self._request.split, texts_as_trained(self._tokenizer, template, texts, encoded))

    def _template_that_fits(self, model: Any, module: nn.Module) -> TextTemplate:
        request = self._request
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit is None or self._is_encoder_decoder:
            return request.template
        left = limit - positions_taken(module)
        if request.is_in_context and left < request.template.max_tokens:
            raise InvalidValueError(
                f"the demonstrations take {positions_taken(module)} of the model's {limit} positions, so no text of "
                f"{request.template.max_tokens} tokens fits behind them; give fewer demonstrations, or shorter texts "
                "with --max-tokens"
            )
        if left < 2:
            raise InvalidValueError(
                f"{request.technique} takes {positions_taken(module)} of the model's {limit} positions and leaves none "
                "for a text; ask for fewer virtual tokens"
            )
        return request.template.model_copy(update={"max_tokens": min(left, request.template.max_tokens)})

    def _encode(self, records: NDArray[np.int64], template: TextTemplate) -> list[EncodedText]:
        chosen: list[TextRecord] = [self._corpus.records[record] for record in records]
        encoded = encode(
            self._tokenizer,
            template,
            [record.text for record in chosen],
            is_encoder_decoder=self._is_encoder_decoder,
        )
        for record, text in zip(chosen, encoded, strict=True):
            if not text.num_scored:
                raise CorpusError(nothing_to_predict(record.source, text, template))
        return encoded

    def _train(self) -> tuple[EpochLoss, ...]:
        request = self._request
        private_head = request.privacy is not None and TECHNIQUES[request.technique].is_whole_model
        loss = TextLoss(self._module, num_virtual_rows(self._module), in_chunks=not private_head)
        members, validation = (self._texts(encoded) for encoded in (self._members, self._validation))
        private = self._private_source(loss, members)
        source: GradientSource = private or MeanGradients(loss, members, request.training)
        trainer = SingleTrainer(self._module, loss, source, validation, request.training)
        checkpoint = TrainingCheckpoint(self._folder.working_files / "checkpoint", _seconds_between_saves(self._module))
        epoch_tokens = sum(source.num_tokens(step) for step in range(source.steps_per_epoch))
        self._progress.begin("training", request.training.epochs * epoch_tokens)
        longest = positions_taken(self._module) + max(text.num_read for text in self._members)
        try:
            with keep_attention_weights(self._module, longest):
                return trainer.train(checkpoint, self._progress.advance, self._report_epoch)
        finally:
            if private is not None:
                private.close()

    def _private_source(self, loss: TextLoss, members: Texts) -> PrivateGradients | None:
        request = self._request
        if request.privacy is None or self._calibration is None:
            return None
        source = PrivateGradients(
            self._module,
            loss,
            members,
            self._calibration,
            request.training,
            request.privacy,
            SystemNoise(),
            self._member_units() if request.privacy.per_unit else None,
        )
        if source.takes_one_by_one:
            self._progress.note(f"records are taken one at a time, which is slow: {source.takes_one_by_one}")
        if not request.privacy.per_unit and (request.unit_key is not None or self._split.units.merged):
            self._progress.note("epsilon is for one record added or removed; --dp-per-unit protects whole units")
        return source

    def _member_units(self) -> list[NDArray[np.int64]]:
        """The positions among the members of each unit's records; no unit is divided between members and others."""
        units = self._split.units.unit_of_record[self._split.members]
        return [np.flatnonzero(units == unit) for unit in np.unique(units)]

    def _report_epoch(self, epoch: int, loss: EpochLoss) -> None:
        parts = {"training": loss.training, "validation": loss.validation}
        losses = ", ".join(f"{name} {value:.4f}" for name, value in parts.items() if value is not None)
        if losses:
            self._progress.note(f"epoch {epoch + 1} of {self._request.training.epochs}: {losses} nats a token")

    def _texts(self, encoded: Sequence[EncodedText]) -> Texts:
        embedding: Any = self._module.get_input_embeddings()  # type: ignore[operator]
        return Texts(encoded, padding_id(self._tokenizer, len(embedding.weight)), self._device)

    def _hashes(self, records: NDArray[np.int64]) -> list[str]:
        return [text_hash(self._corpus.records[record].text) for record in records]

    def _counts(self) -> CountsRecord:
        return CountsRecord(
            members=len(self._split.members),
            heldout=len(self._split.heldout),
            validation=len(self._split.validation),
            skipped_blank=self._corpus.skipped_blank,
            merged_units=self._split.units.merged,
            merged_once_cut=self._split.units.merged_once_cut,
            truncated=sum(text.truncated for text in self._members),
            tokens=sum(text.num_scored for text in self._members),
        )

    def _privacy_record(self) -> PrivacyRecord | None:
        calibration, privacy = self._calibration, self._request.privacy
        if calibration is None or privacy is None:
            return None
        return PrivacyRecord(
            epsilon=calibration.epsilon,
            delta=calibration.delta,
            accountant=calibration.accountant,
            noise_multiplier=calibration.noise_multiplier,
            max_gradient_norm=privacy.max_gradient_norm,
            sample_rate=calibration.sample_rate,
            num_steps=calibration.num_steps,
            protects="unit" if privacy.per_unit else "record",
        )

    def _identity(self) -> dict[str, Any]:
        """All that the weights depend on."""
        request, dp = self._request, self._privacy_record()
        return {
            "technique": str(request.technique),
            "settings": request.settings.model_dump(mode="json"),
            "template": _template_record(self._template),
            "split": request.split.model_dump(mode="json"),
            "training": None if request.is_in_context else request.training.model_dump(mode="json"),
            "dp": None if dp is None else dp.model_dump(mode="json"),
            "base": {
                "name": self._base.name,
                "content_hash": self._base.content_hash,
                "tokenizer_hash": self._base.tokenizer_hash,
            },
            "members": _list_hash(self._hashes(self._split.members)),
            "heldout": _list_hash(self._hashes(self._split.heldout)),
        }

    def _open_finished(self) -> AdaptedFolder:
        adapted = AdaptedFolder.open(self._request.out)
        identity = self._identity()
        earlier = adapted.manifest.model_dump(mode="json", include=set(identity))
        earlier["base"].pop("class_name")
        earlier["template"] = _template_record(adapted.manifest.template)
        earlier |= {"members": _list_hash(adapted.member_hashes), "heldout": _list_hash(adapted.heldout_hashes)}
        self._folder.check_same(earlier, identity, "made")
        self._folder.tidy()
        self._progress.note(f"{adapted.folder} is already finished")
        return adapted


def _check_request(request: AdaptRequest) -> None:
    """Refuse what cannot be meant, before anything is read."""
    demonstrations = request.split.demonstrations
    if request.is_in_context != (demonstrations is not None):
        raise InvalidValueError(
            "in-context learning needs a number of demonstrations"
            if request.is_in_context
            else f"demonstrations are for in-context learning (icl), not for {request.technique}"
        )
    if request.is_in_context and request.split.val_fraction:
        raise InvalidValueError("in-context learning trains nothing, so it has no validation loss; leave it out")
    if request.privacy is not None:
        refuse_unsuited(request.technique, request.training)


def _template_record(template: TextTemplate) -> dict[str, Any]:
    """The template, without an answer where it has none: unfinished work of earlier versions knows of none."""
    return template.model_dump(mode="json", exclude=set() if template.answer else {"answer"})


def _list_hash(hashes: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _seconds_between_saves(module: nn.Module) -> float:
    """Longer for a state that takes long to write: three float32 numbers a parameter."""
    return max(_LEAST_SECONDS_BETWEEN_SAVES, num_trainable(module) * _BYTES_A_PARAMETER / _BYTES_SAVED_A_SECOND)
