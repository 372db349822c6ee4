"""An output folder that long work fills: begun with a request, resumed with the same one alone, closed by a last file.

`training/request.json` holds the request from before the first result to after the last, so that the folder says what
it is whatever stops the work. `training/` is gone when the work is done.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent._files import atomic_write_bytes, refuse_undecodable
from reticent.errors import OutputExistsError, RunDirectoryError, StorageError

REQUEST_NAME = "request.json"


@dataclass(frozen=True)
class WorkFolder:
    """One output folder.

    Attributes:
        out: the folder.
        last_file: the file inside it that is written last.
        what: what it holds once it is complete, for messages, as "run".
    """

    out: Path
    last_file: str
    what: str

    @property
    def working_files(self) -> Path:
        """The folder in which interrupted work keeps what it resumes from."""
        return self.out / "training"

    @property
    def is_finished(self) -> bool:
        """True if the work is complete."""
        return (self.out / self.last_file).is_file()

    def check_free(self, resume: bool) -> None:
        """Make sure that work may begin or continue here; changes nothing.

        Raises:
            InvalidValueError: the folder's name is not UTF-8.
            OutputExistsError: the folder is complete or begun and `resume` is not set, or it holds something else.
        """
        refuse_undecodable(self.out)
        if not self.out.exists():
            return
        if self.is_finished:
            if not resume:
                raise OutputExistsError(f"{self.out} already holds a finished {self.what}; choose another --out")
        elif (self.working_files / REQUEST_NAME).is_file():
            if not resume:
                raise OutputExistsError(
                    f"{self.out} holds an unfinished {self.what}; add --resume to finish it, or choose another --out"
                )
        elif not self.out.is_dir() or not self._is_blank():
            raise OutputExistsError(f"{self.out} exists and is not an unfinished {self.what}; choose another --out")

    def read_request(self) -> dict[str, Any] | None:
        """The request that unfinished work was begun with; None where none was begun."""
        path = self.working_files / REQUEST_NAME
        return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else None

    def begin(self, request: dict[str, Any]) -> None:
        """Make the folder and write the request down, or check that the one to resume was begun with the same.

        Raises:
            RunDirectoryError: it was begun with another request.
            StorageError: it cannot be written.
        """
        begun = self.read_request()
        if begun is not None:
            self.check_same(begun, request, "begun")
            return
        try:
            self.working_files.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot make {self.working_files}: {error.strerror}; choose another --out") from error
        atomic_write_bytes(self.working_files / REQUEST_NAME, json.dumps(request, indent=2).encode())

    def check_same(self, earlier: dict[str, Any], request: dict[str, Any], done: str) -> None:
        """Compare two requests; the same base may go by another name.

        Raises:
            RunDirectoryError: they differ; the message names the settings.
        """
        names = sorted(_differences(earlier, request) - {"base.name"})
        if names:
            raise RunDirectoryError(
                f"{self.out} was {done} with another {', '.join(names)}; "
                "resume with the same options and corpus, or choose another --out"
            )

    def tidy(self) -> None:
        """Remove the working files, and what a kill left of an unfinished write."""
        shutil.rmtree(self.working_files, ignore_errors=True)
        for unfinished in self.out.glob(".*.tmp"):
            unfinished.unlink(missing_ok=True)

    def _is_blank(self) -> bool:
        """True if the folder is empty, or holds but what is left of work killed before its request was on disk."""
        started = self.working_files
        return all(path == started or path.match(f".{REQUEST_NAME}.*.tmp") for path in self.out.rglob("*"))


def _differences(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    """Names of the settings in which two requests differ, one level deep."""
    names = set()
    for key in first.keys() | second.keys():
        a, b = first.get(key), second.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names |= {f"{key}.{name}" for name in a.keys() | b.keys() if a.get(name) != b.get(name)}
        elif a != b:
            names.add(key)
    return names
