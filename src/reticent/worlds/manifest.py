"""The manifest of a run directory, `manifest.json`: its schema and its checks."""

import json
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from reticent._files import refuse_undecodable
from reticent._records import check_schema
from reticent._settings import FrozenModel
from reticent.errors import RunDirectoryError
from reticent.guarantees import Guarantee
from reticent.models.base import BaseModelRecord
from reticent.text.template import TextTemplate
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import GUARANTEES, Assignment
from reticent.worlds.places import PLACES_NAME, Capacity

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
WORLDS_NAME = "worlds.safetensors"
FULL_NAME = "full.safetensors"
MEMBERSHIP_NAME = "membership.npz"


class CorpusRecord(FrozenModel):
    """The private corpus, by count and hash alone."""

    num_records: int
    num_units: int
    num_merged_units: int
    num_merged_once_cut: int = 0
    num_respelled_units: int = 0
    num_truncated: int
    num_skipped_blank: int
    num_tokens: int
    corpus_hash: str
    units_hash: str


class Manifest(FrozenModel):
    """Everything needed to tell what a run is, and the hashes of its files.

    `corpus`, `training` and `membership_seed` are absent from a run imported from PEFT folders; `template` also from
    one whose texts were read as they are. Where no file says who is in which world, the assignment is unknown, whatever
    else was written. A run with places has the number of a world's places and of a unit's records in each, and any
    number of worlds; others have an even one.
    """

    schema_version: int = Field(strict=True, ge=1)
    created: str
    num_worlds: int = Field(ge=1)
    base: BaseModelRecord
    lora: LoraSettings
    corpus: CorpusRecord | None = None
    training: TrainingSettings | None = None
    template: TextTemplate | None = None
    membership_seed: int | None = None
    assignment: Assignment = Assignment.OVERLAPPING
    places: int | None = Field(default=None, ge=1)
    unit_records: int | None = Field(default=None, ge=1)
    versions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _check_unknown_has_no_membership(cls, content: Any) -> Any:
        if isinstance(content, dict) and not {MEMBERSHIP_NAME, PLACES_NAME} & content.get("files", {}).keys():
            return content | {"assignment": Assignment.UNKNOWN}
        return content

    @field_validator("files")
    @classmethod
    def _check_files_of_a_run(cls, files: dict[str, str]) -> dict[str, str]:
        if WORLDS_NAME not in files or files.keys() - {WORLDS_NAME, FULL_NAME, MEMBERSHIP_NAME, PLACES_NAME}:
            raise ValueError(f"a run has {WORLDS_NAME}, and may have {FULL_NAME}, {MEMBERSHIP_NAME} or {PLACES_NAME}")
        return files

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        if (self.assignment is Assignment.PLACES) != (self.capacity is not None):
            raise ValueError("a run has places, and says how many, or it has neither")
        if self.capacity is None and (self.num_worlds < 2 or self.num_worlds % 2):
            raise ValueError("a run without places has an even number of worlds")
        return self

    @property
    def capacity(self) -> Capacity | None:
        """The declared worlds and places; None for a run without places."""
        if self.places is None or self.unit_records is None:
            return None
        return Capacity(self.num_worlds, self.places, self.unit_records)

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee that the worlds carry; None where nothing may be released from them."""
        return GUARANTEES.get(self.assignment)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a finished run.

    Raises:
        InvalidValueError: the folder's name is not UTF-8.
        RunDirectoryError: there is none, the run is half-built, its schema is newer, or its content is not valid.
    """
    refuse_undecodable(folder)
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        raise RunDirectoryError(f"{folder} does not exist; build a run with `reticent worlds build`")
    if not path.is_file():
        if (folder / "training").is_dir():
            raise RunDirectoryError(
                f"{folder} is half-built; finish it with the command that began it and --resume, or delete it"
            )
        raise RunDirectoryError(f"{folder} is not a run directory: it has no {MANIFEST_NAME}")
    try:
        content: Any = json.loads(path.read_text("utf-8"))
        check_schema(path, content, SCHEMA_VERSION)
        return Manifest.model_validate(content)
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RunDirectoryError(f"{path} is damaged ({reason}); restore it from a backup or build again") from None
