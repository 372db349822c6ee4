"""Private corpora: reading them, and grouping their records into privacy units.

Formats, recognised by the file's suffix, each also compressed (`.gz` or `.zst` appended):

    .jsonl     one JSON object a line
    .json      one array of JSON objects
    .csv       a header row, then one record a row (RFC 4180 quoting)
    .parquet   one record a row
    .txt       one record
    a folder   one record for each .txt or .txt.gz file below it, in order of the relative path; or, if the package
               `datasets` saved it, its rows
    a pattern  such as `notes-*.jsonl`: the files that match, in order of their names
    -          JSONL on standard input

Text is UTF-8 (a leading byte-order mark is dropped). Errors name the file and the line and never quote a text, so that
they can be logged where the corpus could not be.

A privacy unit is what the guarantee protects: it is in a world as a whole or not at all. The prior of one half on a
unit's membership would be a fiction if its text also sat in another unit, so near-duplicates share one: of whole texts,
and of what is left of them for training once they are cut.

Unit names are compared in Unicode form NFKC and without outer white space. An owner whose name is written in two of
Unicode's ways is one owner; two owners taken for one share a world, which protects both no less.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent.errors import CorpusError
from reticent.text.chats import MESSAGES_COLUMN, conversation_record, read_messages
from reticent.text.deduplication import DisjointSets, join_near_duplicates
from reticent.text.fields import PLAIN, TEXT_COLUMN, RecordLayout, readable_text, refuse_marks
from reticent.text.formats import PLAIN_TEXT_KEY, Row, read_rows

NEAR_DUPLICATE_THRESHOLD = 0.8


@dataclass(frozen=True)
class TextRecord:
    """One private text.

    Attributes:
        text: the text, not blank; a record of several columns as `reticent.text.fields` writes it.
        unit: the privacy unit it belongs to before near-duplicates are merged; its name as names are compared.
        source: where it was read, "file:line" (a row number in Parquet, the file alone for plain text) or its number in
            a list, for messages.
    """

    text: str
    unit: str
    source: str


@dataclass(frozen=True)
class Corpus:
    """The records of a corpus in order.

    Attributes:
        records: the records.
        skipped_blank: how many blank texts were left out.
        respelled_units: how many spellings of unit names were taken for another's, from which they differ by Unicode
            form or outer white space alone.
        ignored_messages: how many messages of conversations were left out: those of tools, and those that call one.
    """

    records: tuple[TextRecord, ...]
    skipped_blank: int
    respelled_units: int = 0
    ignored_messages: int = 0


@dataclass(frozen=True)
class Units:
    """A partition of the records into privacy units.

    Attributes:
        unit_of_record: int64[records]; units are numbered from 0 in order of their first record.
        num_units: the number of units.
        merged: how many units disappeared into another because texts in both are near-duplicates.
        merged_once_cut: how many of these because of texts that are near-duplicates only as they are trained on, cut.
    """

    unit_of_record: NDArray[np.int64]
    num_units: int
    merged: int
    merged_once_cut: int = 0


def read_corpus(
    path: str | Path,
    *,
    text_key: str = PLAIN_TEXT_KEY,
    unit_key: str | None = None,
    limit: int | None = None,
    layout: RecordLayout = PLAIN,
) -> Corpus:
    """Read a corpus file or folder.

    Args:
        path: a file in one of the formats above, or a folder of text files.
        text_key: the key or column that holds the text.
        unit_key: the key or column that names the privacy unit (text or an integer); by default each record is a unit
            of its own, named by its position.
        limit: read at most this many records; blank texts are not counted.
        layout: the columns of a record, where there are several; a value of null in one that is not the main column is
            blank, and a whole number is written out.

    Raises:
        CorpusError: the corpus is missing, empty, malformed, not UTF-8 or of an unknown format, a key is absent, a
            text is not a string, a unit is not named, or no record is left.
        InvalidValueError: `limit` is not a positive integer.
    """
    check_limit(limit)
    columns = RecordColumns(text_key, unit_key, layout)
    return collect_records(read_rows(Path(path), columns.keys), f"{path}", columns, limit)


def check_limit(limit: int | None) -> None:
    """Refuse a limit on the number of records that is not a positive integer; None is no limit."""
    if limit is not None:
        _validate.integer_in_range("limit", limit, 1)


@dataclass(frozen=True)
class RecordColumns:
    """The keys of a row that a record is made of.

    Attributes:
        text_key: the key of the text.
        unit_key: the key of the privacy unit, or None.
        layout: the columns of a record.
    """

    text_key: str = PLAIN_TEXT_KEY
    unit_key: str | None = None
    layout: RecordLayout = PLAIN

    @property
    def keys(self) -> list[str]:
        """All keys that a row must have, each once."""
        own = [self._key(column) for column in self.layout.columns]
        return list(dict.fromkeys(own if self.unit_key is None else [*own, self.unit_key]))

    def record(self, row: Row) -> tuple[str, int]:
        """The record that a row holds, empty where it is blank, and how many messages of it are ignored.

        Raises:
            CorpusError: a value is no text.
        """
        if self.layout.columns == (MESSAGES_COLUMN,):
            fields, num_ignored = read_messages(row.source, row.values[MESSAGES_COLUMN])
            own = tuple((role, _text(row.source, MESSAGES_COLUMN, text)) for role, text in fields)
            return conversation_record(own), num_ignored
        values = {}
        for column in self.layout.columns:
            key = self._key(column)
            value = row.values[key]
            if column != self.layout.main:
                value = _other_column(value)
            values[column] = _text(row.source, key, value)
        return self.layout.record(values), 0

    def _key(self, column: str) -> str:
        return self.text_key if column == TEXT_COLUMN else column


def collect_records(rows: Iterable[Row], name: str, columns: RecordColumns, limit: int | None) -> Corpus:
    """Make a corpus of rows, each of which has the wanted keys; errors are those of `read_corpus`.

    Args:
        rows: the rows, in order.
        name: of the corpus, for messages.
        columns: the keys of text and unit.
        limit: the most records, or None.
    """
    records: list[TextRecord] = []
    spellings: set[str] = set()
    skipped_blank = ignored_messages = 0
    unit_key = columns.unit_key
    for row in rows:
        text, num_ignored = columns.record(row)
        ignored_messages += num_ignored
        if not text.strip():
            skipped_blank += 1
            continue
        spelling = str(len(records)) if unit_key is None else _unit(row.source, unit_key, row.values[unit_key])
        spellings.add(spelling)
        records.append(TextRecord(text, unicodedata.normalize("NFKC", spelling).strip(), row.source))
        if len(records) == limit:
            break
    if not records:
        raise CorpusError(f"{name}: no records to read ({skipped_blank} with blank text)")
    respelled = len(spellings) - len({record.unit for record in records})
    return Corpus(tuple(records), skipped_blank, respelled, ignored_messages)


def group_units(
    records: Sequence[TextRecord],
    threshold: float = NEAR_DUPLICATE_THRESHOLD,
    texts_as_trained: Sequence[str] | None = None,
) -> Units:
    """Partition records into units: those that share a unit name, and those whose texts are near-duplicates.

    Both relations are closed transitively, so that no near-duplicate pair found lies across two units. See
    `reticent.text.deduplication` for what counts as one and how surely it is found.

    Args:
        records: the records of a corpus.
        threshold: least Jaccard index, in (0, 1], of near-duplicates.
        texts_as_trained: what a model is trained on of each record, cut; compared as the whole texts are.

    Raises:
        CorpusError: fewer than two units are left.
        InvalidValueError: the threshold is outside (0, 1].
    """
    sets = DisjointSets(len(records))
    first_of_unit: dict[str, int] = {}
    for position, record in enumerate(records):
        sets.join(first_of_unit.setdefault(record.unit, position), position)
    texts = [readable_text(record.text) for record in records]
    join_near_duplicates(sets, texts, threshold)
    num_units = num_whole = sets.count()
    if texts_as_trained is not None and list(texts_as_trained) != texts:
        join_near_duplicates(sets, texts_as_trained, threshold)
        num_units = sets.count()
    merged = len(first_of_unit) - num_units
    if num_units < 2:
        raise CorpusError(
            f"{len(records)} record(s) make {num_units} privacy unit(s), {merged} merged as near-duplicates"
            f"{f', {num_whole - num_units} of them once cut' if num_whole > num_units else ''}; "
            "at least 2 are needed: add records, or choose another unit key"
        )
    number_of_root: dict[int, int] = {}
    numbers = [number_of_root.setdefault(sets.find(position), len(number_of_root)) for position in range(len(records))]
    unit_of_record = np.array(numbers, dtype=np.int64)
    unit_of_record.flags.writeable = False
    return Units(unit_of_record, num_units, merged, num_whole - num_units)


def name_units(records: Sequence[TextRecord]) -> Units:
    """Partition records into units by name alone: near-duplicates stay apart, so that no unit can move another."""
    numbers: dict[str, int] = {}
    unit_of_record = np.array([numbers.setdefault(record.unit, len(numbers)) for record in records], dtype=np.int64)
    unit_of_record.flags.writeable = False
    return Units(unit_of_record, len(numbers), merged=0)


def grouping_notes(corpus: Corpus, units: Units) -> list[str]:
    """Sentences for whoever builds on a corpus about units that were taken for one; none where none were."""
    notes = []
    if corpus.ignored_messages:
        notes.append(f"{corpus.ignored_messages} messages of tools, or of an assistant that calls one, are left out")
    if corpus.respelled_units:
        notes.append(
            f"{corpus.respelled_units} spellings of unit names differ from others by Unicode form or outer white space "
            "alone and name the same units"
        )
    if units.merged:
        cut = f", {units.merged_once_cut} of them only as they are cut for training" if units.merged_once_cut else ""
        notes.append(f"{units.merged} units merged into others because their texts are near-duplicates{cut}")
    return notes


def text_hash(text: str) -> str:
    """Return the SHA-256 of a text's UTF-8, in hexadecimal: the name of a text wherever it must not be quoted."""
    return hashlib.sha256(text.encode()).hexdigest()


def corpus_hash(records: Sequence[TextRecord]) -> str:
    """Return the SHA-256 of the records' texts and unit names in order, in hexadecimal; sources do not enter.

    Each length precedes what it describes, so no two different lists have the same encoding.
    """
    digest = hashlib.sha256(b"reticent corpus 1\n")
    _update_with_length_prefixed(digest, (part for record in records for part in (record.text, record.unit)))
    return digest.hexdigest()


def units_hash(units: Units) -> str:
    """Return the SHA-256 of the partition (the unit of each record, in order), in hexadecimal."""
    digest = hashlib.sha256(b"reticent units 1\n")
    digest.update(units.unit_of_record.astype("<i8").tobytes())
    return digest.hexdigest()


def _update_with_length_prefixed(digest: "hashlib._Hash", parts: Iterable[str]) -> None:
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)


def _other_column(value: object) -> object:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text(source: str, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise CorpusError(f"{source}: the value of {key!r} must be text, found {type(value).__name__}")
    refuse_marks(source, value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{source}: the text holds half of a surrogate pair; write it as UTF-8 again") from error
    return value


def _unit(source: str, key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise CorpusError(f"{source}: the unit {key!r} must be text or an integer, found {type(value).__name__}")
    unit = _text(source, key, str(value))
    if not unit.strip():
        raise CorpusError(f"{source}: the unit {key!r} is blank; name the unit of every record")
    return unit
