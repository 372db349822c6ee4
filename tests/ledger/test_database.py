"""Connections to a ledger: readers change nothing and create nothing, and writers need a file that is there."""

import pytest
from ledger_tools import open_ledger, release
from sqlalchemy import text

from reticent.errors import StorageError
from reticent.ledger.database import Database
from reticent.ledger.usage import UsageTable


def test_readers_cannot_write(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
        database = ledger.database
        engine = database.engine(write=False)
        for statement in ("DELETE FROM releases", "DROP TABLE api_keys", "CREATE TABLE more (id INTEGER)"):
            with pytest.raises(StorageError, match=r"read.?only"), database.errors(), engine.begin() as connection:
                connection.execute(text(statement))
        engine.dispose()
        release(ledger, 1)
    assert UsageTable(database).tokens_by_hour(0)[0][1] == 2


@pytest.mark.parametrize("write", [True, False])
def test_a_missing_file_is_an_error_and_stays_missing(tmp_path, write):
    database = Database.of_run(tmp_path)
    engine = database.engine(write=write)
    with pytest.raises(StorageError, match="unable to open"), database.errors(), engine.begin():
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_probe_of_a_ledger_that_is_gone_says_no_and_creates_nothing(run_dir, keyring):
    with open_ledger(run_dir, keyring) as ledger:
        release(ledger, 1)
        assert ledger.healthy()
        ledger.database.delete_file()
        before = sorted(run_dir.iterdir())
        assert not ledger.healthy()
        assert sorted(run_dir.iterdir()) == before


@pytest.mark.parametrize("name", ["with space", "a?mode=memory", "a#b", "100%25", "ü", "a&vfs=none"])
def test_folders_of_any_name_hold_a_ledger(tmp_path, keyring, name):
    folder = tmp_path / name
    folder.mkdir()
    with open_ledger(folder, keyring) as ledger:
        release(ledger, 2)
        assert str(ledger.database) == str(folder / "ledger.sqlite")
    assert (folder / "ledger.sqlite").stat().st_size > 0
    with open_ledger(folder, keyring) as ledger:
        assert ledger.curator.state.tokens_released == 2
