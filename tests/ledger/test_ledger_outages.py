"""Full disks and lost databases: nothing leaves uncharged, and service resumes without a restart."""

import contextlib
import resource
import shutil
import threading
import time

import pytest
from ledger_tools import BUDGET, assert_same, copied, open_ledger, put_back, read_ledger, release, sql
from postgresql_proxy import Proxy

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger import high_water_mark as mark_module
from reticent.ledger.keys import Keyring
from reticent.pac.accounting import charge_units


def assert_charged(run_dir, keyring, url, at_least, at_most):
    with read_ledger(run_dir, keyring, url) as reader:
        totals = reader.verify()
        assert at_least <= totals.releases == reader.state.tokens_released <= at_most
        assert totals.units == reader.state.spent_units == totals.releases * charge_units(BUDGET)


def test_sqlite_full(run_dir, keyring):
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 4)
        before = ledger.curator.state
        connection = ledger._opened.writer._connection.connection.dbapi_connection
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match=r"database or disk is full.*nothing was released"):
            release(ledger, 200, batch=200)
        assert ledger.curator.state is before
        assert_charged(run_dir, keyring, None, 4, 4)
        release(ledger, 200, batch=200)
    assert_charged(run_dir, keyring, None, 204, 204)


def test_files_that_cannot_grow(run_dir, keyring):
    """The operating system refuses every write past the first page of a file, and later allows it again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 1)
        before = ledger.curator.state
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            for _ in range(2):
                with pytest.raises(StorageError, match="nothing was released"):
                    release(ledger, 3, batch=3)
                assert ledger.curator.state is before
                assert not ledger.healthy()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.healthy()
        release(ledger, 3)
    assert_charged(run_dir, keyring, None, 4, 4)


def test_a_mark_that_cannot_be_written_charges_but_releases_nothing(run_dir, keyring, url, monkeypatch):
    def no_space(*_):
        raise OSError(28, "No space left on device")

    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
        before = ledger.curator.state
        with monkeypatch.context() as patch:
            patch.setattr(mark_module.os, "pwrite", no_space)
            for _ in range(2):
                with pytest.raises(StorageError, match="No space left"):
                    release(ledger, 1)
        assert ledger.curator.state is before
        # What was committed without being shown is charged, and the next release follows it.
        release(ledger, 1)
        assert ledger.curator.state.tokens_released == 4
    assert_charged(run_dir, keyring, url, 4, 4)


@pytest.mark.parametrize(("moment", "kept"), [("before", 0), ("after", 3)])
def test_a_connection_lost_at_the_commit_leaves_no_doubt_behind(run_dir, keyring, postgresql_url, moment, kept):
    proxy, url = Proxy.before(postgresql_url)
    with proxy, open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
        before = ledger.curator.state
        proxy.cut = moment
        with pytest.raises(StorageError, match="nothing was released"):
            release(ledger, 3, batch=3)
        assert proxy.cut is None
        assert ledger.curator.state is before
        release(ledger, 1)
        assert ledger.curator.state.tokens_released == 2 + kept + 1
        durable = ledger.curator.state
    assert_charged(run_dir, keyring, postgresql_url, 3 + kept, 3 + kept)
    with read_ledger(run_dir, keyring, postgresql_url) as reader:
        assert_same(reader.state, durable)


def test_a_database_that_goes_and_comes_back(run_dir, keyring, postgresql_url):
    proxy, url = Proxy.before(postgresql_url)
    with proxy, open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 5)
        proxy.down = True
        for _ in range(2):
            with pytest.raises(StorageError, match="bring the database back"):
                release(ledger, 1)
            assert not ledger.healthy()
        proxy.down = False
        assert ledger.healthy()
        shown = 5 + len(release(ledger, 5))
    assert_charged(run_dir, keyring, postgresql_url, shown, shown)


def test_connections_lost_at_random_under_load(run_dir, keyring, postgresql_url):
    proxy, url = Proxy.before(postgresql_url)
    shown = failed = 0
    stop = threading.Event()

    def disturb():
        for turn in range(12):
            time.sleep(0.07)
            if turn % 3 == 2:
                proxy.cut = "after"
            else:
                proxy.down = True
                proxy.down = False
        stop.set()

    with proxy, open_ledger(run_dir, keyring, url) as ledger:
        thread = threading.Thread(target=disturb)
        thread.start()
        while not stop.is_set():
            try:
                shown += len(release(ledger, 2, batch=2))
            except StorageError:
                failed += 1
        thread.join()
        proxy.cut = None
        # The last disturbance may have left a broken connection, which the first use finds.
        with contextlib.suppress(StorageError):
            shown += len(release(ledger, 2, batch=2))
        shown += len(release(ledger, 2, batch=2))
    assert failed > 3
    assert_charged(run_dir, keyring, postgresql_url, shown, shown + 2 * (failed + 1))


def test_a_session_that_the_server_ended_takes_its_lock_with_it(run_dir, keyring, postgresql_url):
    """While the first writer has lost its session, another machine, with keys of its own, opens the deployment."""
    second_dir, second_keys = run_dir.parent / "copy", run_dir.parent / "copied keys"
    second_dir.mkdir()
    with open_ledger(run_dir, keyring, postgresql_url) as first:
        release(first, 2)
        shutil.copytree(keyring.folder, second_keys)
        second_keyring = Keyring(second_keys, {})
        with pytest.raises(DeploymentStateError, match="another process is using"):
            open_ledger(second_dir, second_keyring, postgresql_url)
        sql(
            run_dir,
            postgresql_url,
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE l.locktype = 'advisory' AND (l.classid::bigint << 32) | l.objid::bigint = "
            "hashtextextended('reticent ledger ' || current_schema(), 0)",
        )
        with open_ledger(second_dir, second_keyring, postgresql_url) as second:
            release(second, 3)
            for _ in range(2):
                with pytest.raises(StorageError, match=r"terminat|another session holds the lock"):
                    release(first, 1)
        for _ in range(2):
            with pytest.raises(DeploymentStateError, match="another process has opened"):
                release(first, 1)
        assert not first.healthy()
    assert_charged(run_dir, keyring, postgresql_url, 5, 5)


def test_a_lock_file_that_was_replaced_stops_releases(run_dir, keyring):
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 2)
        (run_dir / "deployment.lock").unlink()
        for _ in range(2):
            with pytest.raises(DeploymentStateError, match=r"lock file .* was deleted or replaced"):
                release(ledger, 1)
        assert not ledger.healthy()
    assert_charged(run_dir, keyring, None, 2, 2)


def test_a_file_that_was_replaced_stops_releases(run_dir, keyring):
    path = run_dir / "ledger.sqlite"
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 2)
        path.rename(run_dir / "moved")
        for replacement in (None, b""):
            if replacement is not None:
                path.write_bytes(replacement)
            with pytest.raises(DeploymentStateError, match="deleted or replaced while this process used it"):
                release(ledger, 1)
        path.unlink()
        (run_dir / "moved").rename(path)
        release(ledger, 1)
    assert_charged(run_dir, keyring, None, 3, 3)


def test_an_old_state_put_back_while_in_use_stops_releases(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
        old = copied(run_dir, url)
        release(ledger, 2)
        put_back(run_dir, url, old)
        with pytest.raises(DeploymentStateError, match="another state was put there"):
            release(ledger, 1)
        with pytest.raises(DeploymentStateError, match="ledger was replaced while it was in use"):
            release(ledger, 1)
    with pytest.raises(DeploymentStateError, match="old copy"):
        open_ledger(run_dir, keyring, url)
