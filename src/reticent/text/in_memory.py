"""Corpora given as Python objects: texts, mappings, or a Hugging Face `datasets.Dataset`.

The same checks hold as for files, and errors name a record's number in place of file and line.
"""

from collections.abc import Iterable, Iterator, Mapping

from reticent.errors import CorpusError
from reticent.text.corpus import Corpus, RecordColumns, check_limit, collect_records
from reticent.text.fields import PLAIN, RecordLayout
from reticent.text.formats import PLAIN_TEXT_KEY, Row

TextRows = Iterable[str] | Iterable[Mapping[str, object]]
"""Texts, or records that hold the text under a key; a `datasets.Dataset` yields such records."""


def corpus_of_rows(
    rows: TextRows,
    *,
    text_key: str = PLAIN_TEXT_KEY,
    unit_key: str | None = None,
    limit: int | None = None,
    layout: RecordLayout = PLAIN,
) -> Corpus:
    """Make a corpus of texts or of records.

    Args:
        rows: the texts, or mappings that hold one under `text_key`.
        text_key: the key of the text in a mapping.
        unit_key: the key that names the privacy unit; by default each record is a unit of its own.
        limit: take at most this many records; blank texts are not counted.
        layout: the columns of a record, where there are several.

    Raises:
        CorpusError: the rows are no texts or mappings, one lacks a key, or no record is left.
        InvalidValueError: `limit` is not a positive integer.
    """
    check_limit(limit)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise CorpusError(
            f"a corpus is a path, a list of texts or records, or a dataset, and not one {type(rows).__name__}; "
            "for a single text give a list"
        )
    columns = RecordColumns(text_key, unit_key, layout)
    return collect_records(_rows(rows, columns.keys), "the corpus", columns, limit)


def _rows(rows: Iterable[object], keys: list[str]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        source = f"record {number}"
        yield Row(source, _values(source, row, keys))


def _values(source: str, row: object, keys: list[str]) -> Mapping[str, object]:
    if isinstance(row, str):
        if len(keys) > 1:
            raise CorpusError(
                f"{source}: a plain text names no other column; give records that hold {' and '.join(keys)}"
            )
        return {keys[0]: row}
    if not isinstance(row, Mapping):
        raise CorpusError(f"{source}: must be a text or a record with {keys[0]!r}, found {type(row).__name__}")
    missing = next((key for key in keys if key not in row), None)
    if missing is not None:
        names = ", ".join(sorted(map(str, row))) or "nothing"
        raise CorpusError(f"{source}: has no {missing!r}; it has {names}")
    return row
