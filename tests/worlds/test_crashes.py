"""A build killed at any write, or stopped by a full disk, resumes to the same bits as one that never stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from killing import killed_at
from small_runs import Silent, assert_same_bits, small_request

from reticent.errors import RunDirectoryError, StorageError
from reticent.worlds import build as building
from reticent.worlds.build import BuildRequest, build_run
from reticent.worlds.manifest import FULL_NAME, MANIFEST_NAME, MEMBERSHIP_NAME, WORLDS_NAME
from reticent.worlds.run_directory import RunDirectory

DRIVER = Path(__file__).with_name("build_until_killed.py")


# The writes of a build, in order: 1 the request; 2 to 7 for each of two groups of worlds 2 checkpoints and the finished
# group; 8 to 13 5 checkpoints and the finished adapter on all records; 14 to 17 membership, worlds, full, manifest.
WRITES = 17
MOMENTS = [
    (1, "before"),
    (1, "after"),
    (2, "before"),
    (2, "after"),
    (3, "after"),
    (4, "before"),
    (4, "after"),
    (6, "after"),
    (10, "after"),
    (13, "before"),
    (14, "after"),
    (16, "before"),
    (17, "before"),
    (17, "after"),
]


@pytest.fixture(scope="session")
def killed_builds(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, tiny_llama_folder: Path
) -> dict[tuple[int, str], Path]:
    return killed_at(DRIVER, tmp_path_factory.mktemp("killed"), MOMENTS, corpus, tiny_llama_folder)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment[1]}-write-{moment[0]}")
def test_killed_at_any_write_a_build_resumes_to_the_same_bits(
    moment: tuple[int, str],
    killed_builds: dict[tuple[int, str], Path],
    finished_run: Path,
    corpus: Path,
    tiny_llama_folder: Path,
) -> None:
    out = killed_builds[moment]
    if moment != (WRITES, "after"):
        with pytest.raises(RunDirectoryError, match="half-built"):
            RunDirectory.open(out)
    run = build_run(small_request(corpus, tiny_llama_folder, out), Silent(), resume=True)
    assert_same_bits(out, finished_run)
    np.testing.assert_array_equal(run.membership().members, RunDirectory.open(finished_run).membership().members)
    # Neither working files nor what a kill left of an unfinished write.
    assert {path.name for path in out.iterdir()} == {path.name for path in finished_run.iterdir()}


def test_the_moments_cover_the_whole_build(
    request_for: BuildRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moved: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: moved.append(target.name) or replace(self, target))
    checkpoints_always(monkeypatch)
    build_run(request_for, Silent())
    assert moved == [
        "request.json",
        *["worlds-00000.checkpoint"] * 2,
        "worlds-00000.safetensors",
        *["worlds-00002.checkpoint"] * 2,
        "worlds-00002.safetensors",
        *["full.checkpoint"] * 5,
        "full.safetensors",
        MEMBERSHIP_NAME,
        WORLDS_NAME,
        FULL_NAME,
        MANIFEST_NAME,
    ]
    assert len(moved) == WRITES


def checkpoints_always(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = building.TrainingCheckpoint
    monkeypatch.setattr(building, "TrainingCheckpoint", lambda path: checkpoint(path, seconds_between_saves=0))


@pytest.mark.parametrize("full_at", [2, 4, 7, 10])
@pytest.mark.parametrize("as_safetensors_error", [False, True])
def test_a_full_disk_loses_nothing(
    full_at: int,
    as_safetensors_error: bool,
    request_for: BuildRequest,
    finished_run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints_always(monkeypatch)
    save_file, calls = safetensors.torch.save_file, 0

    def save_until_full(tensors: Any, path: Path, metadata: Any = None) -> None:
        nonlocal calls
        calls += 1
        if calls >= full_at:
            path.write_bytes(b"as much as fits")
            if as_safetensors_error:
                raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")
            raise OSError(28, "No space left on device")
        save_file(tensors, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", save_until_full)
        with pytest.raises(StorageError, match=r"No space left on device.*--resume"):
            build_run(request_for, Silent())
    assert not list(request_for.out.rglob("*.tmp"))
    build_run(request_for, Silent(), resume=True)
    assert_same_bits(request_for.out, finished_run)
