"""The manifest of a run directory, `manifest.json`: its schema and its checks."""

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from reticent._files import refuse_undecodable
from reticent._records import check_schema
from reticent._settings import FrozenModel
from reticent.errors import RunDirectoryError
from reticent.models.base import BaseModelRecord
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import Assignment

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

    `corpus`, `training` and `membership_seed` are absent from a run imported from PEFT folders. Where no file says who
    is in which world, the assignment is unknown, whatever else was written.
    """

    schema_version: int = Field(strict=True, ge=1)
    created: str
    num_worlds: int = Field(ge=2, multiple_of=2)
    base: BaseModelRecord
    lora: LoraSettings
    corpus: CorpusRecord | None = None
    training: TrainingSettings | None = None
    membership_seed: int | None = None
    assignment: Assignment = Assignment.OVERLAPPING
    versions: dict[str, str] = Field(default_factory=dict)
    files: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _check_unknown_has_no_membership(cls, content: Any) -> Any:
        if isinstance(content, dict) and MEMBERSHIP_NAME not in content.get("files", {}):
            return content | {"assignment": Assignment.UNKNOWN}
        return content

    @field_validator("files")
    @classmethod
    def _check_files_of_a_run(cls, files: dict[str, str]) -> dict[str, str]:
        if WORLDS_NAME not in files or files.keys() - {WORLDS_NAME, FULL_NAME, MEMBERSHIP_NAME}:
            raise ValueError(f"a run has {WORLDS_NAME}, and may have {FULL_NAME} and {MEMBERSHIP_NAME}")
        return files


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
