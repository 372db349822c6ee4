"""An exhaustive search for users who learn more from a corpus deployment than its account says.

A deployment here is small: 2 or 3 candidates, 2 or 3 worlds, votes on a grid, a few steps. A user, who may know
everything but which of two neighbouring corpora was used, chooses the context of each step in the light of all that was
visible before. A variant says, for a context and a corpus, which events can be seen next and with what probability:
tokens, shown charges, refusals, errors, stops, bursts, whatever it shows. The search takes the user who learns most:

* the largest Rényi divergences between the two histories, of several orders up to 128, over all adaptive choices,
  against what the account claims at most, in both directions;
* the largest range of the log-ratios of one step's events, against the range that one charge pays for.

Nothing here knows why a variant is right; a right one is within both, and near enough to them to be able to fail.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from reticent.dp.relations import Relation
from reticent.dp.release import Aggregate, CorpusSettings, integer_weights

ORDERS = (1.001, 1.5, 2.0, 4.0, 8.0, 32.0, 128.0)
ROUNDING = 1e-9

Votes = tuple[int, ...]
State = Hashable
Event = tuple[object, ...]
Outcome = tuple[Event, float, State]


@dataclass(frozen=True)
class Context:
    """A choice of the user, and what the two corpora make of it.

    Attributes:
        public: the public model's probabilities of the candidates.
        others: the sum of all other worlds' votes, the same in both corpora.
        mine: the votes of the one world that differs, in either corpus; None for a row that is not finite.
        is_there: whether that world is occupied, in either corpus.
        occupied_others: occupied worlds beside it.
    """

    public: tuple[float, ...]
    others: Votes
    mine: tuple[Votes | None, Votes | None]
    is_there: tuple[bool, bool]
    occupied_others: int

    def sum(self, corpus: int) -> Votes:
        """D in one of the two corpora."""
        mine = self.mine[corpus]
        return self.others if mine is None else tuple(a + b for a, b in zip(self.others, mine, strict=True))


Step = Callable[[State, Context, int], Sequence[Outcome]]
"""The events that can follow in a state, for a context and one of the two corpora."""


@dataclass(frozen=True)
class Findings:
    """The largest quotients found: above 1, the account is wrong.

    Attributes:
        divergence: of a divergence of the histories and what the account claims for its order.
        range: of the range of one step's log-ratios and the one that the charge pays for.
    """

    divergence: float
    range: float

    @property
    def holds(self) -> bool:
        """True if nobody learns more than is charged."""
        return self.divergence <= 1.0 + ROUNDING and self.range <= 1.0 + ROUNDING


def contexts_of(settings: CorpusSettings, publics: Sequence[Sequence[float]], grid: Sequence[int]) -> Iterator[Context]:
    """Every context on a grid of votes: neighbours by the settings' relation, both ways round."""
    count = settings.num_candidates
    votes = [*itertools.product(grid, repeat=count)]
    zero = (0,) * count
    limit = settings.vote_limit
    others = [zero, tuple([limit * (settings.num_worlds - 1)] + [-limit * (settings.num_worlds - 1)] * (count - 1))]
    for public in publics:
        for rest in others:
            if settings.relation is Relation.ADD_REMOVE:
                pairs = [*((zero, v) for v in votes), *((v, zero) for v in votes)]
                there = [*((False, True) for _ in votes), *((True, False) for _ in votes)]
            else:
                pairs = [*itertools.product(votes, votes)]
                there = [(True, True)] * len(pairs)
            for pair, here in zip(pairs, there, strict=True):
                yield Context(tuple(public), rest, pair, here, settings.num_worlds - 1)


@cache
def probabilities(
    settings: CorpusSettings, public: tuple[float, ...], votes: Votes, temperature: float | None = None
) -> tuple[float, ...]:
    """The exact distribution of the token that the package draws."""
    aggregate = Aggregate(np.arange(len(public)), np.log(public), np.array(votes, dtype=np.int64))
    weights = integer_weights(aggregate, settings, temperature)
    return tuple(float(Fraction(weight, sum(weights))) for weight in weights)


def search(
    step: Step,
    start: State,
    contexts: Sequence[Context],
    num_steps: int,
    claimed_rho: float,
    claimed_eta: float,
    orders: Sequence[float] = ORDERS,
) -> Findings:
    """Search all users of a variant.

    Args:
        step: the variant.
        start: its state at first.
        contexts: what a user may choose from at each step.
        num_steps: steps that a user makes.
        claimed_rho: the most that the account says was charged in these steps.
        claimed_eta: the range that one charge pays for.
        orders: of the divergences, each above 1.
    """

    @cache
    def outcomes(state: State, index: int, corpus: int) -> dict[Event, tuple[float, State]]:
        found = {event: (chance, after) for event, chance, after in step(state, contexts[index], corpus) if chance > 0}
        assert abs(sum(chance for chance, _ in found.values()) - 1.0) < 1e-9
        return found

    @cache
    def moment(steps: int, left: State, right: State, order: float) -> float:
        """The largest E_Q[(P/Q)^order] of what remaining steps show; P continues from `left`, Q from `right`."""
        if steps == 0:
            return 1.0
        most = 1.0
        for index in range(len(contexts)):
            p, q = outcomes(left, index, 0), outcomes(right, index, 1)
            if any(event not in q for event in p):
                return math.inf
            total = sum(
                q[event][0] * (chance / q[event][0]) ** order * moment(steps - 1, after, q[event][1], order)
                for event, (chance, after) in p.items()
            )
            most = max(most, total)
        return most

    divergence = max(
        math.log(moment(num_steps, start, start, order)) / (order - 1.0) / (order * claimed_rho) for order in orders
    )
    return Findings(divergence, _largest_range(outcomes, start, len(contexts)) / claimed_eta)


def _largest_range(
    outcomes: Callable[[State, int, int], dict[Event, tuple[float, State]]], start: State, count: int
) -> float:
    most = 0.0
    for index in range(count):
        p, q = outcomes(start, index, 0), outcomes(start, index, 1)
        if p.keys() != q.keys():
            return math.inf
        ratios = [math.log(chance / q[event][0]) for event, (chance, _) in p.items()]
        most = max(most, max(ratios) - min(ratios))
    return most
