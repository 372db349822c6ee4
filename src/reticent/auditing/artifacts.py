"""The files of an audit: scores by text hash, and the result as JSON. Both are written before anything is rendered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reticent._files import atomic_write, atomic_write_bytes
from reticent.auditing.results import AuditResult
from reticent.errors import StorageError

SCORES_NAME = "scores.parquet"
RESULT_NAME = "report.json"


@dataclass(frozen=True)
class ScoreColumn:
    """One attack's scores by text hash; a text that is absent has no score, for the reason in `missing`."""

    scores: Mapping[str, float]
    missing: Mapping[str, str]


def make_audit_folder(out: Path) -> None:
    """Make the folder of an audit unless it is there.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {out}: {error.strerror or error}; choose another --out") from error


def write_scores(
    out: Path,
    hashes: Sequence[str],
    is_member: Sequence[bool],
    columns: Mapping[str, ScoreColumn],
    texts: Sequence[str] | None = None,
) -> None:
    """Write `scores.parquet`: text_hash, is_member, and for each attack its score and, where there is none, the reason.

    Args:
        out: the folder.
        hashes: SHA-256 of each text.
        is_member: aligned with `hashes`.
        columns: scores by the attack's name.
        texts: the texts themselves, only where the user asked for them.

    Raises:
        StorageError: it cannot be written.
    """
    table: dict[str, pa.Array] = {
        "text_hash": pa.array(hashes, pa.string()),
        "is_member": pa.array([bool(value) for value in is_member], pa.bool_()),
    }
    for name, column in columns.items():
        scores = [float(column.scores[key]) if key in column.scores else None for key in hashes]
        table[name] = pa.array(scores, pa.float64())
        table[f"{name} missing"] = pa.array([column.missing.get(key) for key in hashes], pa.string())
    if texts is not None:
        table["text"] = pa.array(texts, pa.string())
    atomic_write(out / SCORES_NAME, lambda scratch: pq.write_table(pa.table(table), scratch))


def write_audit_result(out: Path, result: AuditResult) -> None:
    """Write `report.json`.

    Raises:
        StorageError: it cannot be written.
    """
    atomic_write_bytes(out / RESULT_NAME, (result.model_dump_json(indent=2) + "\n").encode())


def read_audit_result(out: Path) -> AuditResult:
    """Read the result that `write_audit_result` wrote into a folder."""
    return AuditResult.model_validate_json((out / RESULT_NAME).read_text("utf-8"))
