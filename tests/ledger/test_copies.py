"""Copies of a deployment: one writer among them all, and none that is behind or went another way is continued."""

import contextlib
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_tools import HOLDER, ballot, copied, only, open_ledger, put_back, read_ledger, release, sql
from sqlalchemy import text

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger import schema
from reticent.ledger.database import Database
from reticent.ledger.high_water_mark import Mark, read_mark
from reticent.ledger.keys import Keyring
from reticent.ledger.reset import is_copy, void_ledger


@pytest.fixture
def copy_of(tmp_path):
    """A function that copies a run folder, and a database in PostgreSQL with it; returns the copies' folder and URL."""
    with contextlib.ExitStack() as undo:

        def make(run_dir, url, name="copy"):
            folder = tmp_path / name
            shutil.copytree(run_dir, folder)
            if url is None:
                return folder, None
            original, copy = url.rpartition("%3D")[2], f"copy_{url.rpartition('%3D')[2]}"
            copy_url = url.replace(original, copy)
            sql(run_dir, url, f"CREATE SCHEMA {copy}")
            undo.callback(sql, run_dir, url, f"DROP SCHEMA {copy} CASCADE")
            engine = Database.of_run(folder, copy_url).engine(write=True)
            with engine.begin() as connection:
                schema.metadata.create_all(connection)
                for table in ("deployment", "state", "releases"):
                    connection.execute(text(f"INSERT INTO {table} SELECT * FROM {original}.{table}"))
            engine.dispose()
            return folder, copy_url

        yield make


def release_as(ledger, name, count=1):
    """Release tokens whose records bear a name, so that two histories of one length are two."""
    start = ledger.curator.state.tokens_released
    ledger.curator.release_many([ballot(start + i, key_id=name) for i in range(count)])


def marked(keyring):
    return read_mark(only(keyring.folder, "*.mark"))


def forked(run_dir, keyring, url, copy_of, tmp_path, ours, theirs):
    """A copy that went on elsewhere, with a copy of the key and the mark, while the deployment went on here."""
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
    copy = copy_of(run_dir, url)
    shutil.copytree(keyring.folder, tmp_path / "their keys")
    for (folder, place), ring, name, count in (
        (copy, Keyring(tmp_path / "their keys", {}), "theirs", theirs),
        ((run_dir, url), keyring, "ours", ours),
    ):
        with open_ledger(folder, ring, place) as ledger:
            release_as(ledger, name, count)
    return copy


def test_while_one_process_releases_a_copy_is_refused_and_then_is_an_old_one(run_dir, keyring, url, copy_of):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
    copy, copy_url = copy_of(run_dir, url)
    arguments = [sys.executable, "-c", HOLDER, run_dir, keyring.folder, url or "-", *sys.path]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(DeploymentStateError, match="another process is using the deployment from a copy"):
            open_ledger(copy, keyring, copy_url)
        with read_ledger(copy, keyring, copy_url) as reader:
            assert reader.verify().releases == 1
        other.communicate(b"")
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
        before = marked(keyring)
        with pytest.raises(DeploymentStateError, match="from a copy"):
            open_ledger(copy, keyring, copy_url)
    with pytest.raises(DeploymentStateError, match=r"old copy.*deletes this copy alone"):
        open_ledger(copy, keyring, copy_url)
    assert marked(keyring) == before
    assert before.tokens == 3


@pytest.mark.parametrize(("ours", "theirs"), [(2, 2), (2, 5)])
def test_a_copy_that_went_another_way_is_refused(run_dir, keyring, url, copy_of, tmp_path, ours, theirs):
    copy, copy_url = forked(run_dir, keyring, url, copy_of, tmp_path, ours, theirs)
    before = marked(keyring)
    with pytest.raises(DeploymentStateError, match=r"release 4 .*went another way"):
        open_ledger(copy, keyring, copy_url)
    with pytest.raises(DeploymentStateError, match="went another way"), read_ledger(copy, keyring, copy_url) as reader:
        reader.verify()
    assert marked(keyring) == before
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)


def test_a_writer_whose_mark_rose_without_it_releases_nothing_more(run_dir, keyring, url, copy_of, monkeypatch):
    """The locks are taken away, as a network file system may; what remains is the mark that both share."""
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
    copy, copy_url = copy_of(run_dir, url)
    monkeypatch.setattr("reticent.ledger.lock.fcntl.flock", lambda *_: None)
    with open_ledger(run_dir, keyring, url) as first, open_ledger(copy, keyring, copy_url) as second:
        release_as(first, "first", 2)
        for _ in range(2):
            with pytest.raises(DeploymentStateError, match="another one released from a copy"):
                release_as(second, "second", 1)
        assert marked(keyring).tokens == 3
        release_as(first, "first", 1)
    assert marked(keyring).tokens == 4
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.verify().releases == 4


def test_after_a_crash_between_commit_and_mark_the_mark_follows_at_the_next_start(
    run_dir, keyring, url, copy_of, monkeypatch
):
    def no_space(*_):
        raise StorageError("disk full")

    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
        copy, copy_url = copy_of(run_dir, url)
        with monkeypatch.context() as patch:
            patch.setattr(Mark, "raise_to", no_space)
            with pytest.raises(StorageError, match="disk full"):
                release(ledger, 2, batch=2)
    assert marked(keyring).tokens == 1
    open_ledger(run_dir, keyring, url).close()
    assert marked(keyring).tokens == 3
    with pytest.raises(DeploymentStateError, match="old copy"):
        open_ledger(copy, keyring, copy_url)


@pytest.mark.parametrize("deployment_lock", ["deleted", "kept"])
def test_resetting_a_copy_that_is_behind_leaves_the_deployment_alone(run_dir, keyring, url, copy_of, deployment_lock):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
    copy, copy_url = copy_of(run_dir, url)
    if deployment_lock == "deleted":
        (copy / "deployment.lock").unlink()
    database = Database.of_run(copy, copy_url)
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
        before = {path.name: path.read_bytes() for path in keyring.folder.iterdir()}
        assert is_copy(copy, keyring, database)
        voided = void_ledger(copy, keyring, database)
        assert (voided.copy_alone, voided.set_aside) == (True, [])
        assert {path.name: path.read_bytes() for path in keyring.folder.iterdir()} == before
        release(ledger, 1)
    with open_ledger(copy, keyring, copy_url) as other:
        assert other.created
    with open_ledger(run_dir, keyring, url) as ledger:
        assert ledger.curator.state.tokens_released == 3


def test_resetting_a_copy_that_went_another_way_leaves_the_deployment_alone(run_dir, keyring, url, copy_of, tmp_path):
    copy, copy_url = forked(run_dir, keyring, url, copy_of, tmp_path, 2, 2)
    assert void_ledger(copy, keyring, Database.of_run(copy, copy_url)).copy_alone
    open_ledger(run_dir, keyring, url).close()


@pytest.mark.parametrize("ledger", ["equal", "deleted", "damaged"])
def test_resetting_a_fresh_copy_leaves_the_deployment_alone(run_dir, keyring, copy_of, ledger):
    with open_ledger(run_dir, keyring) as opened:
        release(opened, 1)
    copy, _ = copy_of(run_dir, None)
    if ledger == "deleted":
        (copy / "ledger.sqlite").unlink()
    if ledger == "damaged":
        (copy / "ledger.sqlite").write_bytes(b"?" * 4096)
    assert void_ledger(copy, keyring, Database.of_run(copy)).copy_alone
    open_ledger(run_dir, keyring).close()
    with open_ledger(copy, keyring) as opened:
        assert opened.created


def test_a_run_that_was_moved_is_no_copy(run_dir, keyring, tmp_path):
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 1)
    moved = run_dir.rename(tmp_path / "moved")
    assert not is_copy(moved, keyring, Database.of_run(moved))
    assert len(void_ledger(moved, keyring, Database.of_run(moved)).set_aside) == 2


def test_a_reset_waits_for_no_one_and_takes_nothing_from_a_live_deployment(run_dir, keyring, url, copy_of):
    """A copy that nothing tells from the original is the deployment; while the original is open it is not reset."""
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
    copy, copy_url = copy_of(run_dir, url)
    (copy / "deployment.lock").unlink()
    database = Database.of_run(copy, copy_url)
    with open_ledger(run_dir, keyring, url) as ledger:
        before = copied(copy, copy_url)
        with pytest.raises(DeploymentStateError, match="another process is using the deployment from a copy"):
            void_ledger(copy, keyring, database)
        assert copied(copy, copy_url) == before
        release(ledger, 1)


def test_what_a_reset_set_aside_can_be_put_back(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
    tables = copied(run_dir, url)
    voided = void_ledger(run_dir, keyring, Database.of_run(run_dir, url))
    for path in voided.set_aside:
        path.rename(path.with_name(path.name.partition(".reset-")[0]))
    with open_ledger(run_dir, keyring, url) as ledger:
        assert ledger.created
    put_back(run_dir, url, tables)
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
        assert ledger.curator.state.tokens_released == 3


def test_a_ledger_that_names_a_path_for_its_deployment_is_refused(run_dir, keyring):
    open_ledger(run_dir, keyring).close()
    sql(run_dir, None, "UPDATE deployment SET deployment_id = '../../elsewhere'")
    for attempt in (open_ledger, read_ledger):
        with pytest.raises(DeploymentStateError, match="by no identifier"):
            attempt(run_dir, keyring)


ACTIONS = st.tuples(st.sampled_from(["copy", "release", "crash"]), st.integers(0, 3))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, min_size=3, max_size=10))
def test_among_any_copies_all_releases_are_one_chain_and_the_mark_never_falls(tmp_path_factory, monkeypatch, actions):
    """Modelled by one list of names for each copy, and one for the mark: a copy opens if it begins with the mark's."""
    folder = tmp_path_factory.mktemp("copies")
    keyring = Keyring(folder / "keys", {})
    copies, histories, known, count = [folder / "run0"], [[]], [], 0
    copies[0].mkdir()
    open_ledger(copies[0], keyring).close()
    for action, which in actions:
        which %= len(copies)
        if action == "copy":
            copies.append(folder / f"run{len(copies)}")
            shutil.copytree(copies[which], copies[-1])
            histories.append(list(histories[which]))
            continue
        if histories[which][: len(known)] != known:
            with pytest.raises(DeploymentStateError, match=r"old copy|went another way"):
                open_ledger(copies[which], keyring)
        else:
            count += 1
            with open_ledger(copies[which], keyring) as ledger:
                known = list(histories[which])
                with monkeypatch.context() as patch, contextlib.ExitStack() as expected:
                    if action == "crash":
                        patch.setattr(Mark, "raise_to", broken)
                        expected.enter_context(pytest.raises(StorageError))
                    release_as(ledger, f"release {count}")
            histories[which].append(f"release {count}")
            if action == "release":
                known = list(histories[which])
        assert marked(keyring).tokens == len(known)
    for copy, history in zip(copies, histories, strict=True):
        rows = sql(copy, None, "SELECT key_id FROM releases ORDER BY number")
        assert [row.key_id for row in rows] == history


def broken(*_):
    raise StorageError("disk full")
