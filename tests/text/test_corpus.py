"""Corpora: every format, every bad input, hashes."""

import csv
import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reticent.errors import CorpusError, InvalidValueError
from reticent.text.corpus import (
    Corpus,
    TextRecord,
    Units,
    corpus_hash,
    group_units,
    grouping_notes,
    read_corpus,
    units_hash,
)

TEXTS = ['a "quoted", comma', "two\nlines", "größer 東京 🩺", "plain"]
OWNERS = ["p1", "p2", "p1", "p3"]


def jsonl_bytes(texts, **columns):
    rows = [{"text": text, **{key: column[i] for key, column in columns.items()}} for i, text in enumerate(texts)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def csv_bytes(texts, **columns):
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    writer.writerow(["text", *columns])
    writer.writerows(zip(texts, *columns.values(), strict=True))
    return buffer.getvalue().encode()


def parquet_bytes(texts, **columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": texts, **columns}), buffer)
    return buffer.getvalue()


ENCODERS = {".jsonl": jsonl_bytes, ".csv": csv_bytes, ".parquet": parquet_bytes}


def write(path, data, zipped=False):
    path = path.with_name(path.name + ".gz") if zipped else path
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def texts_of(corpus):
    return [record.text for record in corpus.records]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("suffix", ENCODERS)
def test_tabular_formats_round_trip_and_agree(tmp_path, suffix, zipped):
    path = write(tmp_path / f"corpus{suffix}", ENCODERS[suffix](TEXTS, owner=OWNERS), zipped)
    corpus = read_corpus(path, unit_key="owner")
    assert texts_of(corpus) == TEXTS
    assert [record.unit for record in corpus.records] == OWNERS
    assert corpus.skipped_blank == 0
    assert all(record.source.startswith(f"{path}:") for record in corpus.records)


@pytest.mark.parametrize("zipped", [False, True])
def test_text_folder_is_read_recursively_in_name_order(tmp_path, zipped):
    (tmp_path / "b").mkdir()
    for name, text in zip(["a.txt", "b/a.txt", "b/z.txt", "c.txt"], TEXTS, strict=True):
        write(tmp_path / name, text.encode(), zipped)
    (tmp_path / "notes.md").write_text("not read")
    assert texts_of(read_corpus(tmp_path)) == TEXTS


def test_single_text_file_is_one_record(tmp_path):
    path = write(tmp_path / "only.txt", b"\xef\xbb\xbfone\ndocument", zipped=True)
    assert read_corpus(path) == Corpus((TextRecord("one\ndocument", "0", str(path)),), 0)


def test_sources_give_the_first_line_of_each_record(tmp_path):
    path = write(tmp_path / "corpus.csv", csv_bytes(TEXTS))
    assert [record.source for record in read_corpus(path).records] == [f"{path}:{line}" for line in (2, 3, 5, 6)]
    path = write(tmp_path / "corpus.jsonl", b"\n" + jsonl_bytes(["a", "b"]))
    assert [record.source for record in read_corpus(path).records] == [f"{path}:2", f"{path}:3"]


def test_each_record_is_its_own_unit_by_default(tmp_path):
    path = write(tmp_path / "corpus.jsonl", jsonl_bytes(["a", " ", "b"]))
    assert [record.unit for record in read_corpus(path).records] == ["0", "1"]


def test_blank_texts_are_skipped_counted_and_outside_the_limit(tmp_path):
    path = write(tmp_path / "corpus.jsonl", jsonl_bytes(["", "a", " \n", "b", "c", ""]))
    assert read_corpus(path).skipped_blank == 3
    limited = read_corpus(path, limit=2)
    assert texts_of(limited) == ["a", "b"]
    assert limited.skipped_blank == 2


def test_byte_order_mark_other_keys_integer_units_and_long_csv_fields(tmp_path):
    path = write(tmp_path / "corpus.JSONL", b'\xef\xbb\xbf{"body": "a", "owner": 7}\r\n{"body": "b", "owner": "7"}')
    assert [record.unit for record in read_corpus(path, text_key="body", unit_key="owner").records] == ["7", "7"]
    path = write(tmp_path / "corpus.csv", b"\xef\xbb\xbf" + csv_bytes(["x" * 200_000]))
    assert texts_of(read_corpus(path)) == ["x" * 200_000]


def bad_parquet_text():
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32))
    column = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff"))
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": column}), buffer)
    return buffer.getvalue()


def twice_parquet(key):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=["text", "owner", key]), buffer)
    return buffer.getvalue()


GOOD = jsonl_bytes(["a", "b"])
BAD_FILES = {
    "empty.jsonl": (b"", "empty.jsonl: the file is empty"),
    "empty.csv.gz": (b"", "empty.csv.gz: the file is empty"),
    "blank.jsonl": (b"\n\n", "no records"),
    "blank.txt": (b" \n", r"no records to read \(1 with blank text\)"),
    "zipped.jsonl.gz": (gzip.compress(b""), "no records"),
    "header.csv": (b"text\n", "no records"),
    "rows.parquet": (parquet_bytes([]), "no key 'text'|no records"),
    "latin.jsonl": (GOOD + b'{"text": "caf\xe9"}\n', r"latin.jsonl:3: not UTF-8 \(byte 0xe9\)"),
    "latin.csv": (b'text\n"x\ncaf\xe9"\n', "latin.csv:3: not UTF-8"),
    "latin.txt": (b"one\ntwo\nr\xe9sum\xe9\n", "latin.txt:3: not UTF-8"),
    "latin.txt.gz": (gzip.compress(b"one\ncaf\xe9"), "latin.txt.gz:2: not UTF-8"),
    "latin.parquet": (bad_parquet_text(), "latin.parquet:2: the text is not UTF-8"),
    "cut.jsonl": (GOOD + b'{"text": "tail', "cut.jsonl:3: malformed JSON, .* at column"),
    "number.jsonl": (b'{"text": ' + b"9" * 5000 + b"}", "number.jsonl:1: malformed JSON"),
    "list.jsonl": (GOOD + b"[1]", "list.jsonl:3: expected a JSON object, found list"),
    "quote.csv": (b'text\nok\n"open', "quote.csv:3: malformed CSV"),
    "ragged.csv": (b"id,text\n1,ok\n2\n", "ragged.csv:3: malformed CSV, 1 fields where the header has 2"),
    "twice.csv": (b"text,text\na,b\n", "twice.csv:1: the column 'text' appears more than once"),
    "twice.parquet": (twice_parquet("text"), "twice.parquet: the column 'text' appears more than once; rename"),
    "twice.jsonl": (GOOD + b'{"text": "a", "text": "b"}', "twice.jsonl:3: the key 'text' appears twice in one object"),
    "within.jsonl": (GOOD + b'{"text": "a", "n": {"k": 1, "k": 1}}', "within.jsonl:3: the key 'k' appears twice"),
    "escaped.jsonl": (rb'{"text": "a", "te\u0078t": "b"}', "escaped.jsonl:1: the key 'text' appears twice"),
    "nanoseconds.parquet": (parquet_bytes(pa.array([1], pa.timestamp("ns"))), "nanoseconds.parquet:1: .*text"),
    "junk.parquet": (b"PAR1 this is not parquet PAR1", "junk.parquet: not a readable Parquet file"),
    "cut.parquet": (parquet_bytes(["a", "b"])[:-9], "cut.parquet: not a readable Parquet file"),
    "not.jsonl.gz": (GOOD, "not.jsonl.gz: not valid gzip data"),
    "cut.jsonl.gz": (gzip.compress(GOOD)[:-12], "cut.jsonl.gz: the gzip data end early"),
    "cut.parquet.gz": (gzip.compress(parquet_bytes(["a"]))[:-12], "cut.parquet.gz: the gzip data end early"),
    "flip.txt.gz": (gzip.compress(b"a")[:10] + b"\xff" * 20, "flip.txt.gz: not valid gzip data"),
    "keys.jsonl": (GOOD + b'{"body": "x", "id": 1}', "keys.jsonl:3: there is no key 'text'; .* 'body', 'id'"),
    "keys.csv": (b"id,body\n1,x\n", "keys.csv:1: there is no key 'text'; .* 'id', 'body'"),
    "keys.parquet": (parquet_bytes(["a"]).replace(b"text", b"body"), "keys.parquet: .*(no key 'text'|not a readable)"),
    "null.jsonl": (b'{"text": null}', "null.jsonl:1: the value of 'text' must be text, found NoneType"),
    "int.parquet": (parquet_bytes([3]), "int.parquet:1: the value of 'text' must be text, found int"),
    "half.jsonl": (rb'{"text": "\ud83d"}', "half.jsonl:1: the text holds half of a surrogate pair"),
    "corpus.docx": (b"PK", "corpus.docx: unknown corpus format; .*jsonl, .json, .csv, .parquet, .txt"),
    "corpus": (b"text", "corpus: unknown corpus format"),
    "corpus.gz": (gzip.compress(GOOD), "corpus.gz: unknown corpus format"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_is_named_with_its_line(tmp_path, name):
    data, message = BAD_FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=message) as caught:
        read_corpus(path)
    assert str(path) in str(caught.value)


def test_missing_path_and_folder_without_texts(tmp_path):
    with pytest.raises(CorpusError, match="no such file or folder"):
        read_corpus(tmp_path / "absent.jsonl")
    with pytest.raises(CorpusError, match=r"holds no \.txt"):
        read_corpus(tmp_path)


@pytest.mark.parametrize(
    ("unit", "message"),
    [("null", "found NoneType"), ("1.5", "found float"), ("true", "found bool"), ('" "', "is blank")],
)
def test_unusable_unit_is_refused(tmp_path, unit, message):
    path = write(tmp_path / "corpus.jsonl", f'{{"text": "a", "owner": {unit}}}'.encode())
    with pytest.raises(CorpusError, match=rf"corpus.jsonl:1: the unit 'owner' .*{message}"):
        read_corpus(path, unit_key="owner")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("twice.jsonl", b'{"text": "a", "owner": "1", "owner": "2"}'),
        ("twice.csv", b"text,owner,owner\na,1,2\n"),
        ("twice.parquet", twice_parquet("owner")),
    ],
)
def test_a_unit_key_that_stands_twice_is_refused_in_every_format(tmp_path, name, data):
    with pytest.raises(CorpusError, match=rf"{name}(:1)?: the (key|column) 'owner' appears"):
        read_corpus(write(tmp_path / name, data), unit_key="owner")


def test_a_column_that_nobody_asked_for_may_stand_twice_in_a_table(tmp_path):
    assert texts_of(read_corpus(write(tmp_path / "a.parquet", twice_parquet("owner")))) == ["a"]
    assert texts_of(read_corpus(write(tmp_path / "a.csv", b"text,x,x\na,1,2\n"))) == ["a"]


def test_unit_names_that_differ_by_unicode_form_or_outer_white_space_are_one_owner(tmp_path):
    owners = ["Jos\u00e9", "Jose\u0301", "1", "1 ", "\u00a01", "\uff11", "2", "Jose"]
    path = write(tmp_path / "corpus.jsonl", jsonl_bytes([f"text {i}" for i in range(8)], patient=owners))
    corpus = read_corpus(path, unit_key="patient")
    assert [record.unit for record in corpus.records] == ["Jos\u00e9"] * 2 + ["1"] * 4 + ["2", "Jose"]
    assert corpus.respelled_units == 4
    units = group_units(corpus.records)
    assert units.unit_of_record.tolist() == [0, 0, 1, 1, 1, 1, 2, 3]
    (note,) = grouping_notes(corpus, units)
    assert note.startswith("4 spellings of unit names differ from others by Unicode form or outer white space alone")
    assert "Jos" not in note


def test_absent_unit_key_lists_the_keys(tmp_path):
    path = write(tmp_path / "corpus.jsonl", jsonl_bytes(["a"], id=["1"]))
    with pytest.raises(CorpusError, match="no key 'owner'; the keys present are 'text', 'id'"):
        read_corpus(path, unit_key="owner")
    with pytest.raises(CorpusError, match="no key 'owner'; the keys present are 'text'"):
        read_corpus(write(tmp_path / "a.txt", b"a"), unit_key="owner")


def test_errors_never_quote_a_text(tmp_path):
    secret = "SECRET diagnosis"
    for name, data in {
        "a.jsonl": f'{{"text": "{secret}" oops}}'.encode(),
        "b.csv": f'text\n"{secret}" oops\n'.encode(),
        "c.jsonl": f'{{"text": ["{secret}"]}}'.encode(),
        "d.jsonl": f'{{"text": "{secret}\xe9"}}'.encode("latin-1"),
    }.items():
        path = write(tmp_path / name, data)
        with pytest.raises(CorpusError) as caught:
            read_corpus(path)
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_limit_must_be_a_positive_integer(tmp_path, limit):
    with pytest.raises(InvalidValueError, match="limit"):
        read_corpus(tmp_path, limit=limit)


def records(*pairs):
    return [TextRecord(text, unit, "") for text, unit in pairs]


def test_corpus_hash_separates_lists_that_concatenate_alike():
    lists = [
        records(("ab", "c")),
        records(("a", "bc")),
        records(("a", "b"), ("c", "")),
        records(("c", ""), ("a", "b")),
        records(("a", "b"), ("", "c")),
        [],
    ]
    assert len({corpus_hash(one) for one in lists}) == len(lists)
    assert corpus_hash([TextRecord("a", "b", "here")]) == corpus_hash([TextRecord("a", "b", "there")])


def test_units_hash_depends_on_the_partition_alone():
    first = group_units(records(("one", "x"), ("two", "y"), ("three", "x")))
    renamed = group_units(records(("un", "1"), ("deux", "2"), ("trois", "1")))
    other = group_units(records(("one", "x"), ("two", "y"), ("three", "y")))
    assert units_hash(first) == units_hash(renamed) != units_hash(other)
    assert units_hash(Units(first.unit_of_record.astype(np.int32), 2, 0)) == units_hash(first)
