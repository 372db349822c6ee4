import pytest

from reticent.ledger.keys import Keyring


@pytest.fixture
def keyring(tmp_path):
    return Keyring(tmp_path / "keys", {})


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def url(database_url):
    return database_url
