"""One writer: a second process is turned away, may still look, and can never commit behind the first one's back."""

import subprocess
import sys

import pytest
from ledger_tools import HOLDER, assert_same, open_ledger, read_ledger, release

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger.database import Database
from reticent.ledger.lock import RunLock
from reticent.ledger.reset import void_ledger


def test_a_second_process_is_turned_away_and_may_still_look(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
        state = ledger.curator.state
    arguments = [sys.executable, "-c", HOLDER, run_dir, keyring.folder, url or "-", *sys.path]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        for attempt in (
            lambda: open_ledger(run_dir, keyring, url),
            lambda: void_ledger(run_dir, keyring, Database.of_run(run_dir, url)),
        ):
            with pytest.raises(DeploymentStateError, match="another process is using the deployment"):
                attempt()
        with read_ledger(run_dir, keyring, url) as reader:
            assert_same(reader.state, state)
            assert reader.verify().releases == 2
        other.kill()
    open_ledger(run_dir, keyring, url).close()


def test_two_run_directories_on_one_database_are_one_deployment(run_dir, keyring, tmp_path):
    """Copies of a run directory have lock files of their own; the database they share has one for both."""
    url = f"sqlite:///{tmp_path}/shared.sqlite"
    copy = tmp_path / "copy"
    copy.mkdir()
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
        with pytest.raises(DeploymentStateError, match="another process is using"):
            open_ledger(copy, keyring, url)
    open_ledger(copy, keyring, url).close()


def test_a_writer_that_was_passed_over_cannot_commit_even_without_any_lock(run_dir, keyring, url, monkeypatch):
    """The locks are taken away, as a network file system may; what remains is the epoch in the transaction."""
    monkeypatch.setattr("reticent.ledger.lock.fcntl.flock", lambda *_: None)
    monkeypatch.setattr("reticent.ledger.writer.take_session_lock", lambda _: True)
    with open_ledger(run_dir, keyring, url) as first:
        release(first, 2)
        with open_ledger(run_dir, keyring, url) as second:
            before = first.curator.state
            for _ in range(2):
                with pytest.raises(DeploymentStateError, match="another process has opened"):
                    release(first, 1)
            assert first.curator.state is before
            assert not first.healthy()
            assert second.healthy()
            release(second, 3)
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.verify().releases == 5


def test_a_failed_opening_leaves_no_lock_behind(run_dir, keyring, url):
    open_ledger(run_dir, keyring, url).close()
    for _ in range(2):
        with pytest.raises(DeploymentStateError, match="belongs to run"):
            open_ledger(run_dir, keyring, url, run_id="another")
        with pytest.raises(DeploymentStateError, match="made for 8 worlds"):
            open_ledger(run_dir, keyring, url, num_worlds=10)
    open_ledger(run_dir, keyring, url).close()


def test_a_lock_remembers_the_deployment_and_where_its_ledger_is(run_dir, tmp_path):
    here, there = Database.of_run(run_dir), Database.of_run(run_dir, f"sqlite:///{tmp_path}/there.sqlite")
    with RunLock(run_dir, here) as lock:
        assert (lock.deployment_id, lock.ledger_place) == ("", "")
        lock.remember("ab" * 16, here)
        lock.remember("cd" * 16, there)
    with RunLock(run_dir, here) as lock:
        assert (lock.deployment_id, lock.ledger_place) == ("cd" * 16, str(there))
        lock.forget()
        assert lock.deployment_id == ""
        assert lock.held
    assert not lock.held


@pytest.mark.parametrize("content", [b"\xff\xff", b"short\n", b"zz" * 16, b"\0" * 5000])
def test_a_damaged_lock_file_remembers_nothing(run_dir, content):
    (run_dir / "deployment.lock").write_bytes(content)
    with RunLock(run_dir, Database.of_run(run_dir)) as lock:
        assert lock.deployment_id == ""


def test_a_lock_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot open the lock .*deployment\.lock"):
        RunLock(tmp_path / "nowhere", Database.of_run(tmp_path / "nowhere"))
