import json

import pytest
from small_grids import TOML, RecordingProgress, distinct_texts, fake_cell, small_grid

from reticent.benchmark.grid import GridRequest, run_grid
from reticent.benchmark.records import CellState, begin_cell, read_cell_audit, read_cell_record, source_revision
from reticent.errors import ModelError, StorageError
from reticent.text.corpus import read_corpus

SECRET = "the patient's name is"


@pytest.fixture
def request_in(tmp_path):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in distinct_texts(20))
    (tmp_path / "notes.jsonl").write_text(lines)

    def make(grid=None):
        return GridRequest(grid or small_grid(), tmp_path / "out", tmp_path, {})

    return make


class Runner:
    """Makes cells without a model; fails, or stops, in those it is told to."""

    def __init__(self, fails=(), error=None):
        self.fails, self.error, self.ran = set(fails), error or ModelError("no such model"), []

    def __call__(self, work, progress):
        self.ran.append(work.cell.name)
        (work.folder / "half").write_text(work.cell.name)
        if work.cell.name in self.fails:
            raise self.error
        return fake_cell()


NAMES = ["notes--a--lora--seed-0", "notes--a--full--seed-0", "notes--b--lora--seed-0", "notes--b--full--seed-0"]


def test_every_cell_runs_once_and_is_recorded(request_in):
    runner, progress = Runner(), RecordingProgress()
    records = run_grid(request_in(), runner, progress)
    assert runner.ran == NAMES
    assert [record.name for record in records] == NAMES
    assert progress.begun == [(name, number, 4) for number, name in enumerate(NAMES, start=1)]
    assert progress.ended == [(name, "done", False) for name in NAMES]
    folder = request_in().out / "cells" / NAMES[0]
    assert read_cell_record(folder) == records[0]
    assert read_cell_audit(folder) == fake_cell()[0]
    assert records[0].settings["technique"]["technique"] == "lora"
    assert {"reticent", "torch"} <= set(records[0].versions)


def test_a_cell_gets_all_texts_of_its_data_set(request_in):
    seen = []

    def runner(work, progress):
        seen.append([record.text for record in read_corpus(work.corpus).records])
        return fake_cell()

    run_grid(request_in(), runner, RecordingProgress())
    assert len(seen) == 4
    assert all(texts == seen[0] and len(texts) == 7 for texts in seen)


def test_finished_cells_are_not_made_again(request_in):
    first = run_grid(request_in(), Runner(), RecordingProgress())
    runner, progress = Runner(), RecordingProgress()
    assert run_grid(request_in(), runner, progress) == first
    assert runner.ran == []
    assert progress.ended == [(name, "done", True) for name in NAMES]


def test_a_failed_cell_stops_no_other_and_is_tried_again(request_in):
    records = run_grid(request_in(), Runner(fails=[NAMES[1]]), RecordingProgress())
    assert [str(record.state) for record in records] == ["done", "failed", "done", "done"]
    assert records[1].error == "no such model"
    assert records[1].facts is None
    runner = Runner()
    again = run_grid(request_in(), runner, RecordingProgress())
    assert runner.ran == [NAMES[1]]
    assert {record.state for record in again} == {CellState.DONE}


def test_a_defect_is_recorded_by_type_and_place_without_its_message(request_in):
    failing = Runner(fails=NAMES, error=RuntimeError(f"bad text: {SECRET}"))
    records = run_grid(request_in(), failing, RecordingProgress())
    for record in records:
        assert record.error is not None
        assert record.error.startswith("RuntimeError at test_grid.py:")
        assert SECRET not in record.model_dump_json()


def test_an_interrupted_grid_goes_on_with_the_cell_it_stopped_in(request_in):
    stopped = Runner(fails=[NAMES[2]], error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_grid(request_in(), stopped, RecordingProgress())
    begun = request_in().out / "cells" / NAMES[2]
    assert read_cell_record(begun) is None
    assert (begun / "half").is_file()  # kept, for the trainer to go on from

    class Resuming(Runner):
        def __call__(self, work, progress):
            found.append((work.folder / "half").is_file())
            return super().__call__(work, progress)

    found = []
    runner = Resuming()
    run_grid(request_in(), runner, RecordingProgress())
    assert runner.ran == NAMES[2:]
    assert found == [True, False]


@pytest.mark.parametrize("damage", ["result", "record", "absent"])
def test_a_cell_whose_files_are_not_as_written_is_made_again(request_in, damage):
    run_grid(request_in(), Runner(), RecordingProgress())
    folder = request_in().out / "cells" / NAMES[0]
    if damage == "result":
        (folder / "report.json").write_text((folder / "report.json").read_text().replace("0.6", "0.9"))
    elif damage == "record":
        (folder / "cell.json").write_text("{")
    else:
        (folder / "report.json").unlink()
    runner = Runner()
    run_grid(request_in(), runner, RecordingProgress())
    assert runner.ran == [NAMES[0]]


def test_other_settings_or_texts_make_a_cell_again_from_nothing(request_in, tmp_path):
    run_grid(request_in(), Runner(), RecordingProgress())
    left = []

    def runner(work, progress):
        left.append((work.folder / "half").exists())
        return fake_cell()

    longer = small_grid(TOML.replace("max_tokens = 16", "max_tokens = 32"))
    run_grid(request_in(longer), runner, RecordingProgress())
    assert left == [False] * 4
    more = small_grid(TOML.replace("members = 4", "members = 5"))
    run_grid(request_in(more), runner, RecordingProgress())
    assert len(left) == 8


def test_a_data_set_that_is_not_to_be_had_fails_its_cells_alone(request_in):
    toml = TOML.replace(
        "[[techniques]]", '[[datasets]]\nname = "gone"\ndomain = "d"\npath = "gone.csv"\n[[techniques]]', 1
    )
    runner = Runner()
    records = run_grid(request_in(small_grid(toml)), runner, RecordingProgress())
    assert runner.ran == NAMES
    assert [str(record.state) for record in records] == ["done"] * 4 + ["failed"] * 4
    assert all("gone.csv" in (record.error or "") for record in records[4:])


def test_a_full_disk_stops_the_grid(request_in):
    out = request_in().out
    out.mkdir()
    (out / "cells").write_text("in the way")
    with pytest.raises(StorageError, match="choose another --out"):
        run_grid(request_in(), Runner(), RecordingProgress())


def test_beginning_again_keeps_what_the_same_cell_began(tmp_path):
    folder = tmp_path / "cell"
    begin_cell(folder, {"a": 1}, "x")
    (folder / "work").write_text("kept")
    begin_cell(folder, {"a": 1}, "x")
    assert (folder / "work").is_file()
    begin_cell(folder, {"a": 1}, "y")
    assert not (folder / "work").exists()


def test_the_source_revision_is_a_commit_or_nothing():
    revision = source_revision()
    assert revision is None or (len(revision) == 40 and int(revision, 16) >= 0)
