"""The table every attack reads: one model's signals for each text, found by the text's hash.

A row is never found by its position: two lists of texts in different orders are the oldest way to score the wrong one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError
from reticent.protocols import TokenSignals


@dataclass(frozen=True, eq=False)
class ScoreTable(Mapping[str, TokenSignals | None]):
    """One model's signals for some texts: a mapping from a text's SHA-256 to its signals.

    Attributes:
        hashes: `corpus.text_hash` of each text, each once.
        signals: the signals of each; None where no token of the text is predicted.

    Raises:
        InvalidValueError: a hash occurs twice, or the two differ in length.
    """

    hashes: tuple[str, ...]
    signals: tuple[TokenSignals | None, ...]

    def __post_init__(self) -> None:
        if len(self.hashes) != len(self.signals):
            raise InvalidValueError(f"{len(self.hashes)} hashes but {len(self.signals)} signals; give one for each")
        if len(self._by_hash) != len(self.hashes):
            raise InvalidValueError("a text's hash occurs in a score table twice; score each text once")

    def __getitem__(self, text_hash: str) -> TokenSignals | None:
        """The signals of a text.

        Raises:
            KeyError: the table has no such text.
        """
        return self._by_hash[text_hash]

    def __iter__(self) -> Iterator[str]:
        return iter(self.hashes)

    def __len__(self) -> int:
        return len(self.hashes)

    def mean_logp(self, hashes: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Mean log p of a token in nats, of the given texts or of all in order, float64[n]; NaN where there is none.

        Raises:
            KeyError: the table has no such text.
        """
        rows = (self[text_hash] for text_hash in (self.hashes if hashes is None else hashes))
        return np.array([np.nan if row is None else row.logp.mean() for row in rows], dtype=np.float64)

    @cached_property
    def _by_hash(self) -> dict[str, TokenSignals | None]:
        return dict(zip(self.hashes, self.signals, strict=True))
