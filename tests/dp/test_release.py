"""Votes, weights and draws of the corpus guarantee, against independent numbers, exact fractions and plain loops."""

import json
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reticent.dp.accounting import cap_units, charge_units, units_to_rho
from reticent.dp.relations import Relation
from reticent.dp.release import (
    Aggregate,
    CorpusSettings,
    integer_votes,
    integer_weights,
    public_log_probabilities,
    release,
)
from reticent.errors import InvalidValueError
from reticent.randomness import SeededNoise, SystemNoise

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "corpus.json").read_text())["release"]
FALSE_ALARM = 1e-7
ONE_NAT = 1 << 24


def make_settings(**changed):
    values = {"clip": 0.5, "gain": 2.0, "temperature": 1.0, "num_candidates": 3, "num_worlds": 4}
    return CorpusSettings(**({**values, "relation": Relation.REPLACEMENT} | changed))


def aggregate_of(public_logits_K, world_logits_MK, clip, occupied_M=None):
    public_logp_K = public_log_probabilities(np.asarray(public_logits_K))
    worlds_MK = np.asarray(world_logits_MK)
    occupied_M = np.ones(len(worlds_MK), dtype=bool) if occupied_M is None else occupied_M
    votes_MK = integer_votes(public_logp_K, worlds_MK, occupied_M, clip)
    return Aggregate(np.arange(public_logp_K.size), public_logp_K, votes_MK.sum(axis=0))


class CountedBits:
    """A source that gives out fixed bits, and counts how often it is asked."""

    is_secure = True

    def __init__(self, value):
        self.value, self.asked = value, []

    def secret_bits(self, count):
        self.asked.append(count)
        return self.value


@pytest.mark.parametrize("vector", VECTORS, ids=range(len(VECTORS)))
def test_independent_probabilities_ranges_and_charges(vector):
    worlds, count = len(vector["world_logits"]), len(vector["public_logits"])
    constants = {name: vector[name] for name in ("clip", "gain", "temperature")}
    for relation, suffix in ((Relation.REPLACEMENT, ""), (Relation.ADD_REMOVE, "_add_remove")):
        settings = CorpusSettings(**constants, num_candidates=count, num_worlds=worlds, relation=relation)
        assert settings.eta == pytest.approx(vector["eta" + suffix], rel=1e-14)
        assert settings.rho == pytest.approx(vector["rho" + suffix], rel=1e-14)
        weights = integer_weights(
            aggregate_of(vector["public_logits"], vector["world_logits"], vector["clip"]), settings
        )
        shares = [float(Fraction(weight, sum(weights))) for weight in weights]
        assert shares == pytest.approx(vector["probabilities"], rel=2e-6)


def test_the_reference_flags_votes_that_are_clipped_before_the_public_row_is_subtracted():
    vector = VECTORS[0]
    clipped = np.clip(np.asarray(vector["world_logits"]), -vector["clip"], vector["clip"])
    settings = make_settings(
        clip=vector["clip"], gain=vector["gain"], temperature=vector["temperature"], num_worlds=len(clipped)
    )
    weights = integer_weights(aggregate_of(vector["public_logits"], clipped, vector["clip"]), settings)
    shares = [float(Fraction(weight, sum(weights))) for weight in weights]
    assert shares != pytest.approx(vector["probabilities"], rel=1e-3)


@given(st.data())
def test_votes_are_those_of_a_plain_loop(data):
    number = st.floats(-30, 30, width=32)
    count = data.draw(st.integers(2, 5))
    rows = st.lists(st.lists(number, min_size=count, max_size=count), min_size=1, max_size=4)
    public, worlds = data.draw(st.lists(number, min_size=count, max_size=count)), data.draw(rows)
    clip = data.draw(st.sampled_from([2.0**-24, 0.05, 0.1, 1.0]))
    public_logp_K = public_log_probabilities(np.array(public))
    votes_MK = integer_votes(public_logp_K, np.array(worlds), np.ones(len(worlds), dtype=bool), clip)
    limit = math.floor(Fraction(clip) * ONE_NAT)
    with mpmath.workdps(40):
        norm = mpmath.log(sum(mpmath.exp(x) for x in public))
        for row, votes_K in zip(worlds, votes_MK, strict=True):
            total = mpmath.log(sum(mpmath.exp(x) for x in row))
            for x, p, vote in zip(row, public, votes_K, strict=True):
                wanted = min(max((x - total - p + norm) * ONE_NAT, -limit), limit)
                assert abs(wanted - int(vote)) < 0.501


def strange_rows():
    return {
        "empty": np.zeros(3),
        "nan": np.array([0.0, np.nan, 1.0]),
        "inf": np.array([np.inf, 0.0, 1.0]),
        "minus inf": np.array([-np.inf, 0.0, 1.0]),
        "huge": np.array([1e30, -1e30, 0.0]),
        "largest": np.array([1.7e308, -1.7e308, 0.0]),
    }


@pytest.mark.parametrize("name", strange_rows())
@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_strange_world_leaves_the_votes_of_all_others(name, place, kind):
    rng = np.random.default_rng(5)
    public_logp_K = public_log_probabilities(rng.normal(size=3))
    worlds_MK = rng.normal(size=(5, 3)).astype(kind)
    occupied_M = np.ones(5, dtype=bool)
    before_MK = integer_votes(public_logp_K, worlds_MK, occupied_M, 0.5)
    with np.errstate(over="ignore"):
        worlds_MK[place] = strange_rows()[name].astype(kind)
    occupied_M[place] = name != "empty"
    after_MK = integer_votes(public_logp_K, worlds_MK, occupied_M, 0.5)
    others = np.arange(5) != place
    np.testing.assert_array_equal(after_MK[others], before_MK[others])
    if name == "huge":
        np.testing.assert_array_equal(np.abs(after_MK[place]), ONE_NAT // 2)
    elif name != "largest":
        np.testing.assert_array_equal(after_MK[place], 0)
    assert np.abs(after_MK).max() <= ONE_NAT // 2


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("clip", "gain", "temperature", "worlds"), [(0.1, 2.0, 1.3, 512), (37.0, 1.0, 1.0, 1)])
def test_a_charge_is_the_next_whole_number_above_rho_of_the_widened_range(relation, clip, gain, temperature, worlds):
    settings = make_settings(relation=relation, clip=clip, gain=gain, temperature=temperature, num_worlds=worlds)
    factor = {Relation.REPLACEMENT: 4, Relation.ADD_REMOVE: 2}[relation]
    eta = factor * Fraction(gain) * Fraction(clip) / Fraction(temperature) / worlds
    wanted = Fraction(2**64) * (eta + Fraction(1, 2**42)) ** 2 / 8
    assert settings.charge_units - 1 < wanted <= settings.charge_units
    assert settings.charge_units == charge_units(settings.exact_eta)


def test_replacement_costs_four_times_as_much():
    both = {relation: make_settings(relation=relation).charge_units for relation in Relation}
    assert both[Relation.REPLACEMENT] / both[Relation.ADD_REMOVE] == pytest.approx(4.0, rel=1e-9)


def test_caps_are_rounded_down():
    assert cap_units(1.0) == 2**64
    assert units_to_rho(cap_units(0.1)) <= 0.1
    with pytest.raises(InvalidValueError, match="total rho"):
        cap_units(math.nan)


@given(
    public=st.lists(st.floats(-90, 0), min_size=3, max_size=3),
    votes=st.lists(st.integers(-4 * 2**23, 4 * 2**23), min_size=3, max_size=3),
    gain=st.sampled_from([0.001, 1.0, 2.0, 50.0, 74.0]),
)
def test_weights_are_within_the_error_that_the_charge_pays_for(public, votes, gain):
    settings = make_settings(gain=gain)
    aggregate = Aggregate(np.arange(3), np.array(public), np.array(votes))
    public_K = np.array(public) - max(public)
    with mpmath.workdps(60):
        kappa = mpmath.mpf(gain) / (4 * ONE_NAT)
        for a, vote, weight in zip(public_K, votes, integer_weights(aggregate, settings), strict=True):
            if weight == 0:
                assert -a + 2 * settings.w > 74
            else:
                real = a + kappa * vote - gain / 2 + 160 * mpmath.log(2)
                assert abs(mpmath.log(weight) - real) < mpmath.mpf(2) ** -44
                assert weight >= 2**52


def test_the_smallest_weight_has_all_bits_of_a_double():
    weights = integer_weights(
        Aggregate(np.arange(3), np.array([0.0, -72.0, -72.1]), np.array([2 * ONE_NAT, -2 * ONE_NAT, 0])),
        make_settings(),
    )
    assert weights[1] >= 2**52
    assert weights[2] == 0


def test_candidates_are_left_out_whatever_the_votes():
    settings = make_settings(gain=10.0)
    public_logp_K = np.array([0.0, -63.9, -64.1])
    for votes in ([0, 0, 0], [-(2**25), 2**25, 2**25], [2**25, -(2**25), -(2**25)]):
        weights = integer_weights(Aggregate(np.arange(3), public_logp_K, np.array(votes)), settings)
        assert [weight > 0 for weight in weights] == [True, True, False]


@given(st.integers(0, 2**256 - 1), st.lists(st.integers(-(2**25), 2**25), min_size=3, max_size=3))
def test_one_draw_of_256_bits_picks_the_cell_it_falls_into(value, votes):
    aggregate = Aggregate(np.arange(3), np.array([-0.5, -1.5, -2.0]), np.array(votes))
    settings, bits = make_settings(), CountedBits(value)
    index = release(aggregate, settings, bits)
    weights = integer_weights(aggregate, settings)
    share = Fraction(value, 2**256)
    assert Fraction(sum(weights[:index]), sum(weights)) <= share + Fraction(1, 2**150)
    assert share < Fraction(sum(weights[: index + 1]), sum(weights))
    assert bits.asked == [256]


@pytest.mark.parametrize("bits", [SystemNoise(), SeededNoise(7)])
def test_tokens_follow_the_weights(bits):
    aggregate = Aggregate(np.arange(3), np.array([-0.5, -1.5, -2.0]), np.array([-(2**24), 2**25, 0]))
    settings = make_settings()
    weights = integer_weights(aggregate, settings)
    drawn = np.bincount([release(aggregate, settings, bits) for _ in range(20_000)], minlength=3)
    expected = [20_000 * weight / sum(weights) for weight in weights]
    assert stats.chisquare(drawn, expected).pvalue > FALSE_ALARM


def test_a_clients_temperature_divides_the_public_row_alone():
    aggregate = Aggregate(np.arange(3), np.array([-0.2, -2.0, -3.0]), np.array([-(2**25), 2**25, 2**24]))
    settings = make_settings()
    for temperature in (0.25, 1.0, 4.0):
        scores = aggregate.public_logp_K / temperature + aggregate.sum_K * 2.0 / (4 * ONE_NAT)
        shares = np.exp(scores) / np.exp(scores).sum()
        weights = integer_weights(aggregate, settings, temperature)
        assert [weight / sum(weights) for weight in weights] == pytest.approx(shares, rel=1e-12)
    assert [weight > 0 for weight in integer_weights(aggregate, settings, 5e-324)] == [True, False, False]
    for refused in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidValueError, match="temperature"):
            integer_weights(aggregate, settings, refused)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": math.nan}, "clip"),
        ({"clip": 2.0**-25}, "clip must be at least 2"),
        ({"clip": 2.0**31, "gain": 2.0**-31}, "lower the clip"),
        ({"gain": -1.0}, "gain"),
        ({"gain": 74.1}, "37"),
        ({"temperature": 0.0}, "temperature"),
        ({"num_candidates": 1}, "num_candidates"),
        ({"num_worlds": 0}, "num_worlds"),
        ({"relation": "zero-out"}, "replacement, add-remove"),
    ],
)
def test_constants_out_of_range_are_named(changed, message):
    with pytest.raises(InvalidValueError, match=message):
        make_settings(**changed)


def test_only_the_public_row_raises():
    worlds_MK = np.full((2, 3), np.nan)
    with pytest.raises(InvalidValueError, match="public model"):
        public_log_probabilities(np.array([0.0, np.nan, 0.0]))
    with pytest.raises(InvalidValueError, match="public model"):
        integer_votes(np.array([0.0, -np.inf, 0.0]), worlds_MK, np.ones(2, dtype=bool), 0.5)
    assert not integer_votes(np.full(3, -math.log(3)), worlds_MK, np.ones(2, dtype=bool), 0.5).any()


def test_an_aggregate_of_other_settings_is_refused():
    settings, public_logp_K = make_settings(), np.full(3, -math.log(3))
    with pytest.raises(InvalidValueError, match="3 candidates"):
        integer_weights(Aggregate(np.arange(2), public_logp_K[:2], np.zeros(2, dtype=np.int64)), settings)
    with pytest.raises(InvalidValueError, match="add up to more"):
        integer_weights(Aggregate(np.arange(3), public_logp_K, np.array([0, 0, 2**25 + 1])), settings)
    with pytest.raises(InvalidValueError, match="one length"):
        Aggregate(np.arange(2), public_logp_K, np.zeros(3, dtype=np.int64))
    with pytest.raises(InvalidValueError, match="int64"):
        Aggregate(np.arange(3), public_logp_K, np.zeros(3))


def test_votes_are_not_shown():
    votes_K = np.array([123456, 0, -123456])
    assert "123456" not in repr(Aggregate(np.arange(3), np.full(3, -math.log(3)), votes_K))


@pytest.mark.parametrize("sign", [1, -1])
def test_no_corpus_moves_a_token_by_more_than_twice_w(sign):
    """Free besides: a token is at most e^{2w} times as likely as under the public model, whatever the worlds say."""
    settings, public = make_settings(gain=3.0), np.array([0.9, 0.05, 0.05])
    for votes in ((1, -1, -1), (-1, 1, -1), (-1, 1, 1)):
        sums = sign * np.array(votes) * settings.num_worlds * settings.vote_limit
        weights = integer_weights(Aggregate(np.arange(3), np.log(public), sums), settings)
        ratios = np.array([weight / sum(weights) for weight in weights]) / public
        assert ratios.max() <= math.exp(2 * settings.w) * (1 + 1e-12)
        assert ratios.min() >= math.exp(-2 * settings.w) * (1 - 1e-12)
        assert not np.allclose(ratios, 1.0)
