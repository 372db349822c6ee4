"""Records that a grid leaves on disk about each cell, by which a finished cell is found again.

    OUT/cells/NAME/begun.json     what is being made; written first
    OUT/cells/NAME/cell.json      how the cell was made and how it ended; written last
    OUT/cells/NAME/report.json    its `AuditResult`, where it ended well

A cell counts as finished if its record says so, it was made with the same settings from the same texts, and its result
is the file that was written. Anything else is made again.
"""

import hashlib
import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from reticent._files import atomic_write_bytes, sha256_of_file
from reticent._settings import FiniteModel
from reticent.auditing.results import AuditResult, Details
from reticent.errors import StorageError
from reticent.stats.estimate import Estimate

SCHEMA_VERSION = 1
RECORD_NAME = "cell.json"
RESULT_NAME = "report.json"
BEGUN_NAME = "begun.json"


class CellState(StrEnum):
    """The end of a cell."""

    DONE = "done"
    FAILED = "failed"


class CellFacts(FiniteModel):
    """The factors that a benchmark compares cells by.

    Attributes:
        num_parameters: of the base model; None where its weights are not in safetensors.
        num_trained: numbers that the technique trains.
        num_members, num_nonmembers: texts on either side.
        mean_tokens: tokens of a member after the cut, on average.
        epochs: passes over the members; 0 for in-context learning.
        learning_rate: the peak; None for in-context learning.
        training_loss: mean over the last epoch, nats a token; None where none was measured.
        member_gain, heldout_gain: what adaptation added to a token's log-probability, in nats over the base model,
            mean over members and over non-members; None where the base scored too few.
        dp_epsilon, dp_delta: of differentially private training.
    """

    num_parameters: int | None = Field(default=None, ge=1)
    num_trained: int = Field(ge=0)
    num_members: int = Field(ge=1)
    num_nonmembers: int = Field(ge=1)
    mean_tokens: float = Field(ge=0)
    epochs: int = Field(ge=0)
    learning_rate: float | None = None
    training_loss: float | None = None
    member_gain: Estimate | None = None
    heldout_gain: Estimate | None = None
    dp_epsilon: float | None = None
    dp_delta: float | None = None


class CellRecord(FiniteModel):
    """One cell as it ended.

    Attributes:
        name: the cell's folder.
        state: how it ended.
        settings: all that determines the result.
        data_sha256: of the file with the data set's texts.
        facts: absent from a cell that failed.
        error: why it failed.
        seconds: wall time it took.
        revision: of the program's source, where it is a checkout.
        versions: of the packages that took part.
        result_sha256: of `report.json`.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    name: str
    state: CellState
    settings: Details
    data_sha256: str | None = None
    facts: CellFacts | None = None
    error: str | None = None
    began: str
    seconds: float = Field(ge=0)
    revision: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    result_sha256: str | None = None

    @property
    def settings_hash(self) -> str:
        """SHA-256 of the settings, in hexadecimal."""
        return settings_hash(self.settings)


def settings_hash(settings: dict[str, Any]) -> str:
    """SHA-256 of settings as JSON with sorted keys, in hexadecimal."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, allow_nan=False).encode()).hexdigest()


def begin_cell(folder: Path, settings: dict[str, Any], data_sha256: str | None) -> None:
    """Make a cell's folder, and clear from it what was made with other settings or from other texts.

    Files of the same cell's earlier attempt stay, so that it can resume from them.

    Raises:
        StorageError: the folder cannot be made or cleared.
    """
    begun = json.dumps({"settings_hash": settings_hash(settings), "data_sha256": data_sha256}).encode()
    path = folder / BEGUN_NAME
    try:
        if folder.exists() and not (path.is_file() and path.read_bytes() == begun):
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in (RECORD_NAME, RESULT_NAME):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror or error}; choose another --out") from None
    atomic_write_bytes(path, begun)


def write_cell_record(folder: Path, record: CellRecord) -> None:
    """Write a cell's record, durably.

    Raises:
        StorageError: it cannot be written.
    """
    atomic_write_bytes(folder / RECORD_NAME, (record.model_dump_json(indent=2) + "\n").encode())


def read_cell_record(folder: Path) -> CellRecord | None:
    """The record of a cell; None where there is none that this version reads."""
    try:
        return CellRecord.model_validate_json((folder / RECORD_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def find_finished_cell(folder: Path, settings: dict[str, Any], data_sha256: str) -> CellRecord | None:
    """The record of a cell that is finished and was made with these settings from these texts, else None."""
    record = read_cell_record(folder)
    if record is None or record.state is not CellState.DONE or record.data_sha256 != data_sha256:
        return None
    if record.settings_hash != settings_hash(settings):
        return None
    result = folder / RESULT_NAME
    return record if result.is_file() and sha256_of_file(result) == record.result_sha256 else None


def read_cell_audit(folder: Path) -> AuditResult:
    """The audit of a finished cell."""
    return AuditResult.model_validate_json((folder / RESULT_NAME).read_bytes())


def source_revision() -> str | None:
    """The commit that the program's source is checked out at, also in a further work tree; None outside a checkout."""
    return checked_out_commit(Path(__file__).parents[3])


def checked_out_commit(root: Path) -> str | None:
    """The commit that a work tree of git is at, read from git's files; None where there is none."""
    git = root / ".git"
    try:
        if git.is_file():
            own = root / git.read_text("utf-8").strip().removeprefix("gitdir: ")
            head, git = (own / "HEAD").read_text("ascii").strip(), own / (own / "commondir").read_text("utf-8").strip()
        else:
            head = (git / "HEAD").read_text("ascii").strip()
        if not head.startswith("ref: "):
            return head
        reference = git / head.removeprefix("ref: ")
        if reference.is_file():
            return reference.read_text("ascii").strip()
        packed = (git / "packed-refs").read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    name = head.removeprefix("ref: ")
    return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
