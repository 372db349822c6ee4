"""A small corpus and a finished run over it, made once."""

from pathlib import Path

import pytest
from small_runs import Silent, small_request, write_corpus

from reticent.worlds.build import BuildRequest, build_run


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "notes.jsonl")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, corpus: Path, tiny_llama_folder: Path) -> Path:
    """A run that was never interrupted. Tests do not change it."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    build_run(small_request(corpus, tiny_llama_folder, out), Silent())
    return out


@pytest.fixture
def request_for(corpus: Path, tiny_llama_folder: Path, tmp_path: Path) -> BuildRequest:
    return small_request(corpus, tiny_llama_folder, tmp_path / "run")
