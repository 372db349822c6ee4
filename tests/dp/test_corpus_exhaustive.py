"""Right variants of a corpus deployment pass the exhaustive search; each of the known wrong ones is flagged by it."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from corpus_checker import ORDERS, Context, contexts_of, probabilities, search

from reticent.dp.accounting import ROUNDING_ETA
from reticent.dp.relations import Relation
from reticent.dp.release import CorpusSettings

CLIP = 2.0**-4
LIMIT = 2**20
GRID = (-LIMIT, 0, LIMIT // 3, LIMIT)
PUBLICS = ((0.5, 0.5), (0.93, 0.07))
TWO = CorpusSettings(CLIP, 8.0, 1.0, 2, 2, Relation.REPLACEMENT)
SMALL = replace(TWO, gain=0.5)
THREE = replace(TWO, num_candidates=3, num_worlds=3)
CHARGED = 2
STEPS = 3
COINS = 16


def alone(settings):
    return replace(settings, relation=Relation.ADD_REMOVE)


def contexts_for(settings):
    if settings.num_candidates == 2:
        return [*contexts_of(settings, PUBLICS, GRID)]
    return [*contexts_of(settings, [(0.2, 0.3, 0.5)], (-LIMIT, 0, LIMIT))]


def check(step, settings, contexts=None, charged=CHARGED, steps=STEPS, orders=ORDERS):
    """Search the users of a variant whose cap covers `charged` tokens."""
    charge = settings.charge_units / 2**64
    eta = float(settings.exact_eta + ROUNDING_ETA)
    return search(step, 0, contexts or contexts_for(settings), steps, charged * charge, eta, orders)


def filtered(draw, charged=CHARGED):
    """A variant under the cap: `draw` says which events a token brings, each of which costs one charge."""

    def step(spent, context, corpus):
        if spent + 1 > charged:
            return [(("refused",), 1.0, spent)]
        return [(event, chance, spent + 1) for event, chance in draw(context, corpus)]

    return step


def tokens(settings, temperature=None):
    def draw(context, corpus):
        for token, chance in enumerate(probabilities(settings, context.public, context.sum(corpus), temperature)):
            yield ("token", token, "charge", 1), chance

    return draw


def scores(settings, context, corpus):
    return [
        math.log(p) / settings.temperature + settings.kappa * votes
        for p, votes in zip(context.public, context.sum(corpus), strict=True)
    ]


def softmax(values):
    top = max(values)
    return [math.exp(value - top) / sum(math.exp(other - top) for other in values) for value in values]


def largest(values):
    return max(range(len(values)), key=lambda index: values[index])


def token_at(shares, coin):
    """The token at a coin in [0, 1), by the order of the candidates."""
    for token, share in enumerate(shares):
        coin -= share
        if coin < 0:
            return token
    return len(shares) - 1


SETTINGS = {
    "2 candidates, replacement": TWO,
    "2 candidates, add-remove": alone(TWO),
    "3 candidates, replacement": THREE,
    "3 candidates, add-remove": alone(THREE),
    "small range": SMALL,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_release_is_within_its_charge_and_close_to_it(name):
    settings = SETTINGS[name]
    found = check(filtered(tokens(settings)), settings)
    assert found.holds
    assert found.range > 0.99
    assert found.divergence > (0.9 if name == "small range" else 0.5)


@pytest.mark.parametrize("temperature", [0.01, 0.3, 5.0])
def test_a_clients_temperature_on_the_public_row_costs_nothing(temperature):
    found = check(filtered(tokens(TWO, temperature)), TWO)
    assert found.holds


def test_what_follows_from_released_tokens_costs_nothing():
    """Stops on released text, a guess from public things, and a burst that shows whether the token equals the guess."""

    def draw(context, corpus):
        guess = largest(context.public)
        for (word, token, *rest), chance in tokens(TWO)(context, corpus):
            yield (word, token, *rest, "burst", token == guess, "stop", token == 0), chance

    assert check(filtered(draw), TWO).holds


def test_a_guess_with_coins_of_its_own_costs_nothing():
    def draw(context, corpus):
        for guess, share in enumerate(context.public):
            for (word, token, *rest), chance in tokens(TWO)(context, corpus):
                yield (word, token, *rest, "guess", guess, "burst", token == guess), chance * share

    assert check(filtered(draw), TWO).holds


def not_finite_contexts(settings):
    """One world's row is not finite in the first corpus, an ordinary one in the second, and the other way round."""
    for context in contexts_for(replace(settings, relation=Relation.REPLACEMENT)):
        yield replace(context, mine=(None, context.mine[1]))
        yield replace(context, mine=(context.mine[0], None))


def test_a_row_that_is_not_finite_and_votes_zero_is_one_more_vote():
    assert check(filtered(tokens(TWO)), TWO, [*not_finite_contexts(TWO)]).holds


def public_coins(context, corpus):
    """Trap 1: the token is what the scores and public coins give."""
    shares = softmax(scores(TWO, context, corpus))
    for coin in range(COINS):
        yield ("coin", coin, "token", token_at(shares, (coin + 0.5) / COINS)), 1 / COINS


def greedy(context, corpus):
    """Trap 2: the best score leaves."""
    yield ("token", largest(scores(TWO, context, corpus))), 1.0


def temperature_on_scores(context, corpus):
    """Trap 2: a client's temperature divides the whole score, at the deployment's charge."""
    for token, chance in enumerate(softmax([score / 0.25 for score in scores(TWO, context, corpus)])):
        yield ("token", token), chance


def rounded_counts(context, corpus):
    """Trap 6: probabilities are rounded to multiples of 2^-62, and at least one."""
    counts = [max(1, round(share * 2**62)) for share in softmax(scores(SMALL, context, corpus))]
    for token, count in enumerate(counts):
        yield ("token", token), float(Fraction(count, sum(counts)))


def shown_log_probability(context, corpus):
    """Trap 7: log-probabilities are shown, to one digit."""
    shares = softmax(scores(TWO, context, corpus))
    for token, chance in enumerate(shares):
        yield ("token", token, "logprob", round(math.log(chance), 1)), chance


def shown_dissent(context, corpus):
    """Trap 7: the answer says whether worlds and public model agree."""
    dissent = largest(scores(TWO, context, corpus)) != largest(context.public)
    for event, chance in tokens(TWO)(context, corpus):
        yield (*event, "dissent", dissent), chance


def hidden_stop(context, corpus):
    """Trap 9: the answer stops where the worlds together are sure of a token."""
    shares = softmax(scores(TWO, context, corpus))
    for event, chance in tokens(TWO)(context, corpus):
        yield (*event, "stop", max(shares) > 0.6), chance


def peeking_stop(context, corpus):
    """Trap 9: a further token is drawn, uncharged, and the answer stops before it if it is an end token."""
    shares = probabilities(TWO, context.public, context.sum(corpus))
    for event, chance in tokens(TWO)(context, corpus):
        yield (*event, "stop", True), chance * shares[0]
        yield (*event, "stop", False), chance * (1 - shares[0])


def shared_coins(context, corpus):
    """Trap 12: guess and token come from one number, and the burst shows whether they are equal."""
    edges = sorted({0.0, 1.0, context.public[0], softmax(scores(TWO, context, corpus))[0]})
    found = {}
    for low, high in pairwise(edges):
        middle = (low + high) / 2
        token = token_at(softmax(scores(TWO, context, corpus)), middle)
        event = ("token", token, "burst", token == token_at(context.public, middle))
        found[event] = found.get(event, 0.0) + high - low
    yield from found.items()


def accepted_guess(context, corpus):
    """Trap 12: speculative sampling's ratio accepts the guess, and the burst shows which were accepted."""
    shares = softmax(scores(TWO, context, corpus))
    for token, (public, share) in enumerate(zip(context.public, shares, strict=True)):
        yield ("token", token, "burst", True), min(public, share)
        yield ("token", token, "burst", False), max(0.0, share - public)


WRONG_DRAWS = (
    public_coins, greedy, temperature_on_scores, shown_log_probability, shown_dissent, hidden_stop, peeking_stop,
    shared_coins, accepted_guess,
)  # fmt: skip


@pytest.mark.parametrize("draw", WRONG_DRAWS, ids=lambda draw: draw.__name__)
def test_a_wrong_draw_is_flagged(draw):
    assert not check(filtered(draw), TWO).holds


def test_small_counts_that_are_rounded_are_flagged_by_the_range():
    """Divergences of the usual orders do not see them, so ranges are searched too; whole weights of 160 bits pass."""
    contexts = [replace(context, public=(1.0 - 1.5 * 2**-62, 1.5 * 2**-62)) for context in contexts_for(SMALL)]
    found = check(filtered(rounded_counts), SMALL, contexts, orders=(2.0, 8.0, 32.0))
    assert found.divergence <= 1.0
    assert found.range > 10.0
    assert check(filtered(tokens(SMALL)), SMALL, contexts).holds


def test_the_range_of_add_remove_for_replaced_votes_is_flagged():
    """Trap 5."""
    found = check(filtered(tokens(TWO)), alone(TWO), contexts_for(TWO))
    assert found.range == pytest.approx(2.0, rel=1e-6)
    assert found.divergence > 1.0


def test_a_cap_that_is_looked_at_too_late_is_flagged():
    """Trap 8: two tokens are what the account covers; the third is drawn before anybody looks."""

    def late(spent, context, corpus):
        if spent > CHARGED:
            return [(("refused",), 1.0, spent)]
        return [(event, chance, spent + 1) for event, chance in tokens(SMALL)(context, corpus)]

    assert check(filtered(tokens(SMALL)), SMALL).holds
    assert not check(late, SMALL).holds


def test_charging_only_what_differs_from_the_public_model_is_flagged():
    """Trap 8: tokens that the public model would have chosen are free."""

    def step(spent, context, corpus):
        if spent + 1 > 1:
            return [(("refused",), 1.0, spent)]
        shares = probabilities(SMALL, context.public, context.sum(corpus))
        expected = largest(context.public)
        return [(("token", token), share, spent + (token != expected)) for token, share in enumerate(shares)]

    assert not check(step, SMALL, charged=1).holds


def test_two_deployments_counted_as_one_are_flagged():
    """Trap 10: one account's cap, spent twice over the same corpus."""
    assert check(filtered(tokens(SMALL), 2), SMALL, charged=2, steps=2).holds
    assert not check(filtered(tokens(SMALL), 2), SMALL, charged=1, steps=2).holds


def test_an_error_that_depends_on_a_world_is_flagged():
    """Trap 11."""

    def draw(context, corpus):
        if context.mine[corpus] is None:
            yield ("error",), 1.0
        else:
            yield from tokens(TWO)(context, corpus)

    assert check(filtered(draw), TWO, [*not_finite_contexts(TWO)]).divergence == math.inf


@pytest.mark.parametrize("worlds", [2, 3])
def test_a_divisor_that_follows_the_corpus_is_flagged(worlds):
    """Trap 14: the votes are divided by the number of occupied worlds."""
    settings = replace(alone(TWO), num_worlds=worlds)

    def draw(context: Context, corpus):
        occupied = max(1, context.occupied_others + context.is_there[corpus])
        followed = replace(settings, num_worlds=occupied)
        shares = softmax(scores(followed, context, corpus))
        for token, chance in enumerate(shares):
            yield ("token", token), chance

    assert check(filtered(tokens(settings)), settings).holds
    assert not check(filtered(draw), settings).holds


def test_clipping_before_the_public_row_is_subtracted_is_as_private():
    """Trap 4 costs utility and no privacy: any votes within the clip pass, so vectors must find it, and they do."""
    contexts = [replace(context, others=(0, 0)) for context in contexts_for(TWO)]
    assert check(filtered(tokens(TWO)), TWO, contexts).holds
