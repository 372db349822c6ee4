"""The two guarantees that a run of worlds can carry, and what each hides.

A run carries one of them, chosen when its worlds are built, and so does every deployment of it.
"""

from enum import StrEnum
from typing import Final


class Guarantee(StrEnum):
    """A guarantee about the tokens that are released from a run."""

    REALISED_WORLD = "realised-world"
    """Hides which half of the corpus was realised; says nothing of whether a record is in the corpus."""
    CORPUS = "corpus"
    """Hides whether a privacy unit is in the corpus at all: differential privacy over units."""


DEFAULT_GUARANTEE: Final = Guarantee.REALISED_WORLD

HIDES: Final[dict[Guarantee, str]] = {
    Guarantee.REALISED_WORLD: "which half of the corpus a record is in, the realised world's or the other",
    Guarantee.CORPUS: "whether a privacy unit is in the corpus at all",
}
"""What each guarantee hides, for help texts and reports."""
