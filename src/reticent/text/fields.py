"""Records of several columns as one string: what a row holds, before a template puts it together.

A record of one column is its text and nothing else. A record of several is one string too: each column's name and
value, told apart by two noncharacters of Unicode, which the standard keeps for a process's own use and which no text
of a corpus may hold. So a record is hashed, cached, compared and divided like any text, whatever it is made of.

A record whose only value that is not blank is that of the main column is that value alone. A plain text thus stands
for a record with blanks in all other columns: a canary, or a candidate for its secret, needs no columns of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reticent.errors import CorpusError, InvalidValueError

TEXT_COLUMN = "text"
_NAME, _VALUE = "\ufdd0", "\ufdd1"
"""What precedes a field's name, and what parts it from its value."""

_SHARED = ("system", "developer")

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class RecordLayout:
    """The columns that a record is made of.

    Attributes:
        columns: their names; `text` stands for the column that `text_key` names.
        main: the one that a plain text fills.
        is_main_needed: whether a record with a blank main column is left out; otherwise one whose columns are all
            blank is.
    """

    columns: tuple[str, ...] = (TEXT_COLUMN,)
    main: str = TEXT_COLUMN
    is_main_needed: bool = True

    def record(self, values: Mapping[str, str]) -> str:
        """Make one string of a row's values; empty where the record is to be left out."""
        needed = [self.main] if self.is_main_needed else self.columns
        if not any(values[name].strip() for name in needed):
            return ""
        if not any(values[name].strip() for name in self.columns if name != self.main):
            return values[self.main]
        # In an order of its own, so that a record has one hash whatever template it is read for.
        return join_fields((name, values[name]) for name in sorted(self.columns))

    def values(self, record: str) -> dict[str, str]:
        """The values of a record by column.

        Raises:
            InvalidValueError: the record was read with other columns.
        """
        fields = split_fields(record)
        if fields is None:
            return dict.fromkeys(self.columns, "") | {self.main: record}
        values = dict(fields)
        missing = next((name for name in self.columns if name not in values), None)
        if missing is not None:
            raise InvalidValueError(
                f"these records have no column {missing!r}; they were read with {', '.join(map(repr, values))}"
            )
        return values

    def split_main(self, record: str) -> tuple[str, str, str]:
        """A record in three pieces: the value of its main column, and what is before and after it."""
        fields = split_fields(record)
        if fields is None:
            return "", record, ""
        # The last of its name: a conversation has several.
        place = max(number for number, (name, _) in enumerate(fields) if name == self.main)
        value = fields[place][1]
        return join_fields((*fields[:place], (self.main, ""))), value, join_fields(fields[place + 1 :])


PLAIN = RecordLayout()


def join_fields(fields: Iterable[tuple[str, str]]) -> str:
    """Make one string of names and values."""
    return "".join(f"{_NAME}{name}{_VALUE}{value}" for name, value in fields)


def split_fields(record: str) -> Fields | None:
    """The names and values of a record of several columns, in order; None for a plain text."""
    if not record.startswith(_NAME):
        return None
    pairs = (field.partition(_VALUE) for field in record[1:].split(_NAME))
    return tuple((name, value) for name, _, value in pairs)


def readable_text(record: str) -> str:
    """A record's values a paragraph each, without names; a plain text as it is.

    What a system or developer says is left out: many conversations share it, and are no less different for it.
    """
    fields = split_fields(record)
    return record if fields is None else "\n".join(v for name, v in fields if v.strip() and name not in _SHARED)


def refuse_marks(source: str, value: str) -> None:
    """Refuse a value that holds one of the marks between fields.

    Raises:
        CorpusError: it does.
    """
    if _NAME in value or _VALUE in value:
        raise CorpusError(
            f"{source}: the text holds U+FDD0 or U+FDD1, which are no characters and are used here between columns; "
            "remove them"
        )
