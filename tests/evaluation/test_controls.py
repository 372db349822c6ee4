"""Controls against plain counting and their distributions; the secret's absence from them."""

import inspect
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import stats

from reticent.errors import InvalidValueError
from reticent.evaluation import controls
from reticent.evaluation.controls import Control, control_tokens, fresh_world_draw, plurality, request_world_draw

VOTES = np.array([[7, 7, 9, 9, 3, 9], [4, 4, 4, 4, 4, 4], [2, 8, 2, 8, 1, 5]])

tables = array_shapes(min_dims=2, max_dims=2, max_side=9).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.one_of(st.integers(0, 3), st.integers(0, 2**62)))
)


def generator(seed=0):
    return np.random.default_rng(seed)


def counted(votes):
    counts = Counter(votes)
    return min(counts, key=lambda token: (-counts[token], token))


@given(tables)
def test_plurality_is_what_counting_says(votes):
    np.testing.assert_array_equal(plurality(votes), [counted(row) for row in votes.tolist()])


@given(tables, st.randoms(use_true_random=False))
def test_plurality_does_not_depend_on_the_order_of_worlds(votes, random):
    order = list(range(votes.shape[1]))
    random.shuffle(order)
    np.testing.assert_array_equal(plurality(votes[:, order]), plurality(votes))


def test_a_plurality_among_equals_is_the_lowest_token():
    np.testing.assert_array_equal(plurality(VOTES), [9, 4, 2])
    np.testing.assert_array_equal(plurality(np.array([[5, 1]], dtype=np.int32)), [1])


@pytest.mark.parametrize("control", list(Control))
def test_no_control_has_a_secret_among_its_arguments_and_each_casts_a_vote_that_was_cast(control):
    names = {
        name
        for function in vars(controls).values()
        if inspect.isfunction(function)
        for name in inspect.signature(function).parameters
    }
    assert names == {"control", "votes_NM", "generator", "request_N", "world_N"}
    tokens = control_tokens(control, VOTES, generator(3))
    assert tokens.dtype == np.int64
    assert all(token in row for token, row in zip(tokens, VOTES, strict=True))


def test_names_lead_to_the_functions():
    votes, requests = generator(1).integers(0, 50, (40, 16)), np.repeat([5, 3, 5, 8], 10)
    np.testing.assert_array_equal(control_tokens(Control("plurality"), votes, generator()), plurality(votes))
    np.testing.assert_array_equal(
        control_tokens(Control("fresh-world"), votes, generator(2)), fresh_world_draw(votes, generator(2))
    )
    np.testing.assert_array_equal(
        control_tokens(Control("request-world"), votes, generator(2), requests),
        request_world_draw(votes, generator(2), requests),
    )


def test_a_fresh_world_is_uniform_and_independent_from_position_to_position():
    worlds = fresh_world_draw(np.tile(np.arange(4), (20_000, 1)), generator(5))
    assert stats.chisquare(np.bincount(worlds, minlength=4)).pvalue > 1e-6
    pairs = np.bincount(worlds[:-1:2] * 4 + worlds[1::2], minlength=16)
    assert stats.chisquare(pairs).pvalue > 1e-6


def test_a_request_keeps_its_world_and_requests_draw_their_own():
    requests = np.repeat(np.arange(3_000), 3)
    shuffled = generator(1).permutation(requests)
    worlds = request_world_draw(np.tile(np.arange(4), (9_000, 1)), generator(6), shuffled)
    per_request = [set(worlds[shuffled == request]) for request in range(0, 3_000, 50)]
    assert {len(used) for used in per_request} == {1}
    first = worlds[np.unique(shuffled, return_index=True)[1]]
    assert stats.chisquare(np.bincount(first, minlength=4)).pvalue > 1e-6
    assert stats.chisquare(np.bincount(first[::2] * 4 + first[1::2], minlength=16)).pvalue > 1e-6


def test_one_request_is_one_worlds_text_whole():
    votes = generator(7).integers(0, 1_000, (30, 8))
    answers = {tuple(request_world_draw(votes, generator(seed))) for seed in range(60)}
    assert answers <= {tuple(column) for column in votes.T}
    assert len(answers) > 4


@pytest.mark.parametrize("votes", [np.zeros(3, dtype=int), np.zeros((2, 2)), np.zeros((2, 0), dtype=int)])
@pytest.mark.parametrize("control", list(Control))
def test_what_is_no_table_of_votes_is_refused(control, votes):
    with pytest.raises(InvalidValueError, match="one column a world"):
        control_tokens(control, votes, generator())


@pytest.mark.parametrize("requests", [np.zeros(2, dtype=int), np.zeros(3), np.zeros((3, 1), dtype=int)])
def test_requests_must_match_the_positions(requests):
    with pytest.raises(InvalidValueError, match="each of 3 positions"):
        request_world_draw(VOTES, generator(), requests)
