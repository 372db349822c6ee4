"""Where a corpus may come from: arrays, zstd, patterns, saved datasets, standard input, and what is wrong with one."""

import json
import subprocess
import sys

import pyarrow as pa
import pytest

from reticent.errors import CorpusError
from reticent.text.corpus import read_corpus
from reticent.text.formats import read_rows

TEXTS = ["one of the texts", "two\nlines", "größer 東京 🩺"]
ROWS = [{"text": text, "n": n} for n, text in enumerate(TEXTS)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def texts(path):
    return [record.text for record in read_corpus(path).records]


def save_dataset(folder, rows, parts=2):
    """What `Dataset.save_to_disk` writes, without the package: Arrow streams, and a state that names them."""
    folder.mkdir()
    names = [f"data-{part:05d}-of-{parts:05d}.arrow" for part in range(parts)]
    for part, name in enumerate(names):
        table = pa.Table.from_pylist(rows[part::parts])
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def test_an_array_of_objects_is_read_in_order(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    assert texts(tmp_path / "rows.json") == TEXTS
    assert next(read_rows(tmp_path / "rows.json", ["text"])).source.endswith("rows.json:1")


def test_zstd_is_read_by_its_name(tmp_path):
    plain = tmp_path / "rows.jsonl"
    plain.write_bytes(lines(ROWS))
    with pa.OSFile(str(tmp_path / "rows.jsonl.zst"), "wb") as sink, pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(plain.read_bytes())
    assert texts(tmp_path / "rows.jsonl.zst") == TEXTS


def test_files_that_match_a_pattern_are_one_corpus(tmp_path):
    for n, row in enumerate(ROWS):
        (tmp_path / f"part-{n}.jsonl").write_bytes(lines([row]))
    (tmp_path / "other.jsonl").write_bytes(lines([{"text": "another"}]))
    assert texts(tmp_path / "part-*.jsonl") == TEXTS
    with pytest.raises(CorpusError, match="no file matches"):
        texts(tmp_path / "none-*.jsonl")


def test_a_saved_dataset_is_read_part_by_part(tmp_path):
    folder = save_dataset(tmp_path / "saved", ROWS)
    assert texts(folder) == [TEXTS[0], TEXTS[2], TEXTS[1]]
    with pytest.raises(CorpusError, match="there is no key 'body'; the keys present are 'text', 'n'"):
        read_corpus(folder, text_key="body")
    (folder / "data-00001-of-00002.arrow").write_bytes(b"x")
    with pytest.raises(CorpusError, match="not a readable saved dataset"):
        texts(folder)


def test_standard_input_is_jsonl():
    program = "from reticent.text.corpus import read_corpus; print([r.text for r in read_corpus('-').records])"
    done = subprocess.run([sys.executable, "-c", program], input=lines(ROWS), capture_output=True, check=True)
    assert done.stdout.decode().strip() == str(TEXTS)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.json", b"{}", "expected a JSON array of objects, found dict"),
        ("rows.json", b'[{"text": "a"}, 3]', "rows.json:2: expected a JSON object, found int"),
        ("rows.json", b'[{"text": "a", "text": "b"}]', "the key 'text' appears twice"),
        ("rows.json", b'[{"text": ', "malformed JSON"),
        ("rows.jsonl.zst", b"not compressed", "not valid zstd data"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=words):
        texts(tmp_path / name)
