"""Building a run: resumable to the bit after any crash, and nothing written where the request cannot be met."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import NUM_RECORDS, NUM_WORLDS, Recording, Silent, assert_same_bits, small_request, write_corpus
from tiny_models import byte_tokenizer, save_tiny_model

from reticent.errors import (
    CorpusError,
    InvalidValueError,
    ModelError,
    OutputExistsError,
    RunDirectoryError,
    StorageError,
    TrainingError,
)
from reticent.models.base import LanguageModel
from reticent.text.tokenise import encode_texts
from reticent.training.multiworld import MultiWorldTrainer, TrainedWorlds
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds import build as building
from reticent.worlds.assignment import Assignment
from reticent.worlds.build import BuildRequest, build_run
from reticent.worlds.manifest import FULL_NAME, MANIFEST_NAME, MEMBERSHIP_NAME, WORLDS_NAME
from reticent.worlds.peft_exchange import export_world
from reticent.worlds.run_directory import RunDirectory


def test_a_run_holds_what_was_asked_for(finished_run: Path, corpus: Path, tiny_llama_folder: Path) -> None:
    run = RunDirectory.open(finished_run)
    manifest = run.manifest
    assert sorted(path.name for path in finished_run.iterdir()) == sorted(
        [MANIFEST_NAME, MEMBERSHIP_NAME, WORLDS_NAME, FULL_NAME]
    )
    assert manifest.num_worlds == NUM_WORLDS
    assert manifest.template is None
    assert manifest.corpus is not None
    assert (manifest.corpus.num_records, manifest.corpus.num_units) == (NUM_RECORDS, NUM_RECORDS)
    assert manifest.base.name == str(tiny_llama_folder)
    worlds, full = run.worlds(), run.full()
    assert (worlds.num_adapters, full.num_adapters) == (NUM_WORLDS, 1)
    assert (worlds.rank, worlds.alpha) == (2, 16.0)
    assert {path.split(".")[2] for path in worlds.down} == {"1", "2"}
    assert all(tensor.any() for tensor in (*worlds.up.values(), *full.up.values()))
    membership = run.membership()
    assert (membership.members.sum(1) == NUM_WORLDS // 2).all()
    assert membership.record_hashes.shape == (NUM_RECORDS, 32)
    text = corpus.read_text()
    assert not any(json.loads(line)["text"] in (finished_run / MANIFEST_NAME).read_text() for line in text.splitlines())


def test_worlds_of_a_run_differ_and_an_engine_serves_them(finished_run: Path) -> None:
    run = RunDirectory.open(finished_run)
    engine = run.engine(run.base())
    context = engine.open([3, 1, 4])
    worlds = engine.world_logits(context, np.arange(engine.vocab_size))
    gaps = np.abs(worlds[:, None] - worlds[None]).max(-1)
    assert (gaps[~np.eye(NUM_WORLDS, dtype=bool)] > 1e-3).all()


def test_the_same_request_gives_the_same_run(request_for: BuildRequest, finished_run: Path) -> None:
    progress = Recording()
    run = build_run(request_for, progress)
    assert_same_bits(run.folder, finished_run)
    assert progress.done == progress.expected
    assert min(progress.expected.values()) > 0
    assert progress.notes == []


@pytest.mark.parametrize(
    ("top", "phases"), [(None, ["adapters"]), (3, ["adapters"]), (2, ["lower layers", "adapters"])]
)
def test_progress_begins_no_phase_that_has_nothing_to_do(
    request_for: BuildRequest, top: int | None, phases: list[str]
) -> None:
    progress = Recording()
    build_run(dataclasses.replace(request_for, lora=LoraSettings(rank=2, num_top_layers=top)), progress)
    assert list(progress.expected) == phases
    assert progress.done == progress.expected


def test_a_text_too_short_to_learn_from_is_named_by_its_line(
    request_for: BuildRequest, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = corpus.read_text().splitlines()
    path = tmp_path / "short.jsonl"
    path.write_text("\n".join([json.dumps({"text": " "}), *lines[:2], json.dumps({"text": "x"}), *lines[2:]]))
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    monkeypatch.setattr(LanguageModel, "load_tokenizer", lambda _: tokenizer)
    with pytest.raises(CorpusError, match=r"short\.jsonl:4: .* fewer than two tokens"):
        build_run(dataclasses.replace(request_for, corpus=path), Silent())
    assert not request_for.out.exists()


def test_a_build_whose_training_is_not_finite_is_an_error_and_no_run(request_for: BuildRequest) -> None:
    lora = LoraSettings(rank=2, alpha=1e38, num_top_layers=2)
    with pytest.raises(TrainingError, match=r"world [01] in step \d+ of \d+.*--learning-rate"):
        build_run(dataclasses.replace(request_for, lora=lora), Silent())
    assert not (request_for.out / MANIFEST_NAME).exists()


def test_groups_finished_before_are_not_trained_again(
    request_for: BuildRequest, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(request_for, monkeypatch, "full")
    trained: list[str] = []
    train = building.MultiWorldTrainer.train

    def spy(self: Any, schedule: Any, *arguments: Any, **options: Any) -> Any:
        trained.append(f"{schedule.members.shape[1]} worlds")
        return train(self, schedule, *arguments, **options)

    monkeypatch.setattr(building.MultiWorldTrainer, "train", spy)
    progress = Recording()
    build_run(request_for, progress, resume=True)
    assert trained == ["1 worlds"]
    assert progress.done == progress.expected
    assert_same_bits(request_for.out, finished_run)


def interrupt(request: BuildRequest, monkeypatch: pytest.MonkeyPatch, before: str = "worlds-00002") -> None:
    """Leave a build half done, as Ctrl-C would before one of its groups."""
    train = building._Build._train

    def stop(self: Any, name: str, *arguments: Any) -> Any:
        if name == before:
            raise KeyboardInterrupt
        return train(self, name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(building._Build, "_train", stop)
        with pytest.raises(KeyboardInterrupt):
            build_run(request, Silent())


CHANGES = {
    "lora.rank": {"lora": LoraSettings(rank=3, num_top_layers=2)},
    "lora.num_top_layers": {"lora": LoraSettings(rank=2)},
    "training.learning_rate": {
        "training": TrainingSettings(batch_size=2, max_tokens=32, learning_rate=2e-2, worlds_at_once=2)
    },
    "training.worlds_at_once": {
        "training": TrainingSettings(batch_size=2, max_tokens=32, learning_rate=1e-2, worlds_at_once=4)
    },
    "num_worlds": {"num_worlds": 6},
    "membership_seed": {"membership_seed": 1},
    "corpus.num_records": {"limit": 9},
}


def test_a_resume_with_other_settings_names_them(request_for: BuildRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(request_for, monkeypatch)
    for name, change in CHANGES.items():
        with pytest.raises(RunDirectoryError, match=rf"begun with another .*{name}"):
            build_run(dataclasses.replace(request_for, **change), Silent(), resume=True)
    build_run(request_for, Silent(), resume=True)


def test_a_resume_on_another_base_or_corpus_names_it(
    request_for: BuildRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupt(request_for, monkeypatch)
    save_tiny_model(tmp_path / "other", "llama", seed=1)
    with pytest.raises(RunDirectoryError, match=r"base\.content_hash"):
        build_run(dataclasses.replace(request_for, model=str(tmp_path / "other")), Silent(), resume=True)
    other = write_corpus(tmp_path / "other.jsonl", seed=1)
    with pytest.raises(RunDirectoryError, match=r"corpus\.corpus_hash"):
        build_run(dataclasses.replace(request_for, corpus=other), Silent(), resume=True)


def test_resuming_a_finished_run_opens_it_if_it_is_the_same(finished_run: Path, corpus: Path, tiny_llama_folder: Path):
    progress = Recording()
    request = small_request(corpus, tiny_llama_folder, finished_run)
    run = build_run(request, progress, resume=True)
    assert run.folder == finished_run
    assert progress.notes == [f"{finished_run} is already finished"]
    for name, change in CHANGES.items():
        with pytest.raises(RunDirectoryError, match=rf"built with another .*{name}"):
            build_run(dataclasses.replace(request, **change), Silent(), resume=True)


def test_an_output_that_exists_is_left_alone(
    finished_run: Path, request_for: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutputExistsError, match="already holds a finished run"):
        build_run(dataclasses.replace(request_for, out=finished_run), Silent())

    interrupt(request_for, monkeypatch)
    with pytest.raises(OutputExistsError, match="unfinished run; add --resume"):
        build_run(request_for, Silent())


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_left_alone(request_for: BuildRequest, resume: bool) -> None:
    request_for.out.mkdir()
    (request_for.out / "holiday.txt").write_text("sea")
    with pytest.raises(OutputExistsError, match="not an unfinished run"):
        build_run(request_for, Silent(), resume=resume)
    assert [path.name for path in request_for.out.iterdir()] == ["holiday.txt"]
    (request_for.out / "holiday.txt").unlink()
    request_for.out.rmdir()
    request_for.out.write_text("a file")
    with pytest.raises(OutputExistsError, match="not an unfinished run"):
        build_run(request_for, Silent(), resume=resume)


def test_an_empty_folder_may_be_filled_and_parents_are_made(request_for: BuildRequest, finished_run: Path) -> None:
    request_for.out.mkdir()
    build_run(request_for, Silent())
    deep = dataclasses.replace(request_for, out=request_for.out.parent / "a" / "b")
    build_run(deep, Silent(), resume=True)
    assert_same_bits(deep.out, finished_run)


BAD_REQUESTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"corpus": Path("/nowhere.jsonl")}, CorpusError, "nowhere"),
    ({"text_key": "body"}, CorpusError, "body"),
    ({"limit": 1}, CorpusError, "at least 2"),
    ({"limit": 0}, InvalidValueError, "limit"),
    ({"num_worlds": 3}, InvalidValueError, "even"),
    ({"num_worlds": 0}, InvalidValueError, "num_worlds"),
    ({"membership_seed": -1}, InvalidValueError, "seed"),
    ({"model": "/nowhere"}, ModelError, "nowhere"),
    ({"lora": LoraSettings(target_modules=("query",))}, InvalidValueError, "q_proj"),
    ({"lora": LoraSettings(num_top_layers=9)}, InvalidValueError, "top:9"),
    ({"device": "abacus"}, InvalidValueError, "abacus"),
    ({"device": "cuda:77"}, InvalidValueError, "cuda:77"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_REQUESTS, ids=lambda value: str(value)[:40])
def test_a_request_that_cannot_be_met_writes_nothing(
    request_for: BuildRequest, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_run(dataclasses.replace(request_for, **change), Silent())
    assert not request_for.out.exists()


def test_an_output_that_cannot_be_made_is_a_storage_error(request_for: BuildRequest, corpus: Path) -> None:
    with pytest.raises(StorageError, match="choose another --out"):
        build_run(dataclasses.replace(request_for, out=corpus / "run"), Silent())


def test_merged_and_cut_records_are_told_and_recorded(tiny_llama_folder: Path, corpus: Path, tmp_path: Path) -> None:
    lines = corpus.read_text().splitlines()
    near = json.loads(lines[0])["text"]
    path = tmp_path / "doubled.jsonl"
    path.write_text("\n".join([*lines, json.dumps({"text": near + "."}), json.dumps({"text": "short"})]) + "\n")
    progress = Recording()
    training = TrainingSettings(batch_size=2, max_tokens=24)
    run = build_run(small_request(path, tiny_llama_folder, tmp_path / "run", training=training), progress)
    assert progress.notes == [
        f"{NUM_RECORDS + 1} of {NUM_RECORDS + 2} records are longer than 24 tokens and were cut",
        "1 units merged into others because their texts are near-duplicates",
    ]
    assert run.manifest.corpus is not None
    assert run.manifest.corpus.num_merged_units == 1
    assert run.manifest.corpus.num_truncated == NUM_RECORDS + 1
    assert run.manifest.corpus.num_units == NUM_RECORDS + 1
    record_members = run.membership().record_members
    np.testing.assert_array_equal(record_members[0], record_members[NUM_RECORDS])


def test_records_that_train_alike_once_cut_are_in_the_same_worlds(
    tiny_llama_folder: Path, corpus: Path, tmp_path: Path
) -> None:
    lines = corpus.read_text().splitlines()
    head = "every letter of this clinic begins alike, "
    path = tmp_path / "headed.jsonl"
    tails = [json.loads(line)["text"] for line in lines[:3]]
    path.write_text("\n".join([*lines, *(json.dumps({"text": head + tail}) for tail in tails)]) + "\n")
    training = TrainingSettings(batch_size=2, max_tokens=32)
    progress = Recording()
    run = build_run(small_request(path, tiny_llama_folder, tmp_path / "run", training=training), progress)
    record_members = run.membership().record_members
    encoded = encode_texts(run.base().load_tokenizer(), [json.loads(line)["text"] for line in path.open()], 32)
    same = [sequence.tolist() == encoded.sequences[-1].tolist() for sequence in encoded.sequences]
    assert sum(same) == 3
    assert len(np.unique(record_members[same], axis=0)) == 1
    assert run.manifest.corpus is not None
    assert (run.manifest.corpus.num_units, run.manifest.corpus.num_merged_once_cut) == (NUM_RECORDS + 1, 2)
    assert any("2 of them only as they are cut for training" in note for note in progress.notes)


def test_records_are_cut_to_the_models_context(corpus: Path, tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "opt")
    training = TrainingSettings(batch_size=4, max_tokens=1000)
    long = tmp_path / "long.jsonl"
    long.write_text(corpus.read_text() + json.dumps({"text": "yes " * 60}) + "\n")
    progress = Recording()
    build_run(small_request(long, tmp_path / "model", tmp_path / "run", training=training), progress)
    assert progress.notes == [f"1 of {NUM_RECORDS + 1} records are longer than 96 tokens and were cut"]


def test_bfloat16_adapters_resume_to_the_same_bits(
    request_for: BuildRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    training = request_for.training.model_copy(update={"dtype": "bfloat16"})
    whole, stopped = (
        dataclasses.replace(request_for, training=training, out=tmp_path / name) for name in ("whole", "stopped")
    )
    build_run(whole, Silent())
    interrupt(stopped, monkeypatch)
    run = build_run(stopped, Silent(), resume=True)
    assert_same_bits(whole.out, stopped.out)
    assert {tensor.dtype for tensor in run.worlds().up.values()} == {torch.bfloat16}


def test_disjoint_shards_are_built_and_refused_where_the_guarantee_needs_overlap(
    tmp_path: Path, corpus: Path, tiny_llama_folder: Path
) -> None:
    request = dataclasses.replace(
        small_request(corpus, tiny_llama_folder, tmp_path / "shards"), assignment=Assignment.DISJOINT
    )
    run = build_run(request, Silent())
    assert (run.membership().members.sum(1) == 1).all()
    assert RunDirectory.open(tmp_path / "shards", None).manifest.assignment is Assignment.DISJOINT
    with pytest.raises(RunDirectoryError, match="disjoint worlds and overlapping ones are needed"):
        RunDirectory.open(tmp_path / "shards")
    with pytest.raises(RunDirectoryError, match="assignment"):
        build_run(dataclasses.replace(request, assignment=Assignment.OVERLAPPING), Silent(), resume=True)


def test_a_build_whose_last_step_left_a_number_that_is_none_ends_in_an_error(
    request_for: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = MultiWorldTrainer.train

    def poisoned(*arguments: Any, **options: Any) -> TrainedWorlds:
        trained = train(*arguments, **options)
        next(iter(trained.adapters.up.values())).view(-1)[3] = torch.nan
        return trained

    monkeypatch.setattr(MultiWorldTrainer, "train", poisoned)
    with pytest.raises(TrainingError, match=r"lora_B holds numbers that are not finite; lower the learning rate"):
        build_run(request_for, Silent())
    assert not (request_for.out / MANIFEST_NAME).exists()


def test_a_run_whose_name_is_not_utf_8_is_neither_built_nor_opened(
    request_for: BuildRequest, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(InvalidValueError, match=r"caf\\xe9 holds bytes that are not UTF-8; rename it"):
        build_run(dataclasses.replace(request_for, out=folder), Silent())
    assert not folder.exists()
    shutil.copytree(finished_run, folder)
    with pytest.raises(InvalidValueError, match="not UTF-8"):
        RunDirectory.open(folder)
    # A relative name is in that folder as well.
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidValueError, match="not UTF-8"):
        RunDirectory.open(Path())
    with pytest.raises(InvalidValueError, match="not UTF-8"):
        export_world(RunDirectory.open(finished_run), 0, Path("exported"))
