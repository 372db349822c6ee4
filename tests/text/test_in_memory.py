"""Corpora of Python objects: the records that a file of the same content gives, and errors that name the record."""

import json
from types import MappingProxyType

import pytest

from reticent.errors import CorpusError, InvalidValueError
from reticent.text.corpus import corpus_hash, read_corpus
from reticent.text.in_memory import corpus_of_rows

ROWS = [
    {"text": "erster Brief", "owner": "J\u00f6rg", "year": 3},
    {"text": "  ", "owner": "nobody"},
    {"text": "second letter", "owner": "Jo\u0308rg "},
    {"text": "third letter", "owner": 12},
]


@pytest.mark.parametrize("unit_key", [None, "owner"])
@pytest.mark.parametrize("limit", [None, 2])
def test_records_are_those_of_a_file_of_the_same_rows(tmp_path, unit_key, limit):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    of_file = read_corpus(path, unit_key=unit_key, limit=limit)
    of_rows = corpus_of_rows(map(MappingProxyType, ROWS), unit_key=unit_key, limit=limit)
    assert corpus_hash(of_rows.records) == corpus_hash(of_file.records)
    assert (of_rows.skipped_blank, of_rows.respelled_units) == (of_file.skipped_blank, of_file.respelled_units)
    assert [record.source for record in of_rows.records][:2] == ["record 1", "record 3"]


def test_texts_are_records_of_their_own():
    records = corpus_of_rows(["one", "two"]).records
    assert [(record.text, record.unit) for record in records] == [("one", "0"), ("two", "1")]


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (["fine", 7], {}, "record 2.*int"),
        ([{"body": "x"}], {}, "record 1.*'text'.*body"),
        ([{"text": "x"}], {"unit_key": "owner"}, "record 1.*'owner'"),
        (["plain"], {"unit_key": "owner"}, "record 1.*text and owner"),
        ([{"text": 7}], {}, "record 1.*text"),
        ([{"text": "half \ud800"}], {}, "record 1.*surrogate"),
        ([{"text": "x", "owner": None}], {"unit_key": "owner"}, "record 1.*unit"),
        (["", "  "], {}, "no records.*2 with blank"),
        ("one text", {}, "give a list"),
        ({"text": "one record"}, {}, "give a list"),
        (None, {}, "NoneType"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_number_and_never_quoted(rows, options, words):
    with pytest.raises(CorpusError, match=words) as caught:
        corpus_of_rows(rows, **options)
    assert "plain" not in str(caught.value).replace("a plain text", "")


def test_a_limit_of_no_records_is_refused():
    with pytest.raises(InvalidValueError, match="limit"):
        corpus_of_rows(["one"], limit=0)
