"""Durable files: a reader sees the old content or the new, never a part, also after a crash."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from reticent.errors import InvalidValueError, OutputExistsError, StorageError


def sha256_of_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def json_lines(rows: Iterable[object]) -> bytes:
    """JSON Lines in UTF-8: one value a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def refuse_undecodable(path: Path) -> None:
    """Make sure that a path can be written down: records, databases and clients take text, not bytes.

    Raises:
        InvalidValueError: its name, or that of a folder it is in, is not UTF-8.
    """
    name = os.path.realpath(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        raise InvalidValueError(f"the name {shown} holds bytes that are not UTF-8; rename it") from None


def make_new_folder(path: Path) -> None:
    """Make a folder, and those it is in.

    Raises:
        InvalidValueError: its name is not UTF-8.
        OutputExistsError: something is there already.
        StorageError: it cannot be made.
    """
    refuse_undecodable(path)
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise OutputExistsError(f"{path} exists; choose another folder") from None
    except OSError as error:
        raise StorageError(f"cannot make {path}: {error.strerror}") from error


def fsync_directory(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_open_as(path: Path, descriptor: int) -> bool:
    """True if a path still names the file that a descriptor has open."""
    mine = os.fstat(descriptor)
    try:
        there = path.stat()
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def atomic_write(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, make it durable, and move it into place.

    Raises:
        StorageError: the file cannot be written; what stood at `path` before is untouched.
    """
    scratch: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(descriptor)
        scratch = Path(name)
        write(scratch)
        with scratch.open("rb") as handle:
            os.fsync(handle.fileno())
        scratch.replace(path)
        scratch = None
        fsync_directory(path.parent)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free some space or check permissions, "
            "then run the same command again (long work resumes with --resume)"
        ) from error
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`, durably; see `atomic_write`."""

    def fill(scratch: Path) -> None:
        scratch.write_bytes(data)

    atomic_write(path, fill)
