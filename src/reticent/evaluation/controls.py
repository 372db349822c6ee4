"""Decoders that never touch the secret: the controls of every comparison.

Formal guarantee: I(S; Y_1:T) = 0 for every T, without noise, budget or ledger. The votes are a function of the prompt,
the public coins, the adapters of *all* worlds and the tokens released before; S is drawn independently of the coins and
of the adapters, and appears in no argument here. By induction over the tokens, the released text is a function of
things independent of S.

What they do not protect is what the calibrated release does not protect either: the records. A control recites what its
worlds have learnt. So they show how much of a mechanism's utility, or of its measured safety, is owed to its guarantee
on S, and how much would be there without (docs/guarantee.md).

| control | distribution of one token, after a given text | distribution of a whole answer |
|---|---|---|
| plurality | the most frequent vote | no world's own |
| fresh world | the shares of the votes: that of a noiseless world drawn from the prior | no world's own |
| request world | the same | exactly that of a noiseless world drawn from the prior |

A noiseless world's own text tells which worlds may have written it, and its next token follows *their* shares; so the
distributions of the second line differ over an answer, though not under teacher forcing.

J needs no secrecy, so a seedable generator serves; it is an argument.

Shape suffixes: N positions, M worlds, R requests.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError
from reticent.evaluation._votes import votes_table


class Control(StrEnum):
    """The controls by name. Each is free of S by its construction, so the set is closed."""

    PLURALITY = "plurality"
    FRESH_WORLD = "fresh-world"
    REQUEST_WORLD = "request-world"


def control_tokens(
    control: Control,
    votes_NM: NDArray[np.integer],
    generator: np.random.Generator,
    request_N: NDArray[np.integer] | None = None,
) -> NDArray[np.int64]:
    """Return what a control releases at each position, int64[N].

    Args:
        control: which one.
        votes_NM: each world's token at each position.
        generator: source of J; the plurality draws nothing from it.
        request_N: which request each position belongs to, for the request world; one request unless given.

    Raises:
        InvalidValueError: votes that are not a table of token ids, or requests that do not match it.
    """
    if control is Control.PLURALITY:
        return plurality(votes_NM)
    if control is Control.FRESH_WORLD:
        return fresh_world_draw(votes_NM, generator)
    return request_world_draw(votes_NM, generator, request_N)


def plurality(votes_NM: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the most frequent vote at each position, int64[N]; the lowest token id among equals.

    I(S; Y) = 0: a function of all the votes alone, every world counting alike.

    Raises:
        InvalidValueError: votes that are not a table of token ids.
    """
    sorted_NM = np.sort(votes_table(votes_NM), axis=1)
    starts_NM = np.ones(sorted_NM.shape, dtype=bool)
    starts_NM[:, 1:] = sorted_NM[:, 1:] != sorted_NM[:, :-1]
    run_NM = starts_NM.ravel().cumsum().reshape(sorted_NM.shape) - 1
    # Runs are in ascending order of tokens, and argmax takes the first of equals.
    longest_N = np.bincount(run_NM.ravel())[run_NM].argmax(axis=1)
    return _of_world(sorted_NM, longest_N)


def fresh_world_draw(votes_NM: NDArray[np.integer], generator: np.random.Generator) -> NDArray[np.int64]:
    """Return at each position the vote of a world J drawn afresh, uniformly over all worlds, int64[N].

    I(S; Y) = 0: J is drawn independently of S. J is distributed as S, so that under teacher forcing each token has
    exactly the distribution and the accuracy of a noiseless release.

    Raises:
        InvalidValueError: votes that are not a table of token ids.
    """
    table_NM = votes_table(votes_NM)
    num_positions, num_worlds = table_NM.shape
    return _of_world(table_NM, generator.integers(num_worlds, size=(num_positions,)))


def request_world_draw(
    votes_NM: NDArray[np.integer], generator: np.random.Generator, request_N: NDArray[np.integer] | None = None
) -> NDArray[np.int64]:
    """Return at each position the vote of a world J drawn once for its request, uniformly, int64[N].

    I(S; Y) = 0: J is drawn independently of S. A whole answer has exactly the distribution of a noiseless world's
    answer. It may reveal which world J was, and so which records formed that answer: that is no secret about S.

    Args:
        votes_NM: each world's token at each position.
        generator: source of J.
        request_N: which request each position belongs to, any integers; one request unless given.

    Raises:
        InvalidValueError: votes that are not a table of token ids, or requests that do not match it.
    """
    table_NM = votes_table(votes_NM)
    num_positions, num_worlds = table_NM.shape
    if request_N is None:
        request_N = np.zeros(num_positions, dtype=np.int64)
    if request_N.shape != (num_positions,) or request_N.dtype.kind not in "iu":
        raise InvalidValueError(
            f"request_N must name the request of each of {num_positions} positions by an integer; got "
            f"{request_N.dtype} of shape {request_N.shape}"
        )
    requests, position_N = np.unique(request_N, return_inverse=True)
    world_R = generator.integers(num_worlds, size=requests.shape)
    return _of_world(table_NM, world_R[position_N])


def _of_world(votes_NM: NDArray[np.integer], world_N: NDArray[np.int64]) -> NDArray[np.int64]:
    return votes_NM[np.arange(votes_NM.shape[0]), world_N].astype(np.int64)
