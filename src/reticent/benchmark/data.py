"""The texts of a grid's data sets: read from a file or the hub, rendered through a template, drawn, kept as a corpus.

From each data set the grid draws as many texts as it needs, once, with a fixed public seed: no two of them are
near-duplicates of each other, so that any split into members and non-members is clean. They are kept as
`corpus.jsonl` with one `text` a line; `corpus.json` beside it says how they were drawn.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reticent._files import atomic_write_bytes, json_lines, sha256_of_file
from reticent.benchmark.settings import DataSetChoice
from reticent.errors import CorpusError, InvalidValueError, StorageError
from reticent.text.corpus import NEAR_DUPLICATE_THRESHOLD
from reticent.text.deduplication import DisjointSets, join_near_duplicates
from reticent.text.formats import read_rows

TextMaker = Callable[[int], list[str]]
"""Maker of a number of texts, the same ones each time."""

_POOL_PER_TEXT = 4
"""How many texts are looked at for near-duplicates for each one wanted."""
_DRAW_STREAM = 11


@dataclass(frozen=True)
class PreparedData:
    """A data set's texts on disk, and the SHA-256 of that file."""

    corpus: Path
    sha256: str


def prepare_data(
    choice: DataSetChoice, count: int, folder: Path, data_folder: Path | None, makers: Mapping[str, TextMaker]
) -> PreparedData:
    """Draw a data set's texts, or find them drawn already in the same way.

    Args:
        choice: the data set.
        count: how many texts.
        folder: where they are kept.
        data_folder: where relative paths are looked for.
        makers: what makes texts for data sets that are `made`.

    Raises:
        CorpusError: the data set cannot be fetched, lacks the columns, or has too few different texts.
        InvalidValueError: no maker has the name.
        StorageError: the texts cannot be written.
    """
    corpus, record = folder / "corpus.jsonl", folder / "corpus.json"
    drawn_as = {"dataset": choice.model_dump(mode="json"), "count": count}
    if corpus.is_file() and record.is_file():
        earlier = json.loads(record.read_text("utf-8"))
        digest = sha256_of_file(corpus)
        if earlier == drawn_as | {"sha256": digest}:
            return PreparedData(corpus, digest)
    texts = _draw(choice, _texts(choice, data_folder, makers, count), count)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror or error}") from None
    atomic_write_bytes(corpus, json_lines({"text": text} for text in texts))
    digest = sha256_of_file(corpus)
    atomic_write_bytes(record, json.dumps(drawn_as | {"sha256": digest}, indent=2).encode())
    return PreparedData(corpus, digest)


def _texts(
    choice: DataSetChoice, data_folder: Path | None, makers: Mapping[str, TextMaker], count: int
) -> Iterator[str]:
    if choice.made is not None:
        if choice.made not in makers:
            known = ", ".join(sorted(makers)) or "none"
            raise InvalidValueError(f"data set {choice.name!r}: no maker {choice.made!r}; there are: {known}")
        yield from makers[choice.made](_POOL_PER_TEXT * count)
        return
    for file in _files(choice, data_folder):
        for row in read_rows(file, choice.columns):
            values = {name: "" if value is None else value for name, value in row.values.items()}
            yield choice.template.format(**{name: values[name] for name in choice.columns})


def _files(choice: DataSetChoice, data_folder: Path | None) -> list[Path]:
    """The local file where it is there, else the hub's files."""
    local = None if choice.path is None else (data_folder or Path()) / choice.path
    if local is not None and (local.exists() or choice.hub is None):
        if not local.exists():
            given = f"--data {data_folder}" if data_folder else "no --data was given"
            raise CorpusError(f"data set {choice.name!r}: there is no {local} ({given}); give the folder that has it")
        return [local]
    return _from_hub(choice)


def _from_hub(choice: DataSetChoice) -> list[Path]:
    from huggingface_hub import snapshot_download

    assert choice.hub is not None
    try:
        folder = Path(snapshot_download(choice.hub, repo_type="dataset", allow_patterns=[choice.files]))
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = f"; or put {choice.path} under --data" if choice.path else ""
        raise CorpusError(
            f"data set {choice.name!r}: the hub gave nothing for {choice.hub!r} ({reason}); connect to it{remedy}"
        ) from None
    found = sorted(path for path in folder.rglob(choice.files.rpartition("/")[2]) if path.is_file())
    if not found:
        raise CorpusError(f"data set {choice.name!r}: {choice.hub!r} holds no file that matches {choice.files!r}")
    return found


def _draw(choice: DataSetChoice, texts: Iterator[str], count: int) -> list[str]:
    """Draw a pool uniformly in one pass (reservoir sampling), and from it the first texts that resemble no other."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([0, _DRAW_STREAM])))
    pool: list[str] = []
    size, seen = _POOL_PER_TEXT * count, 0
    for text in texts:
        if not text.strip() or len(text) < choice.min_characters:
            continue
        place = seen if seen < size else int(generator.integers(seen + 1))
        if seen < size:
            pool.append(text)
        elif place < size:
            pool[place] = text
        seen += 1
    pool = [pool[index] for index in generator.permutation(len(pool))]
    sets = DisjointSets(len(pool))
    join_near_duplicates(sets, pool, NEAR_DUPLICATE_THRESHOLD)
    drawn = [text for position, text in enumerate(pool) if sets.find(position) == position][:count]
    if len(drawn) < count:
        raise CorpusError(
            f"data set {choice.name!r}: {len(drawn)} different texts of {seen} that are long enough, and the grid "
            f"needs {count}; lower members, nonmembers or min_characters"
        )
    return drawn
