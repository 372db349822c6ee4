"""The commit of a checkout, against git itself."""

import subprocess
from pathlib import Path

import pytest

from reticent.benchmark.records import checked_out_commit


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "first"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "file").write_text("x")
    git(folder, "add", "file")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def test_a_branch_a_detached_head_and_packed_references(checkout: Path) -> None:
    wanted = git(checkout, "rev-parse", "HEAD")
    assert checked_out_commit(checkout) == wanted
    git(checkout, "pack-refs", "--all")
    assert checked_out_commit(checkout) == wanted
    git(checkout, "checkout", "-q", "--detach")
    assert checked_out_commit(checkout) == wanted


def test_a_further_work_tree_has_its_own_commit(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "second"
    git(checkout, "worktree", "add", "-q", "-b", "other", str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "two")
    assert checked_out_commit(other) == git(other, "rev-parse", "HEAD") != checked_out_commit(checkout)


def test_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert checked_out_commit(tmp_path) is None
