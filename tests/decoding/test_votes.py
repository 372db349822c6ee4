import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reticent.decoding.votes import Decoder, DecodingSettings, greedy_votes, gumbel_votes, top_candidates
from reticent.errors import InvalidValueError


def naive_top(logits, k):
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    return sorted(ranked[:k])


def naive_vote(scores, candidates):
    return min(zip(scores, candidates, strict=True), key=lambda pair: (-pair[0], pair[1]))[1]


# Few distinct values, so that most examples contain ties.
coarse_logits = st.lists(st.integers(-2, 2).map(float), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(logits=coarse_logits, data=st.data())
def test_top_candidates_agree_with_a_sort(logits, data):
    k = data.draw(st.integers(1, len(logits)))
    found = top_candidates(np.array(logits, dtype=np.float32), k)
    assert found.dtype == np.int64
    assert found.tolist() == naive_top(logits, k)


def test_top_candidates_at_full_size_agree_with_a_sort():
    logits = np.random.default_rng(5).normal(size=49_152).round(1).astype(np.float32)
    assert top_candidates(logits, 200).tolist() == naive_top(logits.tolist(), 200)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_votes_agree_with_a_loop_and_ignore_the_order_of_candidates(data):
    k = data.draw(st.integers(1, 6))
    m = data.draw(st.integers(1, 5))
    draw_row = st.lists(st.integers(-1, 1).map(float), min_size=k, max_size=k)
    logits = np.array([data.draw(draw_row) for _ in range(m)], dtype=np.float32)
    coins = np.array(data.draw(draw_row))
    candidates = np.array(data.draw(st.lists(st.integers(0, 99), min_size=k, max_size=k, unique=True)))
    order = np.array(data.draw(st.permutations(range(k))))

    greedy = greedy_votes(logits, candidates)
    assert greedy.tolist() == [naive_vote(row, candidates) for row in logits.tolist()]
    assert greedy.tolist() == greedy_votes(logits[:, order], candidates[order]).tolist()

    # Halves and small integers are exact in binary, so ties in the sum are true ties.
    sampled = gumbel_votes(logits, candidates, coins, 2.0)
    assert sampled.tolist() == [naive_vote(row / 2.0 + coins, candidates) for row in logits.astype(np.float64)]
    assert sampled.tolist() == gumbel_votes(logits[:, order], candidates[order], coins[order], 2.0).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_each_world_samples_its_own_softmax(temperature):
    generator = np.random.default_rng(11)
    logits = np.array([[0.0, 1.0, 2.0, -1.0], [1.5, 1.5, 0.0, 0.0], [-3.0, 0.2, 0.1, 2.5]])
    candidates = np.array([3, 17, 40, 41])
    draws = 20_000
    votes = np.array([gumbel_votes(logits, candidates, generator.gumbel(size=4), temperature) for _ in range(draws)])
    for world, row in enumerate(logits.tolist()):
        weights = [math.exp(value / temperature) for value in row]
        expected = [draws * weight / sum(weights) for weight in weights]
        observed = [(votes[:, world] == token).sum() for token in candidates]
        assert stats.chisquare(observed, expected).pvalue > 1e-4


def test_coupling_makes_two_worlds_disagree_no_more_than_coupled_gumbel_theory_says():
    # For Gumbel-coupled samples of p and q, P(both vote c) = 1 / sum_j max(p_j / p_c, q_j / q_c).
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    agree = sum(1.0 / np.maximum(p / p[c], q / q[c]).sum() for c in range(3))
    generator = np.random.default_rng(3)
    logits, candidates, draws = np.log([p, q]), np.arange(3), 20_000
    votes = np.array([gumbel_votes(logits, candidates, generator.gumbel(size=3), 1.0) for _ in range(draws)])
    hits = int((votes[:, 0] == votes[:, 1]).sum())
    assert stats.binomtest(hits, draws, agree).pvalue > 1e-4


def test_worlds_with_the_same_logits_always_agree():
    generator = np.random.default_rng(0)
    row = generator.normal(size=50).astype(np.float32)
    logits = np.tile(row, (16, 1))
    for _ in range(50):
        assert len(set(gumbel_votes(logits, np.arange(50), generator.gumbel(size=50), 0.7).tolist())) == 1


def test_a_tiny_temperature_tends_to_greedy_and_keeps_ties_random():
    logits = np.array([[1.0, 3.0, 3.0], [5.0, 4.0, -np.inf]])
    candidates = np.array([2, 5, 9])
    assert gumbel_votes(logits, candidates, np.array([9.0, 0.0, 1.0]), 1e-308).tolist() == [9, 2]
    assert gumbel_votes(logits, candidates, np.array([9.0, 1.0, 0.0]), 1e-308).tolist() == [5, 2]


def test_a_token_of_probability_zero_is_never_voted_for():
    logits = np.array([[-np.inf, 0.0, -np.inf]])
    assert gumbel_votes(logits, np.array([1, 2, 3]), np.array([50.0, 0.0, 50.0]), 1.0).tolist() == [2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_distribution_are_refused(bad):
    public = np.zeros(8)
    public[3] = bad
    with pytest.raises(InvalidValueError, match="NaN"):
        top_candidates(public, 2)
    worlds = np.zeros((4, 3))
    worlds[2, 1] = bad
    with pytest.raises(InvalidValueError, match="world 2"):
        greedy_votes(worlds, np.arange(3))
    with pytest.raises(InvalidValueError, match="world 2"):
        gumbel_votes(worlds, np.arange(3), np.zeros(3), 1.0)
    with pytest.raises(InvalidValueError, match="world 0"):
        greedy_votes(np.full((1, 3), -np.inf), np.arange(3))


@pytest.mark.parametrize("k", [0, -1, 9])
def test_a_candidate_set_outside_the_vocabulary_is_refused(k):
    with pytest.raises(InvalidValueError, match="vocabulary size 8"):
        top_candidates(np.zeros(8), k)


def test_shapes_that_disagree_are_refused():
    with pytest.raises(InvalidValueError, match="shape"):
        greedy_votes(np.zeros((2, 3)), np.arange(4))
    with pytest.raises(InvalidValueError, match="coins"):
        gumbel_votes(np.zeros((2, 3)), np.arange(3), np.zeros(2), 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(["step_budget", "temperature"], [0.0, -1.0, math.nan, math.inf]),
        ("num_candidates", 0),
        ("num_candidates", 2.0),
        ("decoder", "beam"),
        ("release_mechanism", "laplace"),
    ],
)
def test_settings_outside_their_range_are_refused(field, value):
    with pytest.raises(InvalidValueError, match=field):
        DecodingSettings(**{"decoder": Decoder.GUMBEL, "step_budget": 2.0**-32, field: value})
