"""The neighbouring relations under which the corpus guarantee is stated.

Neighbouring corpora differ in one privacy unit, so at most one world casts other votes; the relation says which
differences count as one, and so how far those votes can move. A difference of k such steps is bounded as a group of k:
η grows k-fold, ρ by k².
"""

from enum import StrEnum
from typing import Final

from reticent._validate import integer_in_range


class Relation(StrEnum):
    """A kind of neighbouring corpora, by how far one world's votes can move between them."""

    REPLACEMENT = "replacement"
    """A unit more or less, or other texts of one unit: one world's votes move from any to any others."""
    ADD_REMOVE = "add-remove"
    """A unit more or less, one unit a world: its votes move between exactly zero and any others."""


DESCRIPTIONS: Final[dict[Relation, str]] = {
    Relation.REPLACEMENT: "one unit more or less, or other texts of one unit",
    Relation.ADD_REMOVE: "one unit more or less",
}
"""The difference between neighbouring corpora under each relation, for help texts and reports."""


def relation_for(places: int) -> Relation:
    """Return the relation that holds for worlds of a number of places each.

    Raises:
        InvalidValueError: there is no place.
    """
    return Relation.ADD_REMOVE if integer_in_range("places", places, 1) == 1 else Relation.REPLACEMENT
