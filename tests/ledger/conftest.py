import pytest

from reticent.ledger.secret import Keyring


@pytest.fixture
def keyring(tmp_path):
    return Keyring(tmp_path / "keys", {})


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request):
    """Where the ledger is kept: the default file of the run directory, and PostgreSQL."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgresql_url")
