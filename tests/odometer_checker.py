"""An exhaustive search for the most information that an adaptive user can draw from a filter on small instances.

A *filter* is a function of a node, which is all that the deployment remembers, and a query, which is what the worlds
vote. It returns the events that the user may then see (a token, a refusal, a charge on display), each with its
probability given every world, and the node that follows. Nothing else is visible, and nothing visible is left out.

`most_information` maximises over every adaptive user by recursion: by the chain rule I(S; history) is the expected sum
of I(S; event | history so far), so the best continuation of a history depends on its node and on the posterior alone.
`every_user` enumerates users one by one instead, as a check of that recursion, and takes I(S; history) from its
definition.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from scipy.special import rel_entr


@dataclass(frozen=True)
class Event:
    """What the user sees: a label, its probability given each world, float64[m], and what follows."""

    label: Any
    chances_M: tuple
    node: Any


@cache
def partitions(num_worlds):
    """Every way in which worlds can vote, up to the tokens' names: restricted growth strings."""
    found = [[0]]
    for _ in range(num_worlds - 1):
        found = [[*votes, token] for votes in found for token in range(max(votes) + 2)]
    return tuple(map(tuple, found))


def information(weights_M, chances_EM):
    """I(S; event) in nats, from the definition."""
    possible_M = weights_M > 0
    weights_M, chances_EM = weights_M[possible_M], chances_EM[:, possible_M]
    return float((weights_M * rel_entr(chances_EM, (chances_EM @ weights_M)[:, None])).sum())


def after(weights_M, chances_M):
    """The probability of an event, above 0, and the posterior given it."""
    joint_M = weights_M * np.asarray(chances_M)
    return joint_M.sum(), joint_M / joint_M.sum()


def most_information(step, start, num_worlds, num_steps, queries=None):
    """The largest I(S; everything visible) over all adaptive users of `num_steps` queries, in nats.

    Args:
        step: the filter.
        start: its node before the first query. Every node has a method `by_world`, what it remembers of each world, and
            an attribute `common`, what it remembers besides: nodes that are alike up to the worlds' names have one
            value, since the queries are the same under every renaming.
        queries: what may be asked; every partition of the worlds unless given, and closed under renaming.
    """
    queries = partitions(num_worlds) if queries is None else queries
    known = {}

    def value(node, weights_M, left):
        if left == 0:
            return 0.0
        key = node.common, left, tuple(sorted(zip(weights_M.round(12), *node.by_world(), strict=True)))
        if key not in known:
            known[key] = max(gain(node, weights_M, left, query) for query in queries)
        return known[key]

    def gain(node, weights_M, left, query):
        events = step(node, query)
        chances_EM = np.array([event.chances_M for event in events])
        np.testing.assert_allclose(chances_EM.sum(axis=0)[weights_M > 0], 1.0, rtol=1e-9)
        total = information(weights_M, chances_EM)
        if left > 1:
            for event in events:
                if weights_M @ np.asarray(event.chances_M) > 0:
                    chance, posterior_M = after(weights_M, event.chances_M)
                    total += chance * value(event.node, posterior_M, left - 1)
        return total

    return value(start, np.full(num_worlds, 1.0 / num_worlds), num_steps)


def every_user(step, start, num_worlds, num_steps):
    """I(S; everything visible) of each adaptive user, from the distribution of whole histories given each world."""

    def histories(node, left):
        """Every user of `left` queries from a node on, each as its histories and their probabilities given worlds."""
        if left == 0:
            yield {(): np.ones(num_worlds)}
            return
        for query in partitions(num_worlds):
            events = step(node, query)
            for choices in product(*(list(histories(event.node, left - 1)) for event in events)):
                found = Counter()
                for event, continued in zip(events, choices, strict=True):
                    for labels, chances_M in continued.items():
                        found[(query, event.label, *labels)] += np.asarray(event.chances_M) * chances_M
                yield found

    weights_M = np.full(num_worlds, 1.0 / num_worlds)
    for user in histories(start, num_steps):
        yield information(weights_M, np.array(list(user.values())))
