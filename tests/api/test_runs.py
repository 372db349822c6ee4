"""Building from paths, texts, records and data sets: the same worlds, the same refusals, and builds that resume."""

import json

import numpy as np
import pytest
from api.small_texts import TEXTS, TRAINING

import reticent
from reticent.errors import CorpusError, InvalidValueError, OutputExistsError, RunDirectoryError


class Dataset:
    """As `datasets.Dataset` is iterated: a row at a time, each a mapping of columns."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return len(self._rows)

    def __iter__(self):
        yield from self._rows


class Notes:
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)

    def begin(self, what, num_tokens):
        self.lines.append(what)

    def advance(self, num_tokens):
        pass


ROWS = [{"body": text, "patient": f"p{number // 2}"} for number, text in enumerate(TEXTS)]


def test_a_path_texts_and_a_data_set_make_the_same_worlds(built, tmp_path, tiny_llama_folder):
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    of_path = reticent.build_worlds(
        str(path), model=tiny_llama_folder, worlds=4, out=tmp_path / "of-path", options=TRAINING
    )
    of_dataset = reticent.build_worlds(
        Dataset(ROWS), text_key="body", model=tiny_llama_folder, worlds=4, out=tmp_path / "of-rows", options=TRAINING
    )
    assert of_path.manifest.files == of_dataset.manifest.files == built.manifest.files
    assert of_path.manifest.corpus == of_dataset.manifest.corpus == built.manifest.corpus


def test_records_of_one_owner_travel_together(tmp_path, tiny_llama_folder):
    run = reticent.build_worlds(
        ROWS, text_key="body", unit_key="patient", model=tiny_llama_folder, worlds=4, out=tmp_path / "run",
        options=TRAINING,
    )  # fmt: skip
    assert run.manifest.corpus.num_units == 2
    members = np.load(run.folder / "membership.npz")
    rows = members["members"][members["unit_of_record"]]
    assert (rows[0] == rows[1]).all()
    assert (rows[2] == rows[3]).all()


def test_a_build_of_objects_resumes_and_refuses_other_objects(tmp_path, tiny_llama_folder, monkeypatch):
    from reticent.worlds import build

    def stop(*_arguments, **_options):
        raise KeyboardInterrupt

    out = tmp_path / "run"

    def begin(texts, *, resume):
        return reticent.build_worlds(texts, model=tiny_llama_folder, worlds=4, out=out, options=TRAINING, resume=resume)

    with monkeypatch.context() as patched:
        patched.setattr(build, "write_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            begin(TEXTS, resume=False)
    with pytest.raises(OutputExistsError):
        begin(TEXTS, resume=False)
    with pytest.raises(RunDirectoryError):
        begin([*TEXTS, "one more of them"], resume=True)
    assert begin(TEXTS, resume=True).num_worlds == 4
    assert begin(iter(TEXTS), resume=True).num_worlds == 4


def test_progress_is_reported_to_who_asks(tmp_path, tiny_llama_folder):
    notes = Notes()
    reticent.build_worlds(
        ["x" * 40, *TEXTS], model=tiny_llama_folder, worlds=2, out=tmp_path / "run", options=TRAINING, progress=notes
    )
    assert "adapters" in notes.lines
    assert any("were cut" in line for line in notes.lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adapt_layers": "some"}, "top:K"),
        ({"preset": "wild"}, "plain, stable"),
        ({"assignment": "unknowable"}, "overlapping"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"rank": 0}, "rank"),
        ({"dtype": "float8"}, "dtype"),
    ],
)
def test_a_setting_out_of_range_is_named_and_nothing_written(tmp_path, tiny_llama_folder, changes, words):
    with pytest.raises(InvalidValueError, match=words):
        reticent.build_worlds(
            TEXTS, model=tiny_llama_folder, out=tmp_path / "run", options=reticent.BuildOptions(**changes)
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("corpus", ["one text given as a corpus", [], [7], ["fine", b"bytes"], 7])
def test_what_is_no_corpus_is_refused(tmp_path, tiny_llama_folder, corpus):
    with pytest.raises(CorpusError):
        reticent.build_worlds(corpus, model=tiny_llama_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_shown_by_what_it_is_and_opened_verified(run):
    assert repr(run).startswith(f"Run({str(run.folder)!r}, 4 worlds over ")
    assert reticent.open_run(str(run.folder)).manifest == run.manifest
    with (run.folder / "worlds.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(RunDirectoryError, match=r"worlds\.safetensors"):
        reticent.open_run(run.folder)
