"""The questions that a bound limits, and the one it does not, in the words that every command, page and field shows.

Contract: each record of the corpus is in half of the worlds, so the bound at prior ½ is about *which half* a record is
in, the realised world's or the other. Whether a record is in the corpus at all is the same in every world: no number
here bounds it, and whoever shows one of these bounds shows `NOT_BOUNDED` beside it.
"""

from typing import Final

HALF_QUESTION: Final = "Which half is a record in?"
HALF_MEANING: Final = (
    "chance of telling whether a record of the corpus was in the realised world's half of it or in the other, for "
    "someone who knows all worlds and saw all tokens; a blind guess has 50 %"
)
WORLD_QUESTION: Final = "Which world was realised?"
WORLD_MEANING: Final = "chance of naming the realised world, for the same person; a blind guess has 1/m"
NOT_BOUNDED: Final = "whether a record is in the corpus at all"
