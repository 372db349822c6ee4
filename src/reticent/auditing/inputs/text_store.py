"""A value for each text, by the text's hash, in a file of JSON lines that survives a kill: one line a text.

    {"text": "<SHA-256>", "value": …}

A last line that was not written to its end is dropped when the file is next written to. The file is readable by its
owner alone, since a value may be a text (a neighbour, say).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reticent.errors import StorageError


class TextStore:
    """Values by text hash in one file; one process writes it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Any]:
        """Everything stored so far; lines that are not whole are skipped."""
        values: dict[str, Any] = {}
        for line in self._whole_lines():
            try:
                row = json.loads(line)
                values[row["text"]] = row["value"]
            except (ValueError, KeyError, TypeError):
                continue
        return values

    def add(self, values: Mapping[str, Any]) -> None:
        """Append values durably.

        Raises:
            StorageError: they cannot be written; what was there stays.
        """
        lines = [json.dumps({"text": name, "value": value}, ensure_ascii=False) for name, value in values.items()]
        data = "".join(f"{line}\n" for line in lines).encode()
        whole = sum(len(line) + 1 for line in self._whole_lines())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            with self._path.open("r+b") as file:
                file.truncate(whole)
                file.seek(whole)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"cannot write {self._path}: {error.strerror or error}; free some space or check permissions, "
                "then run the same command again"
            ) from error

    def _whole_lines(self) -> list[bytes]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        return data.split(b"\n")[:-1]
