"""One adapted model on disk: what was trained, on what exactly, from which base, and the hashes that vouch for it.

    adapt.json      every file below by SHA-256, and how it was made; written last, so it is there or nothing is
    members.txt     SHA-256 of each text trained on (each demonstration, for in-context learning), a line each, in order
    heldout.txt     the same for the texts held out; what was used for validation is in neither list
    weights/        a PEFT folder, `bottleneck.safetensors`, `demonstrations.npz`, or a whole model with its tokenizer

Opening a folder verifies every hash. No text is in it, but demonstrations are private texts as token ids, and a whole
model or an adapter may give away what it was trained on: treat the folder as private.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from reticent._files import atomic_write_bytes, fsync_directory, sha256_of_file
from reticent._records import check_files, check_schema, package_versions
from reticent._settings import FrozenModel
from reticent.errors import InvalidValueError, OutputExistsError, RunDirectoryError, StorageError
from reticent.models.base import TOKENIZER_FILES, BaseModelRecord, LanguageModel, resolve_base_model, usable_device
from reticent.text.template import TextTemplate
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import SingleTrainingSettings, SplitSettings
from reticent.training.techniques.registry import (
    TECHNIQUES,
    base_class_name,
    load_technique,
    num_trainable,
    save_technique,
)

SCHEMA_VERSION = 1
ADAPT_NAME = "adapt.json"
MEMBERS_NAME = "members.txt"
HELDOUT_NAME = "heldout.txt"
WEIGHTS_NAME = "weights"
_HASH = re.compile(r"[0-9a-f]{64}")


class PrivacyRecord(FrozenModel):
    """The differential privacy that a training has, for one text, or one unit of texts, added or removed.

    Attributes:
        epsilon: the ε reached.
        delta: its δ.
        accountant: how ε was computed, by name.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        max_gradient_norm: each text's, or unit's, gradient was clipped to this norm.
        sample_rate: the probability with which one entered a step.
        num_steps: how many steps there were. With the multiplier and the rate, anyone can compute ε again.
        protects: what is added or removed; a unit is one after near-duplicates are merged.
    """

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1)
    accountant: str
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)
    max_gradient_norm: float = Field(gt=0, allow_inf_nan=False)
    sample_rate: float = Field(gt=0, le=1)
    num_steps: int = Field(ge=1)
    protects: Literal["record", "unit"] = "record"


class EpochRecord(FrozenModel):
    """Mean losses of an epoch in nats a token; None where not measured, as in private training."""

    training: float | None = Field(default=None, allow_inf_nan=False)
    validation: float | None = Field(default=None, allow_inf_nan=False)


class CountsRecord(FrozenModel):
    """The texts by number. `truncated`, `unscored` and `tokens` are of members alone.

    `merged_units` counts the units that were merged into others because their texts are near-duplicates, and
    `merged_once_cut` those of them whose texts are so only as they are cut for training.
    """

    members: int = Field(ge=1)
    heldout: int = Field(ge=0)
    validation: int = Field(default=0, ge=0)
    skipped_blank: int = Field(default=0, ge=0)
    merged_units: int = Field(default=0, ge=0)
    merged_once_cut: int = Field(default=0, ge=0)
    truncated: int = Field(default=0, ge=0)
    unscored: int = Field(default=0, ge=0)
    tokens: int = Field(default=0, ge=0)
    trained_parameters: int = Field(default=0, ge=0)


class AdaptManifest(FrozenModel):
    """Everything needed to tell what an adapted model is, and the hashes of its files.

    `training` is absent from in-context learning, `dp` from training without differential privacy.
    """

    schema_version: int = Field(strict=True, ge=1)
    created: str
    technique: Technique
    settings: TechniqueSettings
    template: TextTemplate
    base: BaseModelRecord
    counts: CountsRecord
    split: SplitSettings | None = None
    training: SingleTrainingSettings | None = None
    dp: PrivacyRecord | None = None
    epochs: tuple[EpochRecord, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str]


@dataclass(frozen=True)
class AdaptedFolder:
    """A finished, verified adapted model.

    Attributes:
        folder: where it is.
        manifest: how it was made.
        member_hashes: SHA-256 of the texts it was trained on, in order.
        heldout_hashes: SHA-256 of the texts that were held out, in order.
    """

    folder: Path
    manifest: AdaptManifest
    member_hashes: tuple[str, ...]
    heldout_hashes: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path) -> "AdaptedFolder":
        """Open an adapted model and verify the hash of each of its files.

        Raises:
            RunDirectoryError: it is missing, half-made, damaged or of a newer schema.
        """
        manifest = read_adapted_manifest(folder)
        check_files(folder, manifest.files)
        members, heldout = (_read_hashes(folder / name) for name in (MEMBERS_NAME, HELDOUT_NAME))
        if (len(members), len(heldout)) != (manifest.counts.members, manifest.counts.heldout):
            raise RunDirectoryError(f"{folder}: {ADAPT_NAME} counts other lists than the folder holds; make it again")
        return cls(folder, manifest, members, heldout)

    @property
    def technique(self) -> Technique:
        """The technique it was adapted by."""
        return self.manifest.technique

    @property
    def template(self) -> TextTemplate:
        """The template that texts are scored with, as they were trained: surroundings and length limit."""
        return self.manifest.template

    @property
    def dtype(self) -> torch.dtype:
        """The type of the base's weights that it was trained in."""
        name = self.manifest.training.dtype if self.manifest.training else "float32"
        dtype: torch.dtype = getattr(torch, name)
        return dtype

    @property
    def weights(self) -> Path:
        """The folder with what was trained."""
        return self.folder / WEIGHTS_NAME

    def base(self, name: str | None = None) -> LanguageModel:
        """The base model, found under its recorded name or another, and verified by content.

        Raises:
            ModelError: no such base is found.
            RunDirectoryError: what is found there is another base or another tokenizer; both hashes are named.
        """
        base = resolve_base_model(name or self.manifest.base.name)
        self.manifest.base.check(base, f"{self.folder} was adapted")
        return base

    def load(
        self, base: LanguageModel | None = None, dtype: torch.dtype | None = None, device: str = "cpu"
    ) -> tuple[nn.Module, Any]:
        """The adapted model, frozen and in evaluation mode, and its tokenizer.

        Args:
            base: the base model, verified here; by default the one recorded. Full fine-tuning does not need it.
            dtype: of the base's weights; by default the one it was trained in. Adapters are float32.
            device: where to compute.

        Raises:
            ModelError: no base is found, or the weights do not fit it.
            RunDirectoryError: the base is another than recorded; both hashes are named.
            InvalidValueError: there is no such device here.
        """
        if base is not None:
            self.manifest.base.check(base, f"{self.folder} was adapted")
        chosen, place = dtype or self.dtype, usable_device(device)
        if TECHNIQUES[self.technique].is_whole_model:
            whole = LanguageModel(self.manifest.base.name, self.weights)
            return whole.load(chosen).to(place), whole.load_tokenizer()
        found = base or self.base()
        model = found.load(chosen).to(place)
        return load_technique(model, self.technique, self.manifest.settings, self.weights), found.load_tokenizer()


def write_adapted(
    folder: Path,
    module: nn.Module,
    base: LanguageModel,
    *,
    technique: Technique,
    settings: TechniqueSettings,
    template: TextTemplate,
    member_hashes: Sequence[str],
    heldout_hashes: Sequence[str],
    counts: CountsRecord | None = None,
    split: SplitSettings | None = None,
    training: SingleTrainingSettings | None = None,
    dp: PrivacyRecord | None = None,
    epochs: Sequence[EpochRecord] = (),
) -> AdaptedFolder:
    """Write an adapted model; `adapt.json` comes last and makes it complete.

    Args:
        folder: made where missing; other files in it are left alone.
        module: what `techniques.attach` made, trained.
        base: the base model.
        technique: how.
        settings: its sizes.
        template: what surrounded each text.
        member_hashes: `corpus.text_hash` of each text trained on, in order.
        heldout_hashes: the same for the texts held out.
        counts: further numbers; members, held-out texts and trained parameters are counted here.
        split: how the two lists were drawn.
        training: how the module was trained.
        dp: the differential privacy of the training.
        epochs: the losses.

    Raises:
        InvalidValueError: a hash is not a SHA-256, no text is a member, or a text is both member and held out.
        OutputExistsError: the folder holds a finished model.
        StorageError: something cannot be written.
    """
    _check_lists(member_hashes, heldout_hashes)
    if (folder / ADAPT_NAME).exists():
        raise OutputExistsError(f"{folder} already holds a finished adapted model; choose another --out")
    _write_weights(folder / WEIGHTS_NAME, module, base, technique)
    for name, hashes in ((MEMBERS_NAME, member_hashes), (HELDOUT_NAME, heldout_hashes)):
        atomic_write_bytes(folder / name, "".join(f"{value}\n" for value in hashes).encode())
    found = {
        "members": len(member_hashes),
        "heldout": len(heldout_hashes),
        "trained_parameters": num_trainable(module),
    }
    paths = [folder / MEMBERS_NAME, folder / HELDOUT_NAME, *sorted((folder / WEIGHTS_NAME).iterdir())]
    manifest = AdaptManifest(
        schema_version=SCHEMA_VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        technique=technique,
        settings=settings,
        template=template,
        base=BaseModelRecord.of(base, base_class_name(module)),
        counts=CountsRecord(**{**(counts.model_dump() if counts else {}), **found}),
        split=split,
        training=training,
        dp=dp,
        epochs=tuple(epochs),
        versions=package_versions(),
        files={path.relative_to(folder).as_posix(): sha256_of_file(path) for path in paths},
    )
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    atomic_write_bytes(folder / ADAPT_NAME, text.encode())
    return AdaptedFolder.open(folder)


def _write_weights(folder: Path, module: nn.Module, base: LanguageModel, technique: Technique) -> None:
    try:
        # What a killed attempt left is incomplete: without `adapt.json` nothing vouches for it.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_technique(module, folder)
        if TECHNIQUES[technique].is_whole_model:
            for name in TOKENIZER_FILES:
                if (base.folder / name).is_file():
                    shutil.copyfile(base.folder / name, folder / name)
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        fsync_directory(folder)
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror or error}; free some space and resume") from error


def _check_lists(members: Sequence[str], heldout: Sequence[str]) -> None:
    if not members:
        raise InvalidValueError("an adapted model needs at least one member text")
    wrong = next((value for value in (*members, *heldout) if not _HASH.fullmatch(value)), None)
    if wrong is not None:
        raise InvalidValueError(f"texts are listed by 64 hexadecimal digits of SHA-256, found {len(wrong)} characters")
    both = set(members) & set(heldout)
    if both:
        raise InvalidValueError(
            f"{len(both)} text(s) are both trained on and held out, {min(both)[:12]}… among them; remove duplicates"
        )


def _read_hashes(path: Path) -> tuple[str, ...]:
    hashes = tuple(path.read_text("ascii").splitlines())
    if not all(_HASH.fullmatch(value) for value in hashes):
        raise RunDirectoryError(f"{path} is not a list of SHA-256 hashes; make the folder again")
    return hashes


def read_adapted_manifest(folder: Path) -> AdaptManifest:
    """Read and check `adapt.json`; the other files of the folder are not looked at.

    Raises:
        RunDirectoryError: it is missing, damaged or of a newer schema.
    """
    path = folder / ADAPT_NAME
    if not path.is_file():
        raise RunDirectoryError(
            f"{folder} is not a finished adapted model: it has no {ADAPT_NAME}; "
            "make one with `reticent adapt`, or finish it with --resume"
        )
    try:
        content: Any = json.loads(path.read_text("utf-8"))
        check_schema(path, content, SCHEMA_VERSION)
        manifest = AdaptManifest.model_validate(content)
        _check_names(manifest.files)
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RunDirectoryError(f"{path} is damaged ({reason}); restore it from a backup or adapt again") from None
    return manifest


def _check_names(names: Iterable[str]) -> None:
    """The two lists and files directly in `weights/`: nothing outside the folder is ever read."""
    names = set(names)
    weights = {name for name in names if re.fullmatch(rf"{WEIGHTS_NAME}/[^/\\]+", name) and not name.endswith("/..")}
    if not weights or names - weights != {MEMBERS_NAME, HELDOUT_NAME}:
        raise ValueError("it does not list the files of an adapted model")
