"""Exported worlds come back as what they were, or are refused: never as worlds of another kind."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from small_runs import NUM_WORLDS, Silent, small_request

from reticent.errors import InvalidValueError, RunDirectoryError
from reticent.worlds.assignment import Assignment, membership_matrix
from reticent.worlds.build import build_run
from reticent.worlds.peft_exchange import export_world, import_worlds
from reticent.worlds.run_directory import RunDirectory


def exported(run: RunDirectory, out: Path) -> list[Path]:
    folders = [out / str(world) for world in range(run.manifest.num_worlds)]
    for world, folder in enumerate(folders):
        export_world(run, world, folder)
    return folders


@pytest.fixture(scope="module", params=["overlapping", "disjoint"])
def known_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, corpus: Path, tiny_llama_folder: Path
) -> tuple[RunDirectory, list[Path]]:
    """A run of either kind, and its worlds exported."""
    folder = tmp_path_factory.mktemp(request.param)
    assignment = Assignment(request.param)
    run = build_run(small_request(corpus, tiny_llama_folder, folder / "run", assignment=assignment), Silent())
    return run, exported(run, folder)


def test_worlds_come_back_as_what_they_were(known_run: tuple[RunDirectory, list[Path]], tmp_path: Path) -> None:
    run, folders = known_run
    again = import_worlds(folders[::-1], run.manifest.base.name, tmp_path / "again")
    assert again.manifest.assignment is run.manifest.assignment
    np.testing.assert_array_equal(again.membership().members, run.membership().members[:, ::-1])
    if run.manifest.assignment is Assignment.OVERLAPPING:
        assert RunDirectory.open(tmp_path / "again").manifest == again.manifest
        return
    with pytest.raises(RunDirectoryError, match="disjoint worlds and overlapping ones are needed"):
        RunDirectory.open(tmp_path / "again")
    np.savez(tmp_path / "members.npz", members=membership_matrix(6, NUM_WORLDS, 0))
    with pytest.raises(InvalidValueError, match="is not what the folders say"):
        import_worlds(folders, run.manifest.base.name, tmp_path / "other", membership=tmp_path / "members.npz")


def drop_record(folders: list[Path]) -> None:
    (folders[1] / "reticent_world.json").unlink()


def edit_record(folder: Path, **changes: Any) -> None:
    path = folder / "reticent_world.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(folder: Path) -> None:
    """Other weights of the same shapes."""
    path = folder / "adapter_model.safetensors"
    safetensors.torch.save_file({name: 2 * tensor for name, tensor in safetensors.torch.load_file(path).items()}, path)


MIXTURES: dict[str, tuple[Callable[[list[Path]], Any], str]] = {
    "one-says-nothing": (drop_record, "1 does not say what it is; import all worlds of one run, or delete"),
    "another-run": (lambda f: edit_record(f[2], run="0" * 64), "0 and .*2 are worlds of different runs"),
    "another-kind": (lambda f: edit_record(f[0], assignment="unknown"), "different runs"),
    "twice": (lambda f: (shutil.rmtree(f[1]), shutil.copytree(f[0], f[1])), "worlds 0, 0, 2, 3 of a run of 4"),
    "not-all": (lambda f: f.__delitem__(slice(2, 4)), "worlds 0, 1 of a run of 4"),
    "other-weights": (lambda f: rewrite(f[1]), "export the world again, or delete"),
    "other-units": (lambda f: edit_record(f[1], units=[]), "are damaged: not every unit is in"),
    "no-such-unit": (lambda f: edit_record(f[1], units=[99]), "is damaged .*export the world again"),
    "negative-unit": (lambda f: edit_record(f[1], units=[-1]), "is damaged"),
    "no-json": (lambda f: (f[1] / "reticent_world.json").write_text("{"), "is damaged"),
    "no-object": (lambda f: (f[1] / "reticent_world.json").write_text("[]"), "is damaged"),
    "of-tomorrow": (lambda f: edit_record(f[1], schema_version=2), "schema 2 .*upgrade"),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_folders_that_are_not_the_worlds_of_one_run_are_refused(
    mixture: str, known_run: tuple[RunDirectory, list[Path]], tmp_path: Path
) -> None:
    run, folders = known_run
    copies = [Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in folders]
    edit, message = MIXTURES[mixture]
    if mixture == "another-kind":
        copies = copies[:2]
    edit(copies)
    with pytest.raises(RunDirectoryError, match=message):
        import_worlds(copies, run.manifest.base.name, tmp_path / "again")
    assert not (tmp_path / "again").exists()
