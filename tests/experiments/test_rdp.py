import itertools
import math

import numpy as np
import pytest

from benchmarks.pmixed_oracle import renyi_divergence
from experiments.studies.pmixed import PMixedSettings, mixed_distribution, mixing_weights, projection_orders
from experiments.studies.pmixed_calibration import Reading, calibrate_pmixed, pmixed_success
from experiments.studies.rdp import (
    mixed_rdp,
    published_step_rdp,
    rdp_curve,
    step_rdp,
    success_of_epsilon,
    success_of_rdp,
)
from reticent.errors import InvalidValueError


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sampled_distribution(experts, public, rate, weights):
    """The exact distribution of a token: a sum over every set of experts that may take part."""
    mixed = np.zeros_like(public)
    for chosen in itertools.product([False, True], repeat=len(experts)):
        rows = np.flatnonzero(chosen)
        probability = rate ** len(rows) * (1 - rate) ** (len(experts) - len(rows))
        mixed += probability * mixed_distribution(experts[rows], public, weights[rows])
    return mixed


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("beta", [0.003, 0.05, 0.4])
def test_step_bounds_the_exact_divergence_between_neighbours(rate, beta):
    """One shard's expert replaced by a hostile one: every order, both directions, all subsets summed."""
    generator = np.random.default_rng(0)
    num_shards, max_order = 4, 4
    for _ in range(15):
        public = softmax(generator.normal(size=6) * 2)
        experts = softmax(np.log(public) + generator.normal(size=(num_shards + 1, 6)) * generator.choice([0.5, 3.0]))
        weights = mixing_weights(experts, public, beta, projection_orders(max_order))
        here, there = np.arange(num_shards), np.r_[np.arange(num_shards - 1), num_shards]
        p = sampled_distribution(experts[here], public, rate, weights[here])
        q = sampled_distribution(experts[there], public, rate, weights[there])
        for order in range(2, max_order + 1):
            bound = step_rdp(order, num_shards, rate, beta)
            assert max(renyi_divergence(p, q, order), renyi_divergence(q, p, order)) <= bound * (1 + 1e-9)


def test_mixed_rdp_by_hand():
    assert mixed_rdp(2, 1, 0.1) == pytest.approx(0.8, rel=1e-14)
    assert mixed_rdp(3, 4, 0.1) == pytest.approx(math.log(0.75 + math.exp(2.4) / 4) / 2, rel=1e-14)
    assert mixed_rdp(2, 8, 1e-13) == pytest.approx(8e-13 / 8, rel=1e-9)
    assert mixed_rdp(8, 5, 40.0) == pytest.approx((7 * 1280 - math.log(5)) / 7, rel=1e-12)


def test_sampling_less_often_never_costs_more():
    for order in (2, 3, 8):
        steps = [step_rdp(order, 16, rate, 0.02) for rate in (0.05, 0.2, 0.6, 1.0)]
        assert steps == sorted(steps)


def test_published_accounting_at_full_sampling_is_the_mixture_bound():
    assert published_step_rdp(3, 5, 1.0, 0.02) == pytest.approx(mixed_rdp(3, 5, 0.02), rel=1e-12)
    with_one = published_step_rdp(2, 1, 0.5, 0.02)
    assert with_one == pytest.approx(math.log(0.5 * 1.5 + 0.25 * math.exp(0.04)), rel=1e-12)


def test_success_of_epsilon_by_hand_and_at_the_ends():
    assert success_of_epsilon(math.log(3)) == pytest.approx(0.75, rel=1e-15)
    assert success_of_epsilon(math.log(3), 0.1) == pytest.approx(3.1 / 4, rel=1e-15)
    assert success_of_epsilon(0.0) == 0.5
    assert success_of_epsilon(1000.0) == 1.0


def test_tight_success_is_the_best_test_over_all_pairs_of_error_rates():
    """A grid of all tests, asymmetric ones too: none that the orders allow does better, and one does almost as well."""
    orders, bounds = (2, 3, 5), (0.3, 0.35, 0.5)
    grid = np.linspace(0.001, 0.999, 300)
    best = 0.5
    for hit in grid:
        for alarm in grid[grid < hit]:
            p, q = np.array([hit, 1 - hit]), np.array([alarm, 1 - alarm])
            if all(
                max(renyi_divergence(p, q, o), renyi_divergence(q, p, o)) <= b
                for o, b in zip(orders, bounds, strict=True)
            ):
                best = max(best, (hit + 1 - alarm) / 2)
    tight = success_of_rdp(orders, bounds)
    assert best <= tight <= best + 0.005


@pytest.mark.parametrize("order", [2, 8, 32])
@pytest.mark.parametrize("bound", [1e-12, 1e-4, 3.0])
def test_tight_success_inverts_the_divergence(order, bound):
    success = success_of_rdp([order], [bound])
    if success - 0.5 > 1e-5:
        coins = np.array([success, 1 - success])
        assert renyi_divergence(coins, coins[::-1], order) == pytest.approx(bound, rel=1e-6)
    else:
        # To leading order the divergence is order / 2 times χ² = 16 g² of the gain g.
        assert success - 0.5 == pytest.approx(math.sqrt(bound / (8 * order)), rel=1e-2)


@pytest.mark.parametrize("reading", list(Reading))
@pytest.mark.parametrize("num_tokens", [100, 100_000])
def test_calibration_ends_just_below_the_target(reading, num_tokens):
    settings = calibrate_pmixed(16, 0.5, 16, num_tokens, 0.9, reading)
    assert settings.beta > 0
    reached = pmixed_success(settings, num_tokens, reading)
    assert 0.899 < reached <= 0.9
    beyond = PMixedSettings(16, 0.5, 16, settings.beta * 1.01)
    assert pmixed_success(beyond, num_tokens, reading) > 0.9


def test_readings_are_ordered():
    settings = PMixedSettings(16, 1.0, 16, 0.003)
    tight, rigorous = (pmixed_success(settings, 100, r) for r in (Reading.TIGHT, Reading.RIGOROUS))
    assert tight < rigorous


def test_low_orders_leave_the_rigorous_reading_next_to_nothing():
    """At δ = 1e-5 the conversion from orders up to 4 adds some 3 nats; only near-equality escapes it."""
    rigorous = calibrate_pmixed(8, 1.0, 4, 100, 0.51, Reading.RIGOROUS)
    tight = calibrate_pmixed(8, 1.0, 4, 100, 0.51, Reading.TIGHT)
    assert rigorous.beta < 1e-9
    assert tight.beta > 1e-6


def test_target_beyond_reach_gives_the_public_model():
    assert calibrate_pmixed(8, 1.0, 4, 100, 0.5 + 1e-7, Reading.RIGOROUS).beta == 0.0


def test_composition_adds_up():
    assert rdp_curve((2, 3), 4, 1.0, 0.01, 7) == pytest.approx([7 * step_rdp(o, 4, 1.0, 0.01) for o in (2, 3)])


def test_values_out_of_range_are_refused():
    for call in (
        lambda: step_rdp(1, 4, 1.0, 0.1),
        lambda: step_rdp(2, 0, 1.0, 0.1),
        lambda: step_rdp(2, 4, float("nan"), 0.1),
        lambda: step_rdp(2, 4, 1.0, -0.1),
        lambda: success_of_epsilon(-1.0),
        lambda: success_of_epsilon(1.0, 2.0),
        lambda: success_of_rdp([], []),
        lambda: calibrate_pmixed(4, 1.0, 2, 10, 0.5, Reading.TIGHT),
    ):
        with pytest.raises(InvalidValueError):
            call()
