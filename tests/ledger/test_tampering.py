"""What was altered, cut, swapped or put back is refused at start, each with its own message."""

import hashlib
import shutil

import pytest
from ledger_tools import copied, only, open_ledger, put_back, read_ledger, release, sql

from reticent.errors import DeploymentStateError
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.reset import void_ledger


@pytest.fixture
def ten_releases(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 10, batch=2)


def refused(run_dir, keyring, url, message, run_id="run"):
    """Opening refuses; so does verification, unless the ledger cannot even be read."""
    with pytest.raises(DeploymentStateError, match=message):
        open_ledger(run_dir, keyring, url, run_id=run_id)
    with pytest.raises(DeploymentStateError, match=message), read_ledger(run_dir, keyring, url, run_id) as reader:
        reader.verify()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE releases SET request = 'other' WHERE number = 4", "release 4 does not fit its digest"),
        ("UPDATE releases SET charge_units = replace(charge_units, '1', '0') WHERE number = 4", "release 4 does not"),
        ("UPDATE releases SET coin_key = NULL WHERE number = 10", "release 10 does not fit its digest"),
        ("UPDATE releases SET time = time - 86400 WHERE number = 1", "release 1 does not fit its digest"),
        ("UPDATE releases SET key_id = 'somebody' WHERE number = 1", "release 1 does not fit its digest"),
        ("DELETE FROM releases WHERE number = 6", "release 6 missing"),
        ("DELETE FROM releases WHERE number IN (1, 2, 3)", "releases 1 to 3 missing"),
        ("DELETE FROM releases WHERE number > 8", "ends with release 8, but 10 were made"),
        ("DELETE FROM releases", "ends with release 0, but 10 were made"),
        ("UPDATE releases SET number = 11 WHERE number = 10", "release 10 missing"),
        ("UPDATE releases SET number = 0 WHERE number = 1", "release 0 is no release of this ledger"),
        ("DELETE FROM state", "not its sealed state"),
        ("UPDATE state SET tokens_released = 9", "counts 9 released tokens, but 10 are sealed"),
        ("DELETE FROM deployment", "does not hold it|there is no ledger"),
    ],
)
@pytest.mark.usefixtures("ten_releases")
def test_an_altered_row_is_found(run_dir, keyring, url, statement, message):
    sql(run_dir, url, statement)
    refused(run_dir, keyring, url, message)


@pytest.mark.usefixtures("ten_releases")
def test_a_dropped_table_is_found(run_dir, keyring, url):
    sql(run_dir, url, "DROP TABLE releases")
    refused(run_dir, keyring, url, "table 'releases' was dropped")


@pytest.mark.usefixtures("ten_releases")
def test_rows_of_the_past_put_at_the_end_are_found(run_dir, keyring, url):
    columns = "time, request, step, coin_key, num_active, charge_units, key_id, digest"
    sql(run_dir, url, f"INSERT INTO releases (number, {columns}) SELECT 11, {columns} FROM releases WHERE number = 10")
    refused(run_dir, keyring, url, "release 11 does not fit its digest")


@pytest.mark.usefixtures("ten_releases")
def test_an_altered_seal_or_header_and_a_wrong_key_say_the_same(run_dir, keyring, url):
    message = "the key is not the one it was sealed with, or the state was altered"
    other = Keyring(keyring.folder, {"RETICENT_KEY": "00" * 32})
    refused(run_dir, other, url, message)
    tables = copied(run_dir, url)
    sealed = bytes(tables["state"][0].sealed).hex()
    binary = "X'{}'" if url is None else "'\\x{}'"
    for position in range(0, len(sealed), 61):
        flipped = sealed[:position] + f"{int(sealed[position], 16) ^ 1:x}" + sealed[position + 1 :]
        sql(run_dir, url, "UPDATE state SET sealed = " + binary.format(flipped))
        with pytest.raises(DeploymentStateError, match=message):
            read_ledger(run_dir, keyring, url)
    for shorter in ("", sealed[:40], sealed[:-2]):
        sql(run_dir, url, "UPDATE state SET sealed = " + binary.format(shorter))
        refused(run_dir, keyring, url, message)
    put_back(run_dir, url, tables)
    open_ledger(run_dir, keyring, url).close()


def test_a_ledger_of_another_run_is_refused_even_with_one_key_for_all(tmp_path, url):
    keyring = Keyring(tmp_path / "keys", {"RETICENT_KEY": "5a" * 32})
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
    with open_ledger(mine, keyring, url, run_id="mine") as ledger:
        release(ledger, 1)
    if url is None:
        for suffix in ("", "-wal", "-shm"):
            if (mine / f"ledger.sqlite{suffix}").exists():
                shutil.copy(mine / f"ledger.sqlite{suffix}", theirs)
    # The run directory was swapped: another run, the same ledger.
    refused(theirs, keyring, url, "belongs to run", run_id="theirs")
    # Writing the other run into the clear row does not help: it is authenticated.
    binary = "X'{}'" if url is None else "'\\x{}'"
    digest = hashlib.sha256(b"theirs").hexdigest()
    sql(theirs, url, "UPDATE deployment SET run_digest = " + binary.format(digest))
    refused(theirs, keyring, url, "the key is not the one it was sealed with", run_id="theirs")


def test_a_restored_old_ledger_is_refused_and_the_latest_is_not(run_dir, keyring, url):
    copies = []
    for _ in range(3):
        with open_ledger(run_dir, keyring, url) as ledger:
            copies.append((ledger.curator.state.tokens_released, copied(run_dir, url)))
            release(ledger, 2, batch=2)
    latest = copied(run_dir, url)
    for tokens, copy in copies:
        put_back(run_dir, url, copy)
        refused(run_dir, keyring, url, f"after {tokens} released tokens, but 6 have been released; it is an old copy")
    put_back(run_dir, url, latest)
    with open_ledger(run_dir, keyring, url) as ledger:
        assert ledger.curator.state.tokens_released == 6


@pytest.mark.parametrize("content", [b"not a database, but longer than its header would be" * 40, b""])
def test_a_file_that_is_no_database_is_refused_and_can_be_reset(run_dir, keyring, content):
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 1)
    (run_dir / "ledger.sqlite").write_bytes(content)
    with pytest.raises(DeploymentStateError, match=r"cannot be read as a ledger|does not hold it"):
        open_ledger(run_dir, keyring)
    void_ledger(run_dir, keyring, Database.of_run(run_dir))
    assert all(".reset-" in path.name for path in keyring.folder.iterdir())
    open_ledger(run_dir, keyring).close()


def test_a_copy_made_before_a_reset_cannot_be_continued(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 2)
    copy = copied(run_dir, url)
    void_ledger(run_dir, keyring, Database.of_run(run_dir, url))
    open_ledger(run_dir, keyring, url).close()
    put_back(run_dir, url, copy)
    refused(run_dir, keyring, url, "no key for this deployment")


def test_the_mark_of_another_moment_does_not_help_an_old_copy(run_dir, keyring):
    """Deleting the mark to get an old copy accepted is refused too."""
    open_ledger(run_dir, keyring).close()
    copy = copied(run_dir, None)
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 3)
    put_back(run_dir, None, copy)
    only(keyring.folder, "*.mark").unlink()
    refused(run_dir, keyring, None, "cannot read .*mark.*put it back")
