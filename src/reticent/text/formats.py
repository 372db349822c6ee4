"""The file formats of a corpus, each read as a stream of rows: the one place where corpus files are touched.

Every reader yields `Row`s that hold at least the wanted keys, and raises `CorpusError` with file and line for whatever
it cannot read, or could read in two ways: a key that occurs twice in a row. No message quotes a text.
"""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from reticent.errors import CorpusError

PLAIN_TEXT_KEY = "text"
"""The only key of a plain text file."""

STANDARD_INPUT = "-"
"""The name of a corpus that is JSONL on standard input."""
_SAVED_STATE = "state.json"
_BYTE_ORDER_MARK = "\ufeff"
_MAX_CSV_FIELD = 2**31 - 1
"""Documents outgrow the csv module's default limit of 131,072 characters; this is the most a C long always holds."""


@dataclass(frozen=True)
class Row:
    """One record as read: its place ("file:line") and its values by key."""

    source: str
    values: Mapping[str, object]


def read_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a corpus file or folder in order; the suffix names the format.

    Args:
        path: a file in one of the formats of `reticent.text.corpus`, or a folder of text files.
        keys: the keys every row must have; with none, a row has all that are there.

    Raises:
        CorpusError: the path is missing, empty, of an unknown format or damaged, or a row lacks one of the keys.
    """
    if str(path) == STANDARD_INPUT:
        yield from _jsonl_rows(path, keys)
        return
    if path.is_dir():
        is_saved = (path / _SAVED_STATE).is_file()
        yield from (_saved_rows if is_saved else _folder_rows)(path, keys)
        return
    if not path.exists() and any(mark in path.name for mark in "*?["):
        yield from _matching_rows(path, keys)
        return
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder; check the corpus path")
    read = _reader(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from error
    if not path.is_file() or size == 0:
        raise CorpusError(f"{path}: the file is empty; a corpus needs at least two records")
    yield from read(path, keys)


def _reader(path: Path) -> Callable[[Path, Sequence[str]], Iterator[Row]]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst"):
        suffixes.pop()
    read = _READERS.get(suffixes[-1]) if suffixes else None
    if read is None:
        supported = ", ".join(_READERS)
        raise CorpusError(
            f"{path}: unknown corpus format; name the file {supported} (each may be compressed: .gz or "
            ".zst appended), or give a folder of .txt files or a saved dataset"
        )
    return read


def _folder_rows(folder: Path, keys: Sequence[str]) -> Iterator[Row]:
    files = (file for file in folder.rglob("*") if file.name.lower().endswith((".txt", ".txt.gz")) and file.is_file())
    in_order = sorted(files, key=lambda file: file.relative_to(folder).as_posix())
    if not in_order:
        raise CorpusError(f"{folder}: the folder holds no .txt or .txt.gz file; give a file instead, or text files")
    for file in in_order:
        yield from _text_rows(file, keys)


def _matching_rows(pattern: Path, keys: Sequence[str]) -> Iterator[Row]:
    """The rows of all files that match a pattern in their last part, in order of their names."""
    files = sorted(file for file in pattern.parent.glob(pattern.name) if file.is_file())
    if not files:
        raise CorpusError(f"{pattern}: no file matches; check the pattern, and quote it for the shell")
    for file in files:
        yield from read_rows(file, keys)


def _saved_rows(folder: Path, keys: Sequence[str]) -> Iterator[Row]:
    """The rows of a dataset that the package `datasets` saved to a folder: Arrow streams, named in its state."""
    try:
        state = json.loads((folder / _SAVED_STATE).read_text("utf-8"))
        names = [str(file["filename"]) for file in state["_data_files"]]
        number = 0
        for name in names:
            with pa.memory_map(str(folder / Path(name).name)) as source, pa.ipc.open_stream(source) as reader:
                _check_header(f"{folder}", keys, reader.schema.names)
                read = list(keys) or reader.schema.names
                for batch in reader:
                    for scalars in zip(*(batch.column(key) for key in read), strict=True):
                        number += 1
                        place = f"{folder}:{number}"
                        yield Row(place, {key: _plain(place, value) for key, value in zip(read, scalars, strict=True)})
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"{folder}: not a readable saved dataset ({type(error).__name__}); save it again with `save_to_disk`"
        ) from error


def _json_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    """The objects of one JSON array."""
    with _open_bytes(path) as stream:
        text = _decode_text(path, stream.read(), first_line=1)
    try:
        values = json.loads(text.removeprefix(_BYTE_ORDER_MARK), object_pairs_hook=_refuse_repeated_keys)
    except _RepeatedKeyError as error:
        raise CorpusError(f"{path}: the key {error.key!r} appears twice in one object; keep one") from None
    except (ValueError, RecursionError) as error:
        raise CorpusError(
            f"{path}: malformed JSON; write an array of objects, or one object a line (.jsonl)"
        ) from error
    if not isinstance(values, list):
        raise CorpusError(f"{path}: expected a JSON array of objects, found {type(values).__name__}")
    for number, row in enumerate(values, start=1):
        source = f"{path}:{number}"
        if not isinstance(row, dict):
            raise CorpusError(f"{source}: expected a JSON object, found {type(row).__name__}")
        _require(source, keys, list(row))
        yield Row(source, row)


def _text_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    _require(str(path), keys, [PLAIN_TEXT_KEY])
    with _open_bytes(path) as stream:
        text = _decode_text(path, stream.read(), first_line=1)
    yield Row(str(path), {PLAIN_TEXT_KEY: text.removeprefix(_BYTE_ORDER_MARK)})


def _jsonl_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    with _open_bytes(path) as stream:
        for number, line in enumerate(_lines(path, stream), start=1):
            if not line.strip():
                continue
            source = f"{path}:{number}"
            try:
                values = json.loads(line, object_pairs_hook=_refuse_repeated_keys)
            except _RepeatedKeyError as error:
                raise CorpusError(f"{source}: the key {error.key!r} appears twice in one object; keep one") from None
            except json.JSONDecodeError as error:
                raise CorpusError(
                    f"{source}: malformed JSON, {error.msg} at column {error.colno}; write one object a line"
                ) from error
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{source}: malformed JSON, a number too long or nesting too deep") from error
            if not isinstance(values, dict):
                raise CorpusError(f"{source}: expected a JSON object, found {type(values).__name__}")
            _require(source, keys, list(values))
            yield Row(source, values)


class _RepeatedKeyError(Exception):
    """A JSON object that has a key twice, of which a parser would keep the last value in silence."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these pairs, at any depth of a row.

    Raises:
        _RepeatedKeyError: two have one key.
    """
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise _RepeatedKeyError(key)
        values[key] = value
    return values


def _csv_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    csv.field_size_limit(_MAX_CSV_FIELD)
    with _open_bytes(path) as stream:
        reader = csv.reader(_lines(path, stream), strict=True)
        header: list[str] | None = None
        while True:
            source = f"{path}:{reader.line_num + 1}"
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise CorpusError(f"{source}: malformed CSV, {error}; check the quoting of this record") from error
            if fields is None:
                return
            if not fields:
                continue
            if header is None:
                header = fields
                _check_header(source, keys, header)
            elif len(fields) != len(header):
                raise CorpusError(f"{source}: malformed CSV, {len(fields)} fields where the header has {len(header)}")
            else:
                yield Row(source, dict(zip(header, fields, strict=True)))


def _check_header(source: str, keys: Sequence[str], header: Sequence[str]) -> None:
    _require(source, keys, header)
    for key in keys:
        if header.count(key) > 1:
            raise CorpusError(f"{source}: the column {key!r} appears more than once; rename all but one")


def _parquet_rows(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    with _open_bytes(path) as stream:
        seekable = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        try:
            file = pq.ParquetFile(seekable)
            _check_header(str(path), keys, file.schema_arrow.names)
            number = 0
            read = list(keys) or file.schema_arrow.names
            for batch in file.iter_batches(columns=read):
                for scalars in zip(*(batch.column(key) for key in read), strict=True):
                    number += 1
                    source = f"{path}:{number}"
                    yield Row(source, {key: _plain(source, scalar) for key, scalar in zip(read, scalars, strict=True)})
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path}: not a readable Parquet file ({error}); write or copy it again") from error


def _plain(source: str, scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{source}: the text is not UTF-8 (byte {error.start + 1}); convert the file") from error
    except (ValueError, OverflowError) as error:
        raise CorpusError(f"{source}: this value of type {scalar.type} cannot be read; write it as text") from error


_READERS: dict[str, Callable[[Path, Sequence[str]], Iterator[Row]]] = {
    ".jsonl": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
    ".txt": _text_rows,
}


@contextmanager
def _open_bytes(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """Open for reading bytes, decompressed by the name's end; what goes wrong becomes a `CorpusError`."""
    if str(path) == STANDARD_INPUT:
        yield io.BytesIO(_standard_input())
        return
    if path.suffix.lower() == ".zst":
        yield io.BytesIO(_decompressed(path))
        return
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            yield stream
    except EOFError as error:
        raise CorpusError(f"{path}: the gzip data end early; the file is truncated, copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{path}: not valid gzip data ({error}); copy it again, or drop the .gz suffix") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decompressed(path: Path) -> bytes:
    try:
        with pa.input_stream(str(path), compression="zstd") as stream:
            data: bytes = stream.read()
            return data
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: not valid zstd data ({error}); copy it again, or drop the .zst suffix") from error


@cache
def _standard_input() -> bytes:
    """All of standard input, read once and kept, as a corpus is looked at more than once."""
    return sys.stdin.buffer.read()


def _lines(path: Path, stream: BinaryIO | gzip.GzipFile) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        text = _decode_text(path, line, first_line=number)
        yield text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


def _decode_text(path: Path, data: bytes, first_line: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise CorpusError(
            f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x}); convert the file to UTF-8"
        ) from error


def _require(source: str, keys: Sequence[str], present: Sequence[str]) -> None:
    for key in keys:
        if key not in present:
            found = ", ".join(repr(name) for name in present) or "none"
            raise CorpusError(f"{source}: there is no key {key!r}; the keys present are {found}")
