"""The one-run bound against exact arithmetic, hand values and mechanisms whose ε is known."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from reticent.auditing.canaries.one_run import guess_inclusion, largest_rejected_epsilon, one_run_epsilon, tail_bound
from reticent.errors import InvalidValueError


def exact_tail_bound(accuracy, num_canaries, num_guesses, num_correct, delta):
    """The theorem written out in fractions, with each tail summed on its own."""

    def tail(v):
        return sum(
            math.comb(num_guesses, k) * accuracy**k * (1 - accuracy) ** (num_guesses - k)
            for k in range(max(0, v), num_guesses + 1)
        )

    steps = [(tail(num_correct - i) - tail(num_correct)) / i for i in range(1, num_canaries + 1)]
    return min(Fraction(1), tail(num_correct) + 2 * num_canaries * delta * max(steps))


@pytest.mark.parametrize("num_correct", [1, 5, 9, 12])
@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 1000), Fraction(1, 20)])
@pytest.mark.parametrize("odds", [1, 3, 20])
def test_tail_bound_is_the_theorem(num_correct, delta, odds):
    expected = exact_tail_bound(Fraction(odds, odds + 1), 15, 12, num_correct, delta)
    found = tail_bound(math.log(odds), 15, 12, num_correct, float(delta))
    assert found == pytest.approx(float(expected), rel=1e-10)


def test_all_correct_by_hand():
    """All of r guesses right: rejected while (e^ε/(1+e^ε))^r ≤ 0.05, so e^ε = q/(1 − q) with q = 0.05^(1/r)."""
    for num_guesses in (5, 50, 1000):
        accuracy = 0.05 ** (1 / num_guesses)
        found = largest_rejected_epsilon(num_guesses, num_guesses, num_guesses)
        assert found == pytest.approx(math.log(accuracy / (1 - accuracy)), abs=1e-6)
    assert largest_rejected_epsilon(4, 4, 4) == 0.0
    assert largest_rejected_epsilon(100, 100, 50) == 0.0
    assert largest_rejected_epsilon(100, 100, 0) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_the_bound_is_on_the_rejected_side_and_sharp(delta):
    for num_correct in (140, 170, 199, 200):
        epsilon = largest_rejected_epsilon(1000, 200, num_correct, delta)
        if epsilon > 0:
            assert tail_bound(epsilon, 1000, 200, num_correct, delta) <= 0.05
            assert tail_bound(epsilon + 1e-6, 1000, 200, num_correct, delta) > 0.05


def test_the_bound_rises_with_evidence_and_falls_with_doubt():
    by_correct = [largest_rejected_epsilon(500, 200, v, 1e-5) for v in range(0, 201, 5)]
    assert by_correct == sorted(by_correct)
    assert by_correct[-1] > by_correct[24] > 0
    by_delta = [largest_rejected_epsilon(500, 200, 190, delta) for delta in (0.0, 1e-6, 1e-4, 1e-2, 0.5)]
    assert by_delta == sorted(by_delta, reverse=True)
    assert by_delta[-1] == 0.0
    by_confidence = [largest_rejected_epsilon(500, 200, 190, 1e-5, c) for c in (0.5, 0.9, 0.95, 0.999)]
    assert by_confidence == sorted(by_confidence, reverse=True)
    by_canaries = [largest_rejected_epsilon(m, 200, 190, 1e-4) for m in (200, 500, 5000)]
    assert by_canaries == sorted(by_canaries, reverse=True)


def test_tail_bound_rises_with_epsilon():
    for delta in (0.0, 1e-4):
        bounds = [tail_bound(epsilon, 300, 100, 80, delta) for epsilon in np.linspace(0, 6, 100)]
        assert bounds == sorted(bounds)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_randomised_response_exact_coverage(epsilon):
    """Each coin is answered rightly with chance e^ε/(1 + e^ε): the chance of a bound above ε, summed exactly."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    wrong = sum(
        binom.pmf(v, 150, accuracy) for v in range(151) if largest_rejected_epsilon(150, 150, v) > epsilon + 1e-8
    )
    assert wrong <= 0.05


@pytest.mark.parametrize("epsilon", [0.0, 1.5])
def test_scores_from_randomised_response_monte_carlo(epsilon):
    """The whole audit, with several numbers of guesses tried, on randomised response at a known ε."""
    rng = np.random.default_rng(0)
    accuracy, bounds = 1 / (1 + math.exp(-epsilon)), []
    for repetition in range(300):
        included = rng.random(200) < 0.5
        answers = np.where(rng.random(200) < accuracy, included, ~included).astype(float)
        bounds.append(one_run_epsilon(answers, included, 0.0, repetition, confidence=0.9).epsilon)
    assert np.mean(np.array(bounds) > epsilon) <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 300)
    if epsilon:
        assert np.median(bounds) > 0.5


def test_guesses_are_the_extremes():
    scores = [0.0, 5.0, 1.0, 4.0, 2.0, 3.0]
    assert guess_inclusion(scores, 4, 0).tolist() == [-1, 1, -1, 1, 0, 0]
    assert guess_inclusion(scores, 3, 0).tolist() == [-1, 1, 0, 1, 0, 0]
    assert guess_inclusion(scores, 1, 0).tolist() == [0, 1, 0, 0, 0, 0]
    assert guess_inclusion([math.inf, 1.0, -math.inf], 2, 0).tolist() == [1, 0, -1]


def test_equal_scores_reveal_nothing_of_the_order_of_the_canaries():
    """A constant score, canaries listed with the included ones last: a stable sort alone would guess every one."""
    included = np.arange(200) >= 100
    bounds = [one_run_epsilon(np.zeros(200), included, 0.0, seed).epsilon for seed in range(50)]
    assert np.mean(np.array(bounds) > 0) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 50)


def test_the_reported_counts_make_the_reported_bound():
    rng = np.random.default_rng(9)
    included = rng.random(400) < 0.5
    found = one_run_epsilon(rng.normal(size=400) + 2 * included, included, 1e-5, 0)
    assert found.num_canaries == 400
    assert found.epsilon == largest_rejected_epsilon(400, found.num_guesses, found.num_correct, 1e-5, 0.99)
    assert found.epsilon > 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1, 1),
        (10, 11, 1),
        (10, 5, 6),
        (10, 0, 0),
        (10, 5, -1),
        (10, 5, 5, math.nan),
        (10, 5, 5, 1.0),
        (10, 5, 5, 0.0, 1.0),
    ],
)
def test_counts_outside_their_range_are_refused(arguments):
    with pytest.raises(InvalidValueError):
        largest_rejected_epsilon(*arguments)


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(InvalidValueError, match="coins"):
        one_run_epsilon([1.0, 2.0], [True], 0.0, 0)
    with pytest.raises(InvalidValueError, match="NaN"):
        one_run_epsilon([1.0, math.nan], [True, False], 0.0, 0)
    with pytest.raises(InvalidValueError, match="fractions"):
        one_run_epsilon([1.0, 2.0], [True, False], 0.0, 0, guessed_fractions=(1.5,))
