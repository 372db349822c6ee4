"""The small interfaces between the parts that run models and the parts that release tokens.

Arrays that cross these interfaces are NumPy arrays on the host; the mechanism never sees a tensor.

Shape suffixes: M worlds, K candidates, V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray


class Context(Protocol):
    """One token sequence with its caches, as an `Ensemble` holds it."""

    @property
    def length(self) -> int:
        """Number of tokens the context holds."""
        ...


C = TypeVar("C", bound=Context)


class Ensemble(Protocol[C]):
    """The public model and all worlds, evaluated together for one next token.

    Nothing an ensemble computes, and no order or time in which it computes it, depends on the realised world.
    """

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of token ids, V."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens a context can hold."""
        ...

    def open(self, prompt: Sequence[int]) -> C:
        """Read a prompt of at least one token into a new context."""
        ...

    def extend(self, contexts: Sequence[C], tokens: Sequence[int]) -> None:
        """Append one token to each context, all in one step."""
        ...

    def public_logits(self, context: C) -> NDArray[np.float32]:
        """The public model's next-token logits, float32[V]."""
        ...

    def world_logits(self, context: C, candidates_K: NDArray[np.int64]) -> NDArray[np.float32]:
        """Every world's next-token logits at the candidates, float32[M, K]."""
        ...
