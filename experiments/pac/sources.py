"""Sources of private texts that no file holds as they are: invented letters, and WikiText-103's articles."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.pac.settings import LETTERS, WIKITEXT
from reticent.benchmark.data import TextMaker
from reticent.demo.letters import generate_letters
from reticent.errors import CorpusError
from reticent.text.formats import read_rows

WIKITEXT_HUB = "Salesforce/wikitext"
WIKITEXT_FILE = "wikitext-103-raw-v1/train-00000-of-00002.parquet"
_SEED_OF_LETTERS = 7
_HEADING = re.compile(r" = [^=].* = \s*")
"""An article's own heading; those of its sections have more equals signs."""


def makers(data_folder: Path) -> Mapping[str, TextMaker]:
    """Makers of texts, by the name that a `DataSetChoice` gives.

    Args:
        data_folder: where `WIKITEXT_FILE` is looked for before it is fetched from the hub.
    """
    return {
        LETTERS: lambda count: [letter.text for letter in generate_letters(count, _SEED_OF_LETTERS)],
        WIKITEXT: lambda count: wikitext_articles(_wikitext_file(data_folder), count),
    }


def wikitext_articles(file: Path, count: int) -> list[str]:
    """The first `count` articles of a WikiText file, which has one line a row.

    Raises:
        CorpusError: the file cannot be read.
    """
    articles = []
    for article in _articles(file):
        articles.append(article)
        if len(articles) == count:
            break
    return articles


def _articles(file: Path) -> Iterator[str]:
    lines: list[str] = []
    for row in read_rows(file, ["text"]):
        line = str(row.values["text"])
        if _HEADING.fullmatch(line) and lines:
            yield "".join(lines)
            lines = []
        if line.strip():
            lines.append(line if line.endswith("\n") else line + "\n")
    if lines:
        yield "".join(lines)


def _wikitext_file(data_folder: Path) -> Path:
    local = data_folder / WIKITEXT_FILE
    if local.is_file():
        return local
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(WIKITEXT_HUB, WIKITEXT_FILE, repo_type="dataset"))
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CorpusError(
            f"WikiText-103: the hub gave nothing for {WIKITEXT_HUB!r} ({reason}); connect to it, or put the file at "
            f"{local}"
        ) from None
