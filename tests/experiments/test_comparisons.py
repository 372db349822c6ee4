"""Verdicts on the paper's numbers, worked by hand, and the two denominators of a share."""

import pytest

from experiments.pac.comparisons import (
    AGREES,
    COMPARISONS,
    DIFFERS,
    TOO_UNCERTAIN,
    Comparison,
    Ours,
    percent,
    spread,
)


def mean(value, error=0.01):
    return {"value": value, "standard_error": error, "num_samples": 64}


def compare(ours, low, high, *, is_range=False):
    comparison = Comparison("utility", "q", "p", low, high, lambda _: ours, "because", is_range)
    return comparison.verdict(ours), comparison.explain(ours)


@pytest.mark.parametrize(
    ("value", "error", "verdict"),
    [(0.75, 0.01, AGREES), (0.80, 0.01, DIFFERS), (0.80, 0.03, AGREES), (0.75, 0.04, TOO_UNCERTAIN)],
)
def test_two_standard_errors_decide_and_wide_ones_say_nothing(value, error, verdict):
    assert compare(percent(mean(value, error)), 0.7425, 0.7435)[0] == verdict


def test_what_differs_says_in_which_direction_and_why():
    assert compare(percent(mean(0.9)), 0.74, 0.75)[1] == "higher: because"
    assert compare(percent(mean(0.5)), 0.74, 0.75)[1] == "lower: because"


@pytest.mark.parametrize(
    ("values", "verdict"), [((0.26, 0.52), AGREES), ((0.02, 0.55), DIFFERS), ((0.26, 0.60), DIFFERS)]
)
def test_ranges_are_compared_end_by_end(values, verdict):
    """A range that covers the paper's is not one that agrees with it."""
    assert compare(spread([mean(value, 0.002) for value in values]), 0.26, 0.52, is_range=True)[0] == verdict


def test_a_number_that_is_no_share_is_never_too_uncertain():
    assert compare(Ours("1 ms", 0.5, 2.0), 0.7, 0.8)[0] == AGREES


def test_the_share_of_the_full_gain_from_old_and_new_results():
    rows = [
        {"method": "public", "step_budget": None, "accuracy": mean(0.40), "kept": None},
        {"method": "full-data", "step_budget": None, "accuracy": mean(0.45), "kept": mean(1.25, 0.05)},
        {"method": "gaussian", "step_budget": 2.0**-32, "accuracy": mean(0.43), "kept": mean(0.75, 0.03)},
    ]
    results = {"utility": [{"decoder": "greedy", "rows": rows, "gain": mean(0.04)}]}
    [share] = [each for each in COMPARISONS if each.quantity == "share of the full-data gain at 2^-32, greedy"]
    old = share.ours(results)
    assert old.text == "60.0 % ± 4.8"  # 0.03 / 0.05; 0.6 (0.03 / 0.75 + 0.05 / 1.25) = 0.048
    rows[2]["of_full_gain"] = mean(0.61, 0.02)
    assert share.ours(results).text == "61.0 % ± 2.0"
    [cost] = [each for each in COMPARISONS if each.quantity.endswith("of the accuracy, greedy")]
    assert cost.ours(results).text == "1.00 (1.00 points)"
