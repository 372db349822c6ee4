import shutil

import pytest
from api.small_texts import TEXTS, TRAINING

import reticent


@pytest.fixture(autouse=True)
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="session")
def built(tmp_path_factory, tiny_llama_folder):
    """A run of four worlds of the texts above, trained far enough to disagree."""
    out = tmp_path_factory.mktemp("front-door") / "run"
    return reticent.build_worlds(TEXTS, model=tiny_llama_folder, worlds=4, out=out, options=TRAINING)


@pytest.fixture
def run(built, tmp_path):
    """A copy of that run, in which nothing is deployed yet."""
    return reticent.open_run(shutil.copytree(built.folder, tmp_path / "run"))
