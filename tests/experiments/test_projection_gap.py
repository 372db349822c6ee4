"""One order of the ball or all of them, held to divergences summed by hand and to the projection that checks all."""

import math

import numpy as np
import pytest

from experiments.studies.pmixed import mixing_weights, projection_orders
from experiments.studies.projection_gap import excess, one_order_weights, renyi_divergence

PUBLIC = np.array([0.5, 0.3, 0.15, 0.049, 0.001])
EXPERTS = np.array([[0.2, 0.2, 0.2, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1, 0.6]])


@pytest.mark.parametrize("order", [2, 5])
def test_divergences_are_the_defining_sums(order):
    first, second = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    by_hand = math.log(0.25**order * 0.5 ** (1 - order) + 0.75**order * 0.5 ** (1 - order)) / (order - 1)
    assert renyi_divergence(order, first, second) == pytest.approx(by_hand, rel=1e-12)
    assert renyi_divergence(order, first, first) == pytest.approx(0.0, abs=1e-15)


def test_a_token_the_first_never_says_adds_nothing():
    first, second = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert renyi_divergence(2, first, second) == pytest.approx(math.log(2.0), rel=1e-12)


@pytest.mark.parametrize("order", [2, 4])
def test_one_order_fills_its_own_limit_and_overruns_the_others(order):
    beta = 0.01
    loose_N = one_order_weights(EXPERTS, PUBLIC, beta, order)
    strict_N = mixing_weights(EXPERTS, PUBLIC, beta, projection_orders(order))
    assert (strict_N < loose_N).all()
    for loose, strict, expert_V in zip(loose_N, strict_N, EXPERTS, strict=True):
        loose_V, strict_V = (PUBLIC + weight * (expert_V - PUBLIC) for weight in (loose, strict))
        assert excess(loose_V, PUBLIC, beta, (order,)) == pytest.approx(1.0, rel=1e-6)
        assert excess(loose_V, PUBLIC, beta, projection_orders(order)) > 1.0 + 1e-6
        assert excess(strict_V, PUBLIC, beta, projection_orders(order)) <= 1.0


def test_an_expert_inside_the_ball_is_taken_whole():
    near = 0.999 * PUBLIC + 0.001 * EXPERTS[0]
    assert one_order_weights(near[None], PUBLIC, 1.0, 3).tolist() == [1.0]
