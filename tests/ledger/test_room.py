"""A disk that is full is found out before a release fails on it."""

import contextlib
import errno
import os
import resource
import subprocess

import pytest
from ledger_tools import open_ledger, release

from reticent.errors import StorageError
from reticent.ledger import room as module
from reticent.ledger.room import ROOM_BYTES, DiskRoom


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"needs the right to mount a small file system: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path):
    with path.open("wb", buffering=0) as handle, contextlib.suppress(OSError):
        while True:
            handle.write(bytes(4096))


def later(ledger):
    """Let the rooms look again, as they would after a second."""
    for room in ledger._rooms:
        room._found_at = -float("inf")


def test_a_full_disk_is_not_healthy_before_any_commit_fails(small_disk, keyring):
    run_dir = small_disk / "run"
    run_dir.mkdir()
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 2)
        assert ledger.healthy()
        fill(small_disk / "ballast")
        later(ledger)
        assert not ledger.healthy()
        with pytest.raises(StorageError):
            release(ledger, 200, batch=200)
        assert not ledger.healthy()
        (small_disk / "ballast").unlink()
        assert ledger.healthy()
        release(ledger, 200, batch=200)
    assert [path.name for path in run_dir.iterdir() if "ledger" not in path.name and "lock" not in path.name] == []


def test_the_disk_of_the_mark_counts_too(small_disk, run_dir, url):
    from reticent.ledger.keys import Keyring

    with open_ledger(run_dir, Keyring(small_disk / "keys", {}), url) as ledger:
        assert ledger.healthy()
        fill(small_disk / "ballast")
        later(ledger)
        assert not ledger.healthy()


def test_files_that_cannot_grow_are_found_out_at_once(run_dir, keyring):
    """The operating system refuses every write past the first page of a file, and later allows it again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            assert not ledger.healthy()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.healthy()


@pytest.mark.parametrize("call", ["fsync", "urandom"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_every_failure_to_write_counts(tmp_path, monkeypatch, call, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    room = DiskRoom(tmp_path)
    monkeypatch.setattr(module.os, call, fail)
    assert not room.is_there()
    monkeypatch.undo()
    assert room.is_there()
    assert list(tmp_path.iterdir()) == []
    assert not DiskRoom(tmp_path / "none").is_there()


def test_the_disk_is_written_to_once_a_second_at_most(tmp_path, monkeypatch):
    now, synced = [100.0], []
    room = DiskRoom(tmp_path, clock=lambda: now[0])
    monkeypatch.setattr(module.os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    for moment in (0.0, 0.1, 0.9, 1.0, 1.5, 2.5):
        now[0] = 100.0 + moment
        assert room.is_there()
    assert synced == [ROOM_BYTES] * 3
