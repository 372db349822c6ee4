"""The protocol of an engine: contexts and requests in, votes out, for a whole step at once.

What crosses it are token ids, settings, coins and votes, never logits, so that an engine may run anywhere: another
device, another process, another machine.

What is guaranteed of every engine. Nothing it computes, and no order or time in which it computes it, depends on the
realised world, which it does not know. A context whose votes cannot be cast has an error in their place, and the other
contexts of the step have their votes. Drafts change what is computed when, and no vote but for rounding.

| case | what `cast_step` and `cast_public_step` give |
|---|---|
| one context has no votes | its error, and the votes of all others |
| the engine fails as a whole | that error for every context |
| votes that are not one token id a world | `InvalidValueError` for that context |

Shape suffix: M worlds.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reticent.decoding.votes import TokenSettings
from reticent.errors import InvalidValueError
from reticent.randomness import PublicCoins


class Context(Protocol):
    """One token sequence with its caches, as an `VoteEngine` holds it."""

    @property
    def length(self) -> int:
        """Number of tokens the context holds."""
        ...


C = TypeVar("C", bound=Context)
T = TypeVar("T")

Drafts = Sequence[Sequence[int]]
"""For each context the draft tokens that may follow the one it gets."""


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """The request for votes on one token of an answer.

    Attributes:
        settings: how tokens are proposed and voted on.
        coins: the public randomness of the answer.
        step: position of the token in the answer.
    """

    settings: TokenSettings
    coins: PublicCoins
    step: int

    def after(self, num_tokens: int) -> "VoteRequest":
        """Return the request for the token that comes `num_tokens` later."""
        return VoteRequest(self.settings, self.coins, self.step + num_tokens)


class VoteEngine(Protocol[C]):
    """The public model and all worlds, evaluated together."""

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

    def prefill_in_chunks(self, prompt: Sequence[int]) -> Generator[None, None, C]:
        """`open`, yielding between chunks; the generator returns the context.

        The number of chunks is a function of the prompt's length alone.
        """
        ...

    def extend(self, contexts: Sequence[C], tokens: Sequence[int], drafts: Drafts | None = None) -> None:
        """Append one token to each context, all in one step, and compute the draft tokens behind it beforehand."""
        ...

    def has_draft(self, context: C, token: int) -> bool:
        """True if the token is the context's next draft token, so that appending it needs no computation."""
        ...

    def draft(
        self, contexts: Sequence[C], tokens: Sequence[int], requests: Sequence[VoteRequest], counts: Sequence[int]
    ) -> list[list[int]]:
        """Draft tokens with the public model alone, to follow the next token of each context.

        Args:
            contexts: the contexts; not extended.
            tokens: the token each is about to get.
            requests: the request for the token after that one.
            counts: most draft tokens of each; fewer where the window ends, or the public model has no vote.
        """
        ...

    def votes(self, contexts: Sequence[C], requests: Sequence[VoteRequest]) -> Sequence[NDArray[np.int64] | Exception]:
        """Cast every world's vote for the next token of each context, int64[M], or say why there is none."""
        ...

    def public_votes(self, contexts: Sequence[C], requests: Sequence[VoteRequest]) -> Sequence[int | Exception]:
        """Cast the public model's own vote for the next token of each context, or say why there is none."""
        ...


def cast_step(
    engine: VoteEngine[C], contexts: Sequence[C], requests: Sequence[VoteRequest]
) -> list[NDArray[np.int64] | Exception]:
    """Cast the votes of a step, each checked; never raises."""
    found = answers_of_each(lambda: engine.votes(contexts, requests), len(contexts))
    return [_check_votes(votes, engine.num_worlds, engine.vocab_size) for votes in found]


def cast_public_step(
    engine: VoteEngine[C], contexts: Sequence[C], requests: Sequence[VoteRequest]
) -> list[int | Exception]:
    """Cast the public model's votes of a step, each checked; never raises."""
    found = answers_of_each(lambda: engine.public_votes(contexts, requests), len(contexts))
    return [
        token if isinstance(token, Exception) or 0 <= token < engine.vocab_size else _malformed_votes(token)
        for token in found
    ]


def answers_of_each(ask: Callable[[], Sequence[T | Exception]], count: int) -> Sequence[T | Exception]:
    """Ask for one answer a context; what the engine raises becomes the answer of each."""
    if not count:
        return []
    try:
        answers = ask()
    except Exception as error:  # noqa: BLE001 - the caller logs the error of each context
        return [error] * count
    if len(answers) != count:
        return [InvalidValueError(f"the engine gave {len(answers)} votes for {count} contexts")] * count
    return answers


def _check_votes(
    votes: NDArray[np.int64] | Exception, num_worlds: int, vocab_size: int
) -> NDArray[np.int64] | Exception:
    if isinstance(votes, Exception):
        return votes
    fits = votes.shape == (num_worlds,) and votes.dtype.kind in "iu"
    return votes if fits and votes.min() >= 0 and votes.max() < vocab_size else _malformed_votes(votes.shape)


def _malformed_votes(found: object) -> InvalidValueError:
    return InvalidValueError(f"the engine's votes are not token ids, one for each world: got {found}")
