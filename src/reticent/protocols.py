"""The small interfaces between the parts that run models and the parts that audit them or report progress.

Arrays that cross these interfaces are NumPy arrays on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError


@dataclass(frozen=True, eq=False)
class TokenSignals:
    """Signals of one model for one text, per scored token; all an attack ever sees of a model. T scored tokens.

    A source that shows no distribution over the vocabulary (a remote endpoint) has NaN in `mu`, `sigma2` and
    `entropy`, and -1 in `rank` where the token's place is not known.

    Attributes:
        logp: ℓ_t = log p(x_t | x_<t), in nats, float64[T].
        mu: Σ p log p over the vocabulary, in nats, float64[T].
        sigma2: Σ p log² p − μ², clamped at 0, float64[T].
        entropy: −μ, float64[T].
        rank: number of tokens with a strictly higher logit, 0 for the most likely one, int64[T].

    Raises:
        InvalidValueError: the arrays are not one-dimensional and of one length.
    """

    logp: NDArray[np.float64]
    mu: NDArray[np.float64]
    sigma2: NDArray[np.float64]
    entropy: NDArray[np.float64]
    rank: NDArray[np.int64]

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.logp, self.mu, self.sigma2, self.entropy, self.rank)}
        if len(shapes) != 1 or self.logp.ndim != 1:
            raise InvalidValueError(f"token signals must be one-dimensional and of one length, got {sorted(shapes)}")

    def select(self, kept: slice | NDArray[np.int64]) -> "TokenSignals":
        """The signals of some of the tokens."""
        return TokenSignals(self.logp[kept], self.mu[kept], self.sigma2[kept], self.entropy[kept], self.rank[kept])

    @property
    def num_tokens(self) -> int:
        """T, the number of scored tokens."""
        return len(self.logp)

    @property
    def top1_match(self) -> NDArray[np.bool_]:
        """True if the token was the model's most likely one, bool[T]; meaningless where the rank is not known."""
        matches: NDArray[np.bool_] = self.rank == 0
        return matches


class Scorer(Protocol):
    """One model that says how likely each token of a text is.

    What it says of a text depends on nothing but the text: not on the others it is asked about together, nor on their
    order.
    """

    @property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 over all that a score depends on: weights, adapter, tokenizer, template, type."""
        ...

    @property
    def is_white_box(self) -> bool:
        """True if the model's parameters are available, for attacks that need its gradients."""
        ...

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """The signals of each text, in order; None for a text of which no token is predicted."""
        ...


class Progress(Protocol):
    """A sink for the progress of long work."""

    def note(self, line: str) -> None:
        """Say one thing worth knowing."""
        ...

    def begin(self, what: str, num_tokens: int) -> None:
        """Start a phase that trains on, or reads, `num_tokens` tokens."""
        ...

    def advance(self, num_tokens: int) -> None:
        """So many more tokens are done."""
        ...
