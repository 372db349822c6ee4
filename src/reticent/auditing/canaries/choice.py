"""Exposure by choice: a knockout among a canary's secret and others, for models that show text alone.

A question lists c secrets in random order, then the canary's own sentence up to its secret, which the model continues.
It has chosen the secret of which it writes the longest beginning, if that is one alone. c^r secrets, the canary's among
them, make a knockout of r rounds: of each group of c the chosen one enters the next round; where none is chosen, none
does; a secret that is alone in its group enters it without a question.

A canary that is chosen k times has the exposure k · log2 c bits. Of c^r candidates at most c^(r-k) come that far,
whatever the model prefers, so that its rank is at most c^(r-k), in the sense of Carlini 2019. For a canary that the
model never saw all candidates are alike, and the chance of b bits or more is at most 2^-b, as with ranks; its mean is
at most log2(c) / (c - 1) bits. The ceiling is r · log2 c. The measure errs downwards: a model that knows a secret and
does not write it exposes nothing.

Groups are asked about only as far as the canary comes: one question for one that is not chosen at once,
(c^r - 1) / (c - 1) for one that wins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np

from reticent.auditing.canaries.planting import Canary, candidates
from reticent.auditing.results import CanaryExposure

OPTIONS = (8, 4, 2)
"""c: secrets that one question lists; fewer where a server refuses the longer prompt."""

Write = Callable[[Sequence[str], Sequence[int]], list[str | None]]
"""Continues prompts, each by at most its number of tokens; None where the model did not answer."""


class _NoAnswerError(Exception):
    """The model left a question unanswered; it never leaves this file."""


def num_rounds(num_candidates: int, options: int = OPTIONS[0]) -> int:
    """r, the rounds of a knockout among this number of other secrets; 0 where they are too few for one."""
    rounds = 0
    while options ** (rounds + 1) <= num_candidates + 1:
        rounds += 1
    return rounds


def exposure_by_choice(
    canary: Canary, write: Write, num_candidates: int, generator: np.random.Generator, options: int = OPTIONS[0]
) -> CanaryExposure | None:
    """One canary's exposure; None where the model left a question unanswered, or there are too few other secrets.

    Args:
        canary: the canary.
        write: asks the model.
        num_candidates: other secrets that are drawn, at most.
        generator: of the draws and of the order in every question.
        options: c, at least 2.
    """
    others = list(candidates(canary, num_candidates, generator))
    rounds = num_rounds(len(others), options)
    if not rounds:
        return None
    knockout = _Knockout(canary.prefix, write, generator, options)
    won = 0
    try:
        for number in range(rounds):
            # The rivals of this round are the winners of as many blocks as the canary has not met.
            block = options**number
            met, drawn = block - 1, block * (options - 1)
            rivals = knockout.winners(others[met : met + drawn], options - 1)
            (winner,) = knockout.choose([[canary.secret, *(rival for rival in rivals if rival is not None)]])
            if winner != canary.secret:
                break
            won += 1
    except _NoAnswerError:
        return None
    return CanaryExposure(
        canary_id=canary.id,
        rank=options ** (rounds - won),
        num_candidates=options**rounds,
        exposure_bits=won * math.log2(options),
    )


@dataclass
class _Knockout:
    """Questions about the secrets of one sentence."""

    prefix: str
    write: Write
    generator: np.random.Generator
    options: int

    def winners(self, secrets: Sequence[str], count: int) -> list[str | None]:
        """The winner of each of `count` equal blocks of secrets; None for a block that none has won."""
        remaining: list[str | None] = list(secrets)
        while len(remaining) > count:
            groups = [remaining[start : start + self.options] for start in range(0, len(remaining), self.options)]
            remaining = self.choose([[secret for secret in group if secret is not None] for group in groups])
        return remaining

    def choose(self, groups: Sequence[list[str]]) -> list[str | None]:
        """The secret chosen in each group; None for none.

        Raises:
            _NoAnswerError: the model left a question unanswered.
        """
        listed = [[group[place] for place in self.generator.permutation(len(group))] for group in groups]
        questions = [group for group in listed if len(group) > 1]
        prompts = [question(self.prefix, group) for group in questions]
        answers = self.write(prompts, [_telling_length(group) for group in questions])
        written = [answer for answer in answers if answer is not None]
        if len(written) < len(questions):
            raise _NoAnswerError
        chosen = iter([chosen_option(answer, group) for answer, group in zip(written, questions, strict=True)])
        return [next(chosen) if len(group) > 1 else next(iter(group), None) for group in listed]


def question(prefix: str, options: Sequence[str]) -> str:
    """A prompt that lists the options and asks for the one that belongs to the prefix."""
    return f"One of these is right: {'; '.join(options)}.\n{prefix}"


def chosen_option(continuation: str, options: Sequence[str]) -> str | None:
    """The option of which a continuation writes the longest beginning; None if none begins, or several are equal."""
    written = continuation.lstrip()
    lengths = [_shared_length(written, option) for option in options]
    longest = max(lengths)
    return options[lengths.index(longest)] if longest and lengths.count(longest) == 1 else None


def _telling_length(options: Sequence[str]) -> int:
    """Tokens in which any two options differ: a token is a byte at least, and one may be the space before."""
    ordered = sorted(options)
    shared = max(len(first[: _shared_length(first, second)].encode()) for first, second in pairwise(ordered))
    return shared + 2


def _shared_length(first: str, second: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
