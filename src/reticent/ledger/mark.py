"""A deployment's high-water mark: how many tokens it has released, kept beside its key.

Guarantee: once `raise_to(n)` has returned, a reader sees at least n, also after the process dies at any moment; after a
power failure it sees what was so at most a second before. The mark is there to tell a restored copy of the ledger from
the latest one, and no copy worth restoring is that young; the ledger itself is durable at once.

The file has two lines of one fixed form. They are written in turn, so that a write which is cut short leaves the other.
"""

import contextlib
import os
import time
import zlib
from pathlib import Path
from typing import Final, Self

from reticent._files import fsync_directory
from reticent.errors import DeploymentStateError, StorageError

_SYNC_SECONDS: Final = 1.0
_DIGITS: Final = 20
_LINE_BYTES: Final = _DIGITS + 1 + 8 + 1


class Mark:
    """An open mark. Use `create` for a new deployment and `open` for an existing one."""

    def __init__(self, path: Path, descriptor: int, tokens: int, slot: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._tokens = tokens
        self._slot = slot
        self._synced = time.monotonic()

    @classmethod
    def create(cls, path: Path) -> Self:
        """Write a mark of zero tokens, durably.

        Raises:
            StorageError: it cannot be written, or exists.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.pwrite(descriptor, _line(0) * 2, 0)
            os.fsync(descriptor)
            fsync_directory(path.parent)
        except OSError as error:
            raise StorageError(f"cannot write the mark {path}: {error.strerror}") from error
        return cls(path, descriptor, 0, 0)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the mark of an existing deployment.

        Raises:
            DeploymentStateError: there is none, or it is damaged.
        """
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise _unreadable(path, error) from error
        try:
            tokens, slot = _parse(os.pread(descriptor, 2 * _LINE_BYTES, 0), path)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, tokens, 1 - slot)

    @property
    def folder(self) -> Path:
        """The folder it lies in."""
        return self._path.parent

    @property
    def tokens(self) -> int:
        """The number of tokens known to be released."""
        return self._tokens

    def raise_to(self, tokens: int) -> None:
        """Note that `tokens` have been released; a lower number changes nothing.

        Raises:
            StorageError: the mark cannot be written.
        """
        if tokens <= self._tokens:
            return
        try:
            os.pwrite(self._descriptor, _line(tokens), self._slot * _LINE_BYTES)
            now = time.monotonic()
            if now - self._synced >= _SYNC_SECONDS:
                os.fsync(self._descriptor)
                self._synced = now
        except OSError as error:
            raise StorageError(f"cannot write the mark {self._path}: {error.strerror}") from error
        self._tokens, self._slot = tokens, 1 - self._slot

    def close(self) -> None:
        """Sync and close."""
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
        os.close(self._descriptor)


def read_mark(path: Path) -> int:
    """The number of tokens a mark knows to be released.

    Raises:
        DeploymentStateError: there is no mark, or it is damaged.
    """
    try:
        return _parse(path.read_bytes(), path)[0]
    except OSError as error:
        raise _unreadable(path, error) from error


def _line(tokens: int) -> bytes:
    digits = b"%0*d" % (_DIGITS, tokens)
    return b"%s %08x\n" % (digits, zlib.crc32(digits))


def _parse(content: bytes, path: Path) -> tuple[int, int]:
    """The larger of the two lines, and which it is."""
    valid = []
    for slot in (0, 1):
        line = content[slot * _LINE_BYTES : (slot + 1) * _LINE_BYTES]
        digits = line[:_DIGITS]
        if len(digits) == _DIGITS and digits.isdigit() and line == _line(int(digits)):
            valid.append((int(digits), slot))
    if not valid:
        raise DeploymentStateError(f"{path} is damaged; put it back, or reset with `reticent state reset`")
    return max(valid)


def _unreadable(path: Path, error: OSError) -> DeploymentStateError:
    return DeploymentStateError(
        f"cannot read {path}, which says how many tokens this deployment has released: {error.strerror}. "
        "It must be kept with the key; put it back, or reset with `reticent state reset`"
    )
