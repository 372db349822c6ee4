"""The small interfaces between the parts that run models and the parts that release tokens.

Arrays that cross these interfaces are NumPy arrays on the host; the mechanism never sees a tensor.

Shape suffixes: M worlds, K candidates, V vocabulary.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError


class Context(Protocol):
    """One token sequence with its caches, as an `Ensemble` holds it."""

    @property
    def length(self) -> int:
        """Number of tokens the context holds."""
        ...


C = TypeVar("C", bound=Context)


ChooseDraft = Callable[[int, int, NDArray[np.float32]], int]
"""(number of the context, tokens guessed before, public logits float32[V]) -> the token guessed."""

DraftTokens = Sequence[Sequence[int]]
"""For each context the tokens that may follow the one it gets."""


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


class DraftingEnsemble(Ensemble[C], Protocol[C]):
    """An ensemble that can compute guessed tokens ahead, in the step of the token before them."""

    def has_draft(self, context: C, token: int) -> bool:
        """True if the token is the next one guessed, so that appending it needs no computation."""
        ...

    def draft(
        self,
        contexts: Sequence[C],
        tokens: Sequence[int],
        counts: Sequence[int],
        choose: ChooseDraft,
    ) -> list[list[int]]:
        """Draft tokens with the public model alone, to follow the next token of each context.

        Args:
            contexts: which; not extended.
            tokens: the token each is about to get.
            counts: how many guesses each gets; fewer where the context window ends.
            choose: picks a token.
        """
        ...

    def extend(self, contexts: Sequence[C], tokens: Sequence[int], guesses: DraftTokens | None = None) -> None:
        """Append one token to each context, all in one step, and compute what follows if guesses come true."""
        ...


class ServedEnsemble(DraftingEnsemble[C], Protocol[C]):
    """An ensemble that also reads prompts in parts, so that others can decode in between."""

    def prefill_in_parts(self, prompt: Sequence[int]) -> Generator[None, None, C]:
        """`open`, yielding between parts of the work; the context is what the generator returns.

        How many parts there are is a function of the prompt's length alone.
        """
        ...


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
