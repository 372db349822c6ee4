import mpmath
import numpy as np
import pytest

from benchmarks import pmixed_oracle
from experiments.studies.pmixed import (
    PMixedSettings,
    mixed_distribution,
    mixing_weights,
    projection_orders,
    token_distribution,
)
from reticent.errors import InvalidValueError


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def distributions(generator, num_experts, size, spread):
    public = softmax(generator.normal(size=size) * 3)
    experts = softmax(np.log(public) + generator.normal(size=(num_experts, size)) * spread)
    return experts, public


@pytest.mark.parametrize("max_order", [2, 8])
@pytest.mark.parametrize("beta", [1e-4, 1e-2, 0.3])
@pytest.mark.parametrize("spread", [0.05, 1.0, 3.0])
def test_weights_equal_those_of_plain_bisection(max_order, beta, spread):
    experts, public = distributions(np.random.default_rng(0), 6, 300, spread)
    orders = projection_orders(max_order)
    plain = pmixed_oracle.mixing_weights(experts, public, beta, orders)
    assert mixing_weights(experts, public, beta, orders) == pytest.approx(plain, rel=2e-5, abs=1e-9)


def test_backward_direction_restricts_where_an_expert_drops_a_likely_token():
    public = np.array([0.5, 0.3, 0.2])
    experts = np.array([[0.0, 0.6, 0.4], [1e-12, 0.6, 0.4]])
    orders = projection_orders(3)
    weights = mixing_weights(experts, public, 0.2, orders)
    plain = pmixed_oracle.mixing_weights(experts, public, 0.2, orders)
    assert weights == pytest.approx(plain, rel=1e-5)
    for weight, expert in zip(weights, experts, strict=True):
        mixed = weight * expert + (1 - weight) * public
        forward = [pmixed_oracle.renyi_divergence(mixed, public, o) / o for o in orders]
        backward = [pmixed_oracle.renyi_divergence(public, mixed, o) / o for o in orders]
        assert max(backward) > max(forward)
        assert max(backward) <= 0.2


def test_tiny_radius_is_met_in_exact_arithmetic():
    experts, public = distributions(np.random.default_rng(1), 3, 50, 1.0)
    beta = 1e-12
    weights = mixing_weights(experts, public, beta, projection_orders(2))
    with mpmath.workdps(60):
        for weight, expert in zip(weights, experts, strict=True):
            p = [mpmath.mpf(x) for x in expert]
            q = [mpmath.mpf(x) for x in public]
            p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
            mixed = [mpmath.mpf(weight) * a + (1 - mpmath.mpf(weight)) * b for a, b in zip(p, q, strict=True)]
            worst = max(
                mpmath.log(sum(x**o * y ** (1 - o) for x, y in zip(a, b, strict=True))) / (o - 1) / o
                for o in (2, 3, 4)
                for a, b in ((mixed, q), (q, mixed))
            )
            assert 0.999 * beta < worst <= beta


def test_one_order_alone_leaves_the_ball_at_others():
    """The check of order α alone, as the public code has it, is not the ball that the accounting needs."""
    public = softmax(np.concatenate([[6.0], np.zeros(60)]))
    expert = softmax(np.concatenate([[6.0, 4.0], np.zeros(59)]))[None]
    beta, order = 0.01, 2
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        mixed = middle * expert[0] + (1 - middle) * public
        inside = max(
            pmixed_oracle.renyi_divergence(mixed, public, order), pmixed_oracle.renyi_divergence(public, mixed, order)
        )
        low, high = (middle, high) if inside <= beta * order else (low, middle)
    mixed = low * expert[0] + (1 - low) * public
    assert pmixed_oracle.renyi_divergence(mixed, public, 4) > 1.05 * beta * 4
    assert mixing_weights(expert, public, beta, projection_orders(2))[0] < 0.97 * low


def test_large_orders_and_huge_ratios_stay_finite():
    public = np.array([1 - 2e-30, 1e-30, 1e-30])
    expert = np.array([[0.5, 0.5, 0.0]])
    weights = mixing_weights(expert, public, 0.01, projection_orders(32))
    assert 0 < weights[0] < 1e-25


def test_mixture_is_the_mean_of_the_projections():
    experts, public = distributions(np.random.default_rng(2), 4, 20, 1.0)
    weights = np.array([0.0, 0.25, 0.5, 1.0])
    plain = np.mean([w * p + (1 - w) * public for w, p in zip(weights, experts, strict=True)], axis=0)
    assert mixed_distribution(experts, public, weights) == pytest.approx(plain, rel=1e-12)
    assert np.array_equal(mixed_distribution(experts[:0], public, weights[:0]), public)


def test_experts_take_part_independently_and_at_most_once():
    """Against the public code's draw with replacement, under which one expert may count twice."""
    public = np.full(8, 1 / 8)
    experts = np.eye(8) * 0.5 + 0.5 / 8
    settings = PMixedSettings(8, 0.25, 2, 50.0)
    generator = np.random.default_rng(3)
    counts = np.zeros(9)
    for _ in range(4000):
        mixed = token_distribution(experts, public, settings, generator)
        raised = mixed > mixed.min() + 1e-12
        taking_part = int(raised.sum()) if raised.any() else 0
        counts[taking_part] += 1
        if taking_part:
            # All that take part count alike.
            assert np.ptp(mixed[raised]) < 1e-12
    expected = 4000 * np.array([float(mpmath.binomial(8, k)) * 0.25**k * 0.75 ** (8 - k) for k in range(9)])
    assert ((counts - expected) ** 2 / expected.clip(1))[:6].sum() < 30


@pytest.mark.parametrize(
    ("experts", "public"),
    [
        (np.ones((2, 3)) / 3, np.ones(4) / 4),
        (np.ones((2, 3)) / 3, np.array([0.5, 0.5, 0.0])),
        (np.array([[0.5, 0.6]]), np.array([0.5, 0.5])),
        (np.array([[1.5, -0.5]]), np.array([0.5, 0.5])),
        (np.array([[np.nan, 0.5]]), np.array([0.5, 0.5])),
    ],
)
def test_what_is_no_distribution_is_refused(experts, public):
    with pytest.raises(InvalidValueError):
        mixing_weights(experts, public, 0.1, projection_orders(2))


@pytest.mark.parametrize(
    "change", [{"sampling_rate": 0.0}, {"sampling_rate": 1.5}, {"beta": float("nan")}, {"max_order": 1}]
)
def test_settings_out_of_range_are_refused(change):
    with pytest.raises(InvalidValueError):
        PMixedSettings(**{"num_shards": 4, "sampling_rate": 1.0, "max_order": 2, "beta": 0.1} | change)
