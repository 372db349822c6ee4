"""What tests of several packages share: tiny random models, and PostgreSQL and a C++ compiler where there are some."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import pytest
import torch
from missing import pytest_terminal_summary, skip_without
from tiny_models import build_tiny_model, save_tiny_model

from reticent.models.compiled import why_not_compiled

__all__ = ["pytest_terminal_summary"]  # a hook of pytest's, not called from here

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
# How fast the machine is never decides a test.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")


@pytest.fixture
def _compiler() -> None:
    """A working C++ compiler; without one the test is skipped, in CI it fails."""
    reason = why_not_compiled()
    if reason is not None:
        skip_without("compiled code", f"apt-get install g++; what went wrong here: {reason}")


@pytest.fixture
def program() -> Callable[[str, str], str]:
    """A function that finds a program, or names its Debian package: the test is then skipped, and in CI it fails."""

    def find(name: str, package: str) -> str:
        found = shutil.which(name)
        return found or skip_without(name, f"apt-get install {package}")

    return find


@pytest.fixture
def postgresql_url() -> Iterator[str]:
    """A URL of an empty PostgreSQL schema of this test's own; without a server the test is skipped, in CI it fails."""
    server = os.environ.get("RETICENT_TEST_DATABASE_URL")
    if not server:
        skip_without("PostgreSQL", "apt-get install postgresql, then scripts/with_postgresql.sh make test")
    import psycopg

    schema = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{server}?options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """Where a ledger is kept: None for the default file of the run directory, and PostgreSQL."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgresql_url")


@pytest.fixture
def tiny_model() -> Callable[..., Any]:
    return build_tiny_model


@pytest.fixture(scope="session")
def tiny_llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved LLaMA-shaped model with a byte-level tokenizer, as a user's local folder would be."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_tiny_model(folder, "llama")
    return folder
