"""Records that every folder of results keeps alike: the versions that made it, and the hashes of its files."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reticent._files import sha256_of_file
from reticent.errors import RunDirectoryError

_PACKAGES = ("reticent", "torch", "transformers", "peft", "numpy", "scipy", "safetensors")


def package_versions() -> dict[str, str]:
    """Versions of what takes part in making a result."""
    return {name: version(name) for name in _PACKAGES}


def check_schema(path: Path, content: Mapping[str, Any], newest: int) -> None:
    """Make sure that a record was not written by a later version, before its fields are judged.

    Args:
        path: of the record.
        content: what it holds.
        newest: the highest schema version that can be read.

    Raises:
        RunDirectoryError: the record has a higher one; the message names both.
        KeyError: it names none.
    """
    found = content["schema_version"]
    if isinstance(found, int) and found > newest:
        raise RunDirectoryError(f"{path} has schema {found} and this version reads up to {newest}; upgrade reticent")


def check_files(folder: Path, files: Mapping[str, str]) -> None:
    """Compare every file with the hash that is recorded for it.

    Args:
        folder: where the files are.
        files: hexadecimal SHA-256 by path within the folder.

    Raises:
        RunDirectoryError: a file is missing or different; the message names both hashes.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise RunDirectoryError(f"{path} is missing; restore it from a backup or build again")
        found = sha256_of_file(path)
        if found != expected:
            raise RunDirectoryError(
                f"{path} is not the file that was built: its SHA-256 is {found}, the manifest says {expected}"
            )
