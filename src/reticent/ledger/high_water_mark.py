"""A deployment's high-water mark: its last release, by number and by digest, kept beside its key.

Guarantee: once `raise_to` has returned, a reader sees that release or a later one, also after the process dies at any
moment; after a power failure it sees what was so at most a second before. The mark is there to tell an old copy of the
ledger, or one that went another way, from the latest one, and no copy worth restoring is that young; the ledger itself
is durable at once.

A mark never goes down and never changes sides: before it is raised, it is compared with what lies in the file now. Its
writer holds the deployment's lock (`lock.py`), so that any difference is another's doing.

The file has two lines of one fixed form. They are written in turn, so that a write which is cut short leaves the other.
Marks of earlier releases know the number alone; the first raise replaces the file.
"""

import contextlib
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from reticent._files import fsync_directory, is_open_as
from reticent.errors import DeploymentStateError, StorageError

_SYNC_SECONDS: Final = 1.0
_DIGITS: Final = 20
_HEAD_BYTES: Final = 32
_CHECKSUM: Final = 8


@dataclass(frozen=True, slots=True)
class LastRelease:
    """The last release that a mark knows.

    Attributes:
        tokens: its number, and so how many tokens were released up to it.
        head: its digest in the chain, 32 bytes; None in a mark of an earlier release, which did not keep it.
    """

    tokens: int
    head: bytes | None

    def to_line(self) -> bytes:
        """The line that says so in a mark."""
        fields = b"%0*d" % (_DIGITS, self.tokens)
        if self.head is not None:
            fields += b" " + self.head.hex().encode()
        return b"%s %08x\n" % (fields, zlib.crc32(fields))


_LINE_BYTES: Final = _DIGITS + 1 + 2 * _HEAD_BYTES + 1 + _CHECKSUM + 1
_EARLIER_LINE_BYTES: Final = _DIGITS + 1 + _CHECKSUM + 1


class Mark:
    """An open mark. Use `create` for a new deployment and `open` for an existing one."""

    def __init__(self, path: Path, descriptor: int, last: LastRelease, slot: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._last = self._attempted = last
        self._slot = slot
        self._synced = time.monotonic()

    @classmethod
    def create(cls, path: Path, head: bytes) -> Self:
        """Write a mark of zero tokens, durably.

        Args:
            path: where.
            head: the digest before the first release.

        Raises:
            StorageError: it cannot be written, or exists.
        """
        last = LastRelease(0, head)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.pwrite(descriptor, last.to_line() * 2, 0)
            os.fsync(descriptor)
            fsync_directory(path.parent)
        except OSError as error:
            raise StorageError(f"cannot write the mark {path}: {error.strerror}") from error
        return cls(path, descriptor, last, 0)

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
            last, slot = _parse(os.pread(descriptor, 2 * _LINE_BYTES, 0), path)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, last, 1 - slot)

    @property
    def folder(self) -> Path:
        """The folder it lies in."""
        return self._path.parent

    @property
    def last(self) -> LastRelease:
        """The last release known."""
        return self._last

    @property
    def in_place(self) -> bool:
        """True if the file that is open here is still the one a reader would find."""
        return is_open_as(self._path, self._descriptor)

    def require_current(self) -> None:
        """Check that the file says what this process last wrote or read there, or less.

        Raises:
            DeploymentStateError: it was replaced, or knows a release that this process did not make.
        """
        if not self.in_place:
            raise DeploymentStateError(
                f"{self._path}, which says how many tokens this deployment has released, was deleted or replaced while "
                "this process used it; nothing more is released. Put the latest one back, then start again"
            )
        try:
            content = os.pread(self._descriptor, 2 * _LINE_BYTES, 0)
        except OSError as error:
            raise _unreadable(self._path, error) from error
        found, _ = _parse(content, self._path)
        if found.tokens >= self._last.tokens and found not in (self._last, self._attempted):
            raise DeploymentStateError(
                f"{self._path} knows {found.tokens} released tokens of which this process, after {self._last.tokens}, "
                "did not release the last: another one released from a copy of this deployment. Nothing more is "
                "released here; stop both and keep the copy that the mark knows"
            )

    def raise_to(self, last: LastRelease) -> None:
        """Note the last release; the one that is known already changes nothing.

        Raises:
            DeploymentStateError: as for `require_current`, or the release is not after the one that is known.
            StorageError: the mark cannot be written.
        """
        self.require_current()
        if last == self._last:
            return
        if last.tokens < self._last.tokens or (last.tokens == self._last.tokens and self._last.head is not None):
            raise DeploymentStateError(
                f"{self._path} knows release {self._last.tokens}; another one cannot take its place, nor an earlier one"
            )
        self._attempted = last
        try:
            if self._last.head is None:
                self._replace(last)
            else:
                self._write(last)
            self._last = last
            now = time.monotonic()
            if now - self._synced >= _SYNC_SECONDS:
                os.fsync(self._descriptor)
                self._synced = now
        except OSError as error:
            raise StorageError(f"cannot write the mark {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Sync and close."""
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
        os.close(self._descriptor)

    def _write(self, last: LastRelease) -> None:
        line = last.to_line()
        if os.pwrite(self._descriptor, line, self._slot * _LINE_BYTES) != len(line):
            raise OSError(None, "the file system took a part of a line")
        self._slot = 1 - self._slot

    def _replace(self, last: LastRelease) -> None:
        """Put a file of the present form in place of one of an earlier release, whose lines are shorter."""
        scratch = self._path.with_name(f"{self._path.name}.new")
        descriptor = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.pwrite(descriptor, last.to_line() * 2, 0)
            os.fsync(descriptor)
            scratch.replace(self._path)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._slot = descriptor, 0
        fsync_directory(self._path.parent)


def read_mark(path: Path) -> LastRelease:
    """The last release that a mark knows.

    Raises:
        DeploymentStateError: there is no mark, or it is damaged.
    """
    try:
        return _parse(path.read_bytes(), path)[0]
    except OSError as error:
        raise _unreadable(path, error) from error


def _parse(content: bytes, path: Path) -> tuple[LastRelease, int]:
    """The later of the two lines, and which it is."""
    for size in (_LINE_BYTES, _EARLIER_LINE_BYTES):
        lines = [(_parse_line(content[slot * size : (slot + 1) * size]), slot) for slot in (0, 1)]
        valid = [(last, slot) for last, slot in lines if last is not None]
        if valid:
            return max(valid, key=lambda found: found[0].tokens)
    raise DeploymentStateError(f"{path} is damaged; put it back, or reset with `reticent state reset`")


def _parse_line(line: bytes) -> LastRelease | None:
    digits, head = line[:_DIGITS], None
    if not (len(digits) == _DIGITS and digits.isdigit()):
        return None
    if len(line) == _LINE_BYTES:
        try:
            head = bytes.fromhex(line[_DIGITS + 1 : _DIGITS + 1 + 2 * _HEAD_BYTES].decode("ascii"))
        except ValueError:
            return None
    last = LastRelease(int(digits), head)
    return last if line == last.to_line() else None


def _unreadable(path: Path, error: OSError) -> DeploymentStateError:
    return DeploymentStateError(
        f"cannot read {path}, which says how many tokens this deployment has released: {error.strerror}. "
        "It must be kept with the key; put it back, or reset with `reticent state reset`"
    )
