"""Shadow tables: who was in which model by hash, variances pooled by hand, and the population of RMIA."""

import numpy as np
import pytest

from reticent.auditing.inputs.shadows import ENOUGH_FOR_OWN_VARIANCE, ShadowTable, shadow_evidence
from reticent.errors import InvalidValueError

HASHES = ("a", "b", "c")
MEANS = np.array([[-1.0, -2.0, -3.0, -5.0], [-1.0, -1.5, -4.0, -4.5], [-2.0, -2.0, -2.0, -2.0]])
MEMBERS = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]], dtype=bool)


def table(means=MEANS, members=MEMBERS, hashes=HASHES):
    return ShadowTable(hashes, means, members, "invented")


def test_each_text_has_the_models_with_and_without_it():
    found = shadow_evidence(table(), {}, (), 1.0)
    np.testing.assert_array_equal(found["a"].in_means, [-1.0, -2.0])
    np.testing.assert_array_equal(found["a"].out_means, [-3.0, -5.0])
    np.testing.assert_array_equal(found["b"].in_means, [-1.0, -4.0])
    assert found["c"].in_means.size == 0


def test_variances_are_pooled_over_texts_by_degrees_of_freedom():
    # With: squares 0.5 of (-1, -2) and 4.5 of (-1, -4), one degree each. Without: 2, 4.5 and 0, of 1, 1 and 3 degrees.
    variances = shadow_evidence(table(), {}, (), 1.0)["a"].variances
    assert variances == pytest.approx((5.0 / 2, 6.5 / 5))


def test_with_enough_models_each_text_has_its_own_variance():
    models = 2 * ENOUGH_FOR_OWN_VARIANCE
    means = np.random.default_rng(0).normal(size=(2, models))
    members = np.zeros((2, models), dtype=bool)
    members[:, ::2] = True
    assert shadow_evidence(table(means, members, ("a", "b")), {}, (), 1.0)["a"].variances is None
    members[1, 0] = False
    assert shadow_evidence(table(means, members, ("a", "b")), {}, (), 1.0)["a"].variances is not None


def test_the_population_is_the_texts_named_and_only_models_without_them_count():
    ratios = shadow_evidence(table(), {"a": -1.0, "b": -1.0, "c": -2.0}, ("b", "c"), 0.33)["a"].population_log_ratios
    # p_bar = ((1 + 0.33) p_out + 1 - 0.33) / 2, by hand.
    p_out = (np.exp(-1.5) + np.exp(-4.5)) / 2
    expected = [-1.0 - np.log((1.33 * p_out + 0.67) / 2), -2.0 - np.log((1.33 * np.exp(-2.0) + 0.67) / 2)]
    np.testing.assert_allclose(ratios, expected)


def test_texts_without_a_target_score_are_not_in_the_population():
    assert shadow_evidence(table(), {"b": -1.0}, ("b", "c"), 0.33)["a"].population_log_ratios.size == 1


def test_a_model_without_a_score_of_a_text_counts_on_neither_side():
    means = MEANS.copy()
    means[0, 0] = means[0, 3] = np.nan
    found = shadow_evidence(table(means), {}, (), 1.0)["a"]
    np.testing.assert_array_equal(found.in_means, [-2.0])
    np.testing.assert_array_equal(found.out_means, [-3.0])


@pytest.mark.parametrize(
    ("means", "members", "hashes"),
    [(MEANS[:2], MEMBERS, HASHES), (MEANS, MEMBERS[:, :2], HASHES), (MEANS, MEMBERS, ("a", "b", "a"))],
)
def test_tables_that_do_not_fit_are_refused(means, members, hashes):
    with pytest.raises(InvalidValueError):
        table(means, members, hashes)
