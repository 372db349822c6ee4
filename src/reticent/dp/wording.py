"""The question that the corpus guarantee bounds, and what it leaves open, in the words of every command and page."""

from typing import Final

MEMBERSHIP_QUESTION: Final = "Is a unit in the corpus?"
MEMBERSHIP_MEANING: Final = (
    "chance of telling whether a privacy unit is in the corpus at all, for someone who knows everything else and saw "
    "all tokens; a blind guess has 50 %"
)
NOT_COVERED: Final = "other releases over the same records"
