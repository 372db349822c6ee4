"""Opening a run verifies it: whatever was changed, lost or made elsewhere is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from small_runs import NUM_RECORDS, NUM_WORLDS
from tiny_models import save_tiny_model

from reticent._files import sha256_of_file
from reticent.errors import InvalidValueError, ModelError, RunDirectoryError, TrainingError
from reticent.layers.adapters import StackedAdapters
from reticent.worlds.manifest import FULL_NAME, MANIFEST_NAME, MEMBERSHIP_NAME, SCHEMA_VERSION, WORLDS_NAME
from reticent.worlds.run_directory import RunDirectory, read_adapters, write_adapters

FILES = [MEMBERSHIP_NAME, WORLDS_NAME, FULL_NAME]


@pytest.fixture
def run_folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(finished_run, tmp_path / "copied"))


def edit_manifest(folder: Path, **changes: Any) -> None:
    path = folder / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_run_can_be_copied(run_folder: Path, finished_run: Path) -> None:
    copied, original = RunDirectory.open(run_folder), RunDirectory.open(finished_run)
    assert copied.manifest == original.manifest
    assert copied.manifest.files == {name: sha256_of_file(finished_run / name) for name in FILES}


@pytest.mark.parametrize("name", FILES)
def test_a_tampered_file_is_named_with_both_hashes(run_folder: Path, name: str) -> None:
    path = run_folder / name
    before = sha256_of_file(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunDirectoryError, match=name) as caught:
        RunDirectory.open(run_folder)
    assert before in str(caught.value)
    assert sha256_of_file(path) in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(run_folder: Path, name: str) -> None:
    (run_folder / name).unlink()
    with pytest.raises(RunDirectoryError, match=rf"{name} is missing"):
        RunDirectory.open(run_folder)


def test_a_newer_schema_asks_for_an_upgrade(run_folder: Path) -> None:
    edit_manifest(run_folder, schema_version=SCHEMA_VERSION + 1, something_new=True)
    with pytest.raises(RunDirectoryError, match=rf"schema {SCHEMA_VERSION + 1}.*upgrade reticent"):
        RunDirectory.open(run_folder)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", "{}", '{"schema_version": "1"}', '{"schema_version": 1}', "\udcff"],
)
def test_a_damaged_manifest_is_said_to_be_one(run_folder: Path, text: str) -> None:
    (run_folder / MANIFEST_NAME).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunDirectoryError, match="damaged"):
        RunDirectory.open(run_folder)


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"num_worlds": "many"},
        {"num_worlds": 3},
        {"schema_version": 0},
        {"schema_version": True},
        {"files": {WORLDS_NAME: 5}},
        {"files": {}},
        {"files": {"../outside": "00"}},
        {"lora": {"rank": 0}},
    ],
    ids=str,
)
def test_a_manifest_with_impossible_content_is_damaged(run_folder: Path, change: dict[str, Any]) -> None:
    edit_manifest(run_folder, **change)
    with pytest.raises(RunDirectoryError, match="damaged"):
        RunDirectory.open(run_folder)


def test_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="does not exist; build a run"):
        RunDirectory.open(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        RunDirectory.open(tmp_path)
    (tmp_path / "training").mkdir()
    with pytest.raises(RunDirectoryError, match=r"half-built; finish it with .* --resume"):
        RunDirectory.open(tmp_path)


def test_the_base_is_found_under_another_name_by_content(
    run_folder: Path, tiny_llama_folder: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(tiny_llama_folder, tmp_path / "moved")
    run = RunDirectory.open(run_folder)
    assert run.base().folder == tiny_llama_folder
    assert run.base(str(moved)).folder == moved


def test_another_base_is_refused_with_both_hashes(run_folder: Path, tiny_llama_folder: Path, tmp_path: Path) -> None:
    run = RunDirectory.open(run_folder)
    save_tiny_model(tmp_path / "other", "llama", seed=1)
    with pytest.raises(RunDirectoryError, match=r"weights of '.*/other' have SHA-256 [0-9a-f]{64}") as caught:
        run.base(str(tmp_path / "other"))
    assert run.manifest.base.content_hash in str(caught.value)

    retokenized = Path(shutil.copytree(tiny_llama_folder, tmp_path / "retokenized"))
    path = retokenized / "tokenizer.json"
    path.write_text(path.read_text().replace("<bos>", "<BOS>"))
    with pytest.raises(RunDirectoryError, match="tokenizer of ") as caught:
        run.base(str(retokenized))
    assert run.manifest.base.tokenizer_hash in str(caught.value)
    with pytest.raises(ModelError, match="nowhere"):
        run.base(str(tmp_path / "nowhere"))


def test_an_engine_computes_in_the_type_and_place_asked_for(finished_run: Path) -> None:
    run = RunDirectory.open(finished_run)
    base = run.base()
    candidates = np.arange(50)
    exact, rounded = (
        engine.world_logits(engine.open([1, 2, 3]), candidates)
        for engine in (run.engine(base), run.engine(base, torch.bfloat16))
    )
    assert 0 < np.abs(exact - rounded).max() < 0.2 * np.abs(exact).max()
    with pytest.raises(InvalidValueError, match="'abacus' cannot be used"):
        run.engine(base, device="abacus")


def test_membership_says_which_world_holds_which_record(finished_run: Path) -> None:
    membership = RunDirectory.open(finished_run).membership()
    assert membership.members.shape == (NUM_RECORDS, NUM_WORLDS)
    assert membership.members.dtype == np.bool_
    np.testing.assert_array_equal(membership.record_members, membership.members[membership.unit_of_record])


def test_adapters_are_read_back_as_they_were_written(finished_run: Path, tmp_path: Path) -> None:
    adapters = RunDirectory.open(finished_run).worlds().one(2)
    write_adapters(tmp_path / "one.safetensors", adapters)
    again = read_adapters(tmp_path / "one.safetensors", adapters.alpha)
    assert again.down.keys() == adapters.down.keys()
    for path in adapters.down:
        assert torch.equal(again.down[path], adapters.down[path])
        assert torch.equal(again.up[path], adapters.up[path])


@pytest.mark.parametrize(("name", "key"), [(WORLDS_NAME, "lora_A"), (FULL_NAME, "lora_B")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_named_by_file_and_tensor(
    run_folder: Path, name: str, key: str, value: float
) -> None:
    RunDirectory.open(run_folder).refuse_not_finite()
    tensors = safetensors.torch.load_file(run_folder / name)
    poisoned = next(tensor for tensor in tensors if tensor.endswith(key))
    tensors[poisoned].view(-1)[-1] = value
    safetensors.torch.save_file(tensors, run_folder / name)
    edit_manifest(run_folder, files={file: sha256_of_file(run_folder / file) for file in FILES})
    with pytest.raises(RunDirectoryError, match=rf"{name}: {poisoned} holds numbers that are not finite"):
        RunDirectory.open(run_folder).refuse_not_finite()


def test_adapters_that_are_not_finite_are_never_written(tmp_path: Path) -> None:
    adapters = StackedAdapters({"q": torch.zeros(2, 1, 3)}, {"q": torch.full((2, 3, 1), torch.nan)}, 1.0)
    with pytest.raises(TrainingError, match=r"worlds\.safetensors: q\.lora_B holds numbers that are not finite"):
        write_adapters(tmp_path / WORLDS_NAME, adapters)
    assert not list(tmp_path.iterdir())
