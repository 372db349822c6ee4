"""Templates for columns that instruction data commonly has, recognised by a corpus's first row."""

from pathlib import Path

from reticent.text.chats import MESSAGES_COLUMN
from reticent.text.formats import read_rows

_KNOWN = (
    ((MESSAGES_COLUMN,), f"{{{MESSAGES_COLUMN}}}", ""),
    (("prompt", "completion"), "{prompt}{completion}", "completion"),
    (("instruction", "input", "output"), "{instruction}\n{input}\n{output}", "output"),
    (("instruction", "output"), "{instruction}\n{output}", "output"),
)
"""Columns, the template for them, and the one of them that is the answer."""


def recognise_template(path: Path, text_key: str) -> tuple[str, str] | None:
    """A template and its answer for the columns of a corpus; None where there is a text column, or none is known.

    Args:
        path: the corpus.
        text_key: the key that would hold the text.

    Raises:
        CorpusError: the corpus cannot be read.
    """
    first = next(iter(read_rows(path, ())), None)
    if first is None or text_key in first.values:
        return None
    return next(
        ((template, answer) for columns, template, answer in _KNOWN if all(name in first.values for name in columns)),
        None,
    )
