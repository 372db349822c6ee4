"""Each attack against values worked by hand, and the mistakes that published tools made."""

import math
import zlib

import numpy as np
import pytest
from scipy.stats import norm
from signals_by_hand import signals

from reticent.auditing.attacks.evidence import Missing
from reticent.auditing.attacks.ez_mia import ez_mia
from reticent.auditing.attacks.gradient_norm import gradient_norm
from reticent.auditing.attacks.likelihood import likelihood
from reticent.auditing.attacks.lira import lira
from reticent.auditing.attacks.min_k import mean_of_lowest, min_k
from reticent.auditing.attacks.min_k_plus_plus import min_k_plus_plus
from reticent.auditing.attacks.neighbourhood import neighbourhood
from reticent.auditing.attacks.recall import recall
from reticent.auditing.attacks.reference import reference
from reticent.auditing.attacks.rmia import log_probability_ratio, rmia
from reticent.auditing.attacks.spv import spv
from reticent.auditing.attacks.wbc import wbc
from reticent.auditing.attacks.zlib_entropy import zlib_entropy
from reticent.errors import InvalidValueError

NO_TOKENS = signals([])
LOG2 = math.log(2.0)


def test_likelihood_is_the_mean_over_tokens():
    assert likelihood(signals([-1.0, -2.0, -6.0])) == -3.0


def test_reference_is_the_difference_of_means():
    assert reference(signals([-1.0, -3.0]), signals([-2.0, -5.0])) == 1.5


def test_zlib_counts_compressed_utf8_bytes():
    text = "äöü" * 40
    assert zlib_entropy(signals([-3.0, -1.0]), text) == -2.0 / len(zlib.compress(text.encode("utf-8"), 6))


def test_mistake_neighbourhood_uses_the_mean_of_the_neighbours_not_their_maximum():
    score = neighbourhood(signals([-1.0, -1.0]), np.array([-1.0, -2.0, -6.0]))
    assert score == 2.0
    assert score != -1.0 - max(-1.0, -2.0, -6.0)


def test_mistake_min_k_averages_the_least_likely_tokens_not_the_most_likely():
    logp = [-0.1, -9.0, -0.2, -5.0, -0.3, -0.4, -0.5, -0.6, -0.7, -0.8]
    assert min_k(signals(logp)) == -7.0


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4])
def test_mistake_k_times_t_below_one_still_takes_one_token(num_tokens):
    logp = -np.arange(1.0, num_tokens + 1)
    assert int(0.2 * num_tokens) == 0
    assert min_k(signals(logp)) == -num_tokens
    assert math.isfinite(min_k_plus_plus(signals(logp, mu=-np.ones(num_tokens), sigma2=np.ones(num_tokens))))


@pytest.mark.parametrize(
    ("num_values", "fraction", "expected_count"), [(100, 0.07, 7), (5, 0.2, 1), (6, 0.2, 2), (3, 1.0, 3), (1, 0.01, 1)]
)
def test_the_count_of_lowest_values_is_the_ceiling(num_values, fraction, expected_count):
    assert mean_of_lowest(np.arange(float(num_values)), fraction) == (expected_count - 1) / 2


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, math.nan])
def test_a_fraction_outside_its_range_is_refused(fraction):
    with pytest.raises(InvalidValueError, match="fraction of tokens"):
        min_k(signals([-1.0]), fraction)


def test_mistake_min_k_plus_plus_standardises_by_the_weighted_mean_over_the_vocabulary():
    """One token whose model has p = (0.7, 0.2, 0.1); an unweighted mean of log p would give another score."""
    p = np.array([0.7, 0.2, 0.1])
    mu = float((p * np.log(p)).sum())
    sigma2 = float((p * np.log(p) ** 2).sum()) - mu**2
    found = min_k_plus_plus(signals([np.log(0.2)], mu=[mu], sigma2=[sigma2]))
    # By hand: mu = -0.8018186 and sigma2 = 0.7 * 0.1272170 + 0.2 * 2.5902904 + 0.1 * 5.3018981 - 0.6429130 = 0.4943868.
    assert found == pytest.approx((-1.6094379 + 0.8018186) / 0.7031264, rel=1e-6)
    unweighted = (np.log(0.2) - np.log(p).mean()) / np.log(p).std()
    assert abs(found - unweighted) > 0.5


def test_mistake_a_variance_rounded_to_zero_gives_a_finite_score():
    certain = signals([-1e-9, -1e-9], mu=[-1e-9, -1e-9], sigma2=[0.0, 0.0])
    assert min_k_plus_plus(certain) == 0.0


def test_min_k_plus_plus_has_no_score_where_the_vocabulary_is_hidden():
    assert isinstance(min_k_plus_plus(signals([-1.0, -2.0])), Missing)


def test_gradient_norm_ranks_small_gradients_as_members():
    assert gradient_norm(0.5) == -0.5
    assert gradient_norm(0.1) > gradient_norm(0.2)


@pytest.mark.parametrize("norm_value", [math.nan, math.inf, -1.0])
def test_a_gradient_norm_that_is_none_gives_no_score(norm_value):
    assert isinstance(gradient_norm(norm_value), Missing)


def test_ez_mia_sums_gains_and_losses_over_error_tokens_alone():
    target = signals([-1.0, -2.0, -3.0, -0.1], rank=[4, 1, 2, 0])
    base = signals([-4.0, -1.5, -2.5, -9.0])
    assert ez_mia(target, base) == pytest.approx(3.0 / (0.5 + 0.5))


def test_mistake_ez_mia_without_losses_is_the_top_score():
    target = signals([-1.0, -2.0, -0.1], rank=[4, 1, 0])
    top = ez_mia(target, signals([-4.0, -1.5 - 1.0, -0.0]))
    assert top == math.inf
    assert top > ez_mia(target, signals([-400.0, -2.0 + 1e-9, -0.1]))


def test_ez_mia_needs_two_error_tokens_and_known_ranks():
    base = signals([-1.0, -1.0])
    assert isinstance(ez_mia(signals([-1.0, -2.0], rank=[0, 3]), base), Missing)
    assert isinstance(ez_mia(signals([-1.0, -2.0]), base), Missing)
    assert isinstance(ez_mia(signals([-1.0], rank=[1]), base), Missing)


def test_wbc_counts_windows_that_gained():
    # Δ = (+2, −1, −1, +3): pairs sum to 1, −2, 2; triples to 0, 1. A sum of exactly 0 has not gained.
    target, base = signals([-1.0, -3.0, -3.0, -1.0]), signals([-3.0, -2.0, -2.0, -4.0])
    assert wbc(target, base, windows=(2, 3, 50)) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_wbc_has_no_score_where_no_window_fits():
    assert isinstance(wbc(signals([-1.0]), signals([-2.0])), Missing)
    assert isinstance(wbc(signals([-1.0, -1.0, -1.0]), signals([-2.0, -2.0])), Missing)


def test_wbc_against_a_plain_loop():
    rng = np.random.default_rng(0)
    logp, base = -rng.exponential(size=37), -rng.exponential(size=37)
    fractions = []
    for window in (2, 3, 4, 6, 9, 13, 18, 25, 32):
        gained = [sum(logp[i : i + window]) > sum(base[i : i + window]) for i in range(37 - window + 1)]
        fractions.append(sum(gained) / len(gained))
    assert wbc(signals(logp), signals(base)) == pytest.approx(sum(fractions) / len(fractions), rel=1e-12)


def test_rmia_offline_ratio_by_hand():
    # p = 1/2, p_out = (1/4 + 1/8)/2 = 3/16, p̄ = ½(1.33 · 3/16 + 0.67) = 0.4596875.
    ratio = log_probability_ratio(-LOG2, np.array([-2 * LOG2, -3 * LOG2]), a=0.33)
    assert math.exp(ratio) == pytest.approx(0.5 / 0.4596875, rel=1e-12)


def test_rmia_with_the_base_alone_is_the_ratio_to_the_base():
    assert log_probability_ratio(-2.0, np.array([-2.75])) == pytest.approx(0.75, rel=1e-12)
    # Neither probability is a floating-point number; their ratio is.
    assert log_probability_ratio(-900.0, np.array([-901.0])) == pytest.approx(1.0, rel=1e-12)


def test_rmia_counts_the_texts_beaten_by_more_than_gamma():
    population = np.log([0.1, 0.4, 0.5, 1.0])
    assert rmia(math.log(1.0), population, gamma=2.0) == 0.5
    assert rmia(math.log(1.0), population) == 0.75
    assert isinstance(rmia(0.0, np.empty(0)), Missing)


def test_rmia_is_not_changed_in_order_by_a_text_in_its_own_population():
    rng = np.random.default_rng(3)
    ratios = rng.normal(size=50)
    with_itself = [rmia(ratio, ratios) * 50 for ratio in ratios]
    without = [rmia(ratio, np.delete(ratios, i)) * 49 for i, ratio in enumerate(ratios)]
    assert with_itself == pytest.approx(without)


def test_lira_is_the_log_ratio_of_two_normal_densities():
    in_scores, out_scores = np.array([-1.0, -1.2, -0.8]), np.array([-2.0, -2.6, -2.3, -1.9])
    expected = norm.logpdf(-1.5, in_scores.mean(), in_scores.std(ddof=1)) - norm.logpdf(
        -1.5, out_scores.mean(), out_scores.std(ddof=1)
    )
    assert lira(-1.5, in_scores, out_scores) == pytest.approx(expected, rel=1e-12)


def test_lira_with_given_variances_by_hand():
    # Equal variances: ((s − μ_out)² − (s − μ_in)²) / 2σ² = (1 − 0.25) / 0.5.
    assert lira(-1.5, np.array([-1.0]), np.array([-2.5]), variances=(0.25, 0.25)) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("in_scores", "out_scores", "variances"),
    [
        ([-1.0], [-2.0, -3.0], None),
        ([-1.0, -1.5], [], None),
        ([], [-2.0], (1.0, 1.0)),
        ([-1.0, -1.0], [-2.0, -3.0], None),
        ([-1.0], [-2.0], (0.0, 1.0)),
    ],
)
def test_lira_without_enough_shadow_models_has_no_score(in_scores, out_scores, variances):
    assert isinstance(lira(-1.5, np.array(in_scores), np.array(out_scores), variances), Missing)


def test_spv_by_hand():
    # Target: 1/2 − (1/4 + 1/8)/2 = 5/16. Self-prompted: 1/4 − (1/4 + 1/16)/2 = 3/32.
    found = spv(
        signals([-LOG2, -LOG2]),
        np.array([-2 * LOG2, -3 * LOG2]),
        signals([-2 * LOG2, -2 * LOG2]),
        np.array([-2 * LOG2, -4 * LOG2]),
    )
    assert found == pytest.approx(5 / 16 - 3 / 32, rel=1e-12)


def test_recall_is_larger_where_the_prefix_costs_more():
    unconditional = signals([-1.0, -3.0])
    assert recall(signals([-2.0, -4.0]), unconditional) == 1.5
    assert recall(signals([-2.0, -4.0]), unconditional) > recall(signals([-1.0, -3.0]), unconditional)
    assert isinstance(recall(signals([-1.0]), signals([0.0])), Missing)


@pytest.mark.parametrize(
    "score",
    [
        likelihood(NO_TOKENS),
        reference(NO_TOKENS, NO_TOKENS),
        zlib_entropy(NO_TOKENS, "text"),
        neighbourhood(NO_TOKENS, np.array([-1.0])),
        neighbourhood(signals([-1.0]), np.empty(0)),
        min_k(NO_TOKENS),
        min_k_plus_plus(NO_TOKENS),
        ez_mia(NO_TOKENS, NO_TOKENS),
        wbc(NO_TOKENS, NO_TOKENS),
        spv(NO_TOKENS, np.array([-1.0]), signals([-1.0]), np.array([-1.0])),
        spv(signals([-1.0]), np.empty(0), signals([-1.0]), np.empty(0)),
        recall(NO_TOKENS, NO_TOKENS),
    ],
)
def test_a_text_without_tokens_neighbours_or_paraphrases_has_a_reason_not_nan(score):
    assert isinstance(score, Missing)
    assert score.reason
