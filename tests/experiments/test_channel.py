"""P(token | vote) against vectors, polar and one-dimensional integrals, scipy's orthants and the mechanism's draws."""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pac_oracles import (
    mixture_channel,
    mixture_information,
    three_way_token_channel,
    token_information,
    two_way_token_channel,
)
from scipy import stats
from scipy.integrate import quad

from experiments.studies import channel as channel_module
from experiments.studies.channel import released_token_likelihood, token_channel
from experiments.studies.channel import token_information as channel_information
from reticent.errors import InvalidValueError
from reticent.pac.calibration import active_votes, calibrate, vote_weights
from reticent.pac.gaussian import noise_covariance
from reticent.pac.mixture import MixtureMechanism
from reticent.pac.posterior import Posterior

PAPER_BUDGET = 2.0**-32
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "mechanism.json").read_text())["mechanism"]
TWO_WAY = [vector for vector in VECTORS if "flip_probability" in vector]
SPREAD = {a: np.random.default_rng(a).dirichlet(np.ones(a)) for a in (4, 5, 6, 8, 12, 20)}


def _calibrated(vector):
    posterior = Posterior(np.log(np.array(vector["posterior"], dtype=np.float64)))
    _, index = active_votes(np.array(vector["votes"]))
    return calibrate(vote_weights(index, posterior), vector["step_budget"])


def _log_ratios(channel, q):
    return np.log(channel / (q @ channel))


def _relative(ours, reference):
    """The root mean square error of log-ratios, relative to their own root mean square."""
    return math.sqrt(np.mean((ours - reference) ** 2) / np.mean(reference**2))


@pytest.mark.parametrize("vector", TWO_WAY, ids=lambda vector: f"b={vector['step_budget']:.2e}")
def test_two_way_vectors(vector):
    calibration = _calibrated(vector)
    channel, flip = token_channel(calibration), float(vector["flip_probability"])
    np.testing.assert_allclose(channel, [[1 - flip, flip], [flip, 1 - flip]], rtol=1e-11)
    told = channel_information(channel, calibration.vote_weights)
    assert told == pytest.approx(float(vector["exact_token_nats"]), rel=1e-7)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3), st.integers(-40, 0).map(lambda x: 2.0**x))
def test_three_way_is_the_polar_integral(raw, budget):
    q = np.array(raw) / sum(raw)
    calibration = calibrate(q, budget)
    channel, polar = token_channel(calibration), three_way_token_channel(noise_covariance(calibration))
    np.testing.assert_allclose(channel, polar, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(channel.sum(axis=1), 1.0, rtol=1e-15)


@pytest.mark.parametrize("light", [1e-6, 1e-12, 0.0])
@pytest.mark.parametrize("budget", [PAPER_BUDGET, 0.25, 4.0])
def test_three_way_with_a_light_token_by_integration_along_one_variable(light, budget):
    """Nearly collinear differences: P(R_y wins) = ∫ φ(x) P(the second difference is positive | x) dx, adaptively."""
    calibration = calibrate(np.array([0.55, 0.45 - light, light]), budget)
    channel, covariance = token_channel(calibration), noise_covariance(calibration)
    for token in range(3):
        first, second = (d for d in range(3) if d != token)
        rows = np.eye(3)[token] - np.eye(3)[[first, second]]
        (v1, v12), (_, v2) = rows @ covariance @ rows.T
        rest = math.sqrt(max(v2 - v12**2 / v1, 0.0))
        for vote in range(3):
            mean1, mean2 = rows @ np.eye(3)[vote]

            def integrand(x, mean1=mean1, mean2=mean2, v1=v1, v12=v12, rest=rest):
                return stats.norm.pdf(x) * stats.norm.cdf((mean2 + v12 / math.sqrt(v1) * x) / rest)

            low = min(max(-mean1 / math.sqrt(v1), -12.0), 12.0)
            turn, width = -mean2 * math.sqrt(v1) / v12, rest * math.sqrt(v1) / abs(v12)
            edges = np.clip([low, turn - 9 * width, turn, turn + 9 * width, 12.0], low, 12.0)
            expected = sum(quad(integrand, *edge)[0] for edge in pairwise(edges))
            assert channel[vote, token] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("budget", [PAPER_BUDGET, 2.0**-20])
def test_the_token_carries_less_than_the_vector(budget):
    """2/π of it for two-way votes, 27/(16π) for an even three-way vote, 0.659 for (0.6, 0.4, 1e-4)."""
    for q in ([0.5, 0.5], [0.2, 0.8], [1 / 128, 127 / 128]):
        q = np.array(q)
        told = channel_information(token_channel(calibrate(q, budget)), q)
        assert told / budget == pytest.approx(2 / math.pi, rel=1e-3)
    even = np.full(3, 1 / 3)
    told = channel_information(token_channel(calibrate(even, budget)), even)
    assert told / budget == pytest.approx(27 / (16 * math.pi), rel=1e-3)
    uneven = np.array([0.6, 0.4, 1e-4]) / 1.0001
    assert f"{channel_information(token_channel(calibrate(uneven, budget)), uneven) / budget:.3f}" == "0.659"


def _by_orthants(calibration):
    """The channel by scipy's integrator of multivariate normal probabilities, which shares no point between rows."""
    size, covariance = calibration.num_active, noise_covariance(calibration)
    channel = np.empty((size, size))
    for token in range(size):
        rows = np.eye(size)[token] - np.delete(np.eye(size), token, axis=0)
        normal = stats.multivariate_normal(
            cov=rows @ covariance @ rows.T, allow_singular=True, abseps=2e-5, releps=2e-5, maxpts=100_000, seed=1
        )
        channel[:, token] = [normal.cdf(rows @ np.eye(size)[vote]) for vote in range(size)]
    return channel


@pytest.mark.parametrize("num_active", [4, 5, 6])
@pytest.mark.parametrize("budget", [1.0, 2.0**-6])
def test_more_tokens_against_scipys_orthants(num_active, budget):
    calibration = calibrate(SPREAD[num_active], budget)
    np.testing.assert_allclose(token_channel(calibration), _by_orthants(calibration), atol=3e-4)


@pytest.mark.parametrize("num_active", [4, 6, 12, 20])
@pytest.mark.parametrize("budget", [0.5, 2.0**-12])
def test_more_tokens_against_the_mechanisms_draws(num_active, budget):
    """200,000 noisy vectors; a bound of 6 standard deviations and the stated error."""
    q = SPREAD[num_active]
    calibration = calibrate(q, budget)
    channel = token_channel(calibration)
    normals = np.random.default_rng(3).standard_normal((200_000, num_active - 1))
    noise = (normals * np.sqrt(calibration.noise_variances)) @ calibration.directions.T
    for vote in (int(q.argmin()), int(q.argmax())):
        drawn = np.bincount((np.eye(num_active)[vote] + noise).argmax(axis=1), minlength=num_active) / normals.shape[0]
        assert (np.abs(channel[vote] - drawn) < 6 * np.sqrt(drawn * (1 - drawn) / normals.shape[0]) + 2e-3).all()


def _with_more_points(monkeypatch, calibration, num_points):
    with monkeypatch.context() as patch:
        patch.setattr(channel_module, "_MOST_ONE_BY_ONE", 128)
        patch.setattr(channel_module, "_num_points", lambda num_active: num_points)
        return token_channel(calibration)


@pytest.mark.parametrize("budget", [PAPER_BUDGET, 2.0**-8])
@pytest.mark.parametrize(
    ("num_active", "entries", "log_ratios"), [(4, 2e-4, 5e-4), (5, 2e-4, 1e-3), (8, 2e-4, 1e-3), (12, 2e-4, 2e-3)]
)
def test_the_stated_errors_against_more_points(monkeypatch, num_active, budget, entries, log_ratios):
    q = SPREAD[num_active]
    calibration = calibrate(q, budget)
    channel, finer = (
        token_channel(calibration),
        _with_more_points(monkeypatch, calibration, 1 << (15 if num_active < 12 else 13)),
    )
    assert np.abs(channel - finer).max() < entries
    assert _relative(_log_ratios(channel, q), _log_ratios(finer, q)) < log_ratios


def test_the_stated_errors_of_weighted_draws(monkeypatch):
    q = SPREAD[20]
    calibration = calibrate(q, PAPER_BUDGET)
    channel, finer = token_channel(calibration), _with_more_points(monkeypatch, calibration, 1 << 11)
    assert np.abs(channel - finer).max() < 2e-3
    weight = np.sqrt(q[:, None] * channel)
    assert _relative(weight * _log_ratios(channel, q), weight * _log_ratios(finer, q)) < 0.03
    assert channel_information(channel, q) == pytest.approx(channel_information(finer, q), rel=0.02)


def test_an_independent_integral_of_what_four_tokens_tell_at_the_papers_budget():
    """An even vote by symmetry: P(kept) − 1/4 is 3 times a derivative, that of P(all but one normal below a tie)."""
    q = np.full(4, 0.25)
    calibration = calibrate(q, PAPER_BUDGET)
    deviation = math.sqrt(noise_covariance(calibration)[0, 0] / 0.75)
    # Noise symmetric over tokens is that of independent normals, less their mean.
    slope = quad(lambda x: 3 * stats.norm.pdf(x) ** 2 * stats.norm.cdf(x) ** 2, -12, 12)[0]
    channel = token_channel(calibration)
    np.testing.assert_allclose(np.diag(channel) - 0.25, slope / deviation, rtol=1e-3)
    gap = 4 / 3 * slope / deviation
    assert channel_information(channel, q) == pytest.approx(0.5 * (gap**2 * 3), rel=2e-3)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.lists(st.floats(0.02, 1.0), min_size=4, max_size=4), st.booleans())
def test_renaming_tokens_renames_rows_and_columns(order, raw, three):
    q = np.array(raw[:3] if three else raw)
    order = [position for position in order if position < q.size]
    q /= q.sum()
    channel, renamed = token_channel(calibrate(q, 0.1)), token_channel(calibrate(q[order], 0.1))
    np.testing.assert_allclose(renamed, channel[np.ix_(order, order)], atol=1e-12 if three else 4e-4)


@pytest.mark.parametrize("q", [[1.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0], [1 - 1e-9, 1e-9]])
@pytest.mark.parametrize("budget", [2.0**-128, PAPER_BUDGET, 2.0**-4, 8.0])
def test_channels_stay_channels_at_the_edges(q, budget):
    for calibration in (calibrate(np.array(q), budget), MixtureMechanism(budget).calibrate(np.array(q))):
        channel = token_channel(calibration)
        assert (channel >= 0.0).all()
        np.testing.assert_allclose(channel.sum(axis=1), 1.0, rtol=1e-12)
        assert 0.0 <= channel_information(channel, calibration.vote_weights) <= budget * (1 + 1e-6) + 1e-30


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=6), st.integers(-34, 2).map(lambda x: 2.0**x))
def test_the_mixtures_channel_is_its_definition_and_its_information_the_budget(raw, budget):
    q = np.array(raw) / sum(raw)
    calibration = MixtureMechanism(budget).calibrate(q)
    channel = token_channel(calibration)
    np.testing.assert_allclose(channel, mixture_channel(q, calibration.keep_probability), rtol=1e-14)
    exact = float(mixture_information(q, calibration.keep_probability))
    assert channel_information(channel, q) == pytest.approx(exact, rel=1e-6)


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 5), st.floats(0.0, 1.0), st.integers(0, 2**32))
def test_information_of_a_channel_is_its_textbook_sum(size, sharpness, seed):
    generator = np.random.default_rng(seed)
    channel = (1 - sharpness) * generator.dirichlet(np.ones(size)) + sharpness * generator.dirichlet(
        np.ones(size), size
    )
    q = generator.dirichlet(np.ones(size))
    assume(channel.min() > 1e-12)
    joint = q[:, None] * channel
    expected = float((joint * np.log(channel / (q @ channel))).sum())
    assert channel_information(channel, q) == pytest.approx(expected, rel=1e-9, abs=1e-14)
    assert channel_information(channel, q) == pytest.approx(token_information(q, channel), rel=1e-6, abs=1e-14)


def test_two_way_is_the_oracles_channel():
    for q, budget in (([0.3, 0.7], 1.0), ([1e-6, 1 - 1e-6], 2.0**-20)):
        calibration = calibrate(np.array(q), budget)
        np.testing.assert_allclose(
            token_channel(calibration), two_way_token_channel(calibration.noise_variances[0]), rtol=1e-12
        )


@pytest.mark.parametrize(
    ("channel", "q"),
    [
        (np.eye(3), [0.5, 0.5]),
        (np.full((2, 2), 0.6), [0.5, 0.5]),
        (np.array([[1.5, -0.5], [0.5, 0.5]]), [0.5, 0.5]),
        (np.full((2, 2), math.nan), [0.5, 0.5]),
        (np.eye(2), [0.5, 0.6]),
    ],
)
def test_what_is_no_channel_is_refused(channel, q):
    with pytest.raises(InvalidValueError):
        channel_information(channel, np.array(q))


@pytest.mark.parametrize("budget", [2.0**-20, 2.0**-4])
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_one_tokens_column_tells_votes_apart_as_the_whole_channel_does(size, budget):
    q = np.random.default_rng(size).dirichlet(np.ones(size))
    for calibration in (calibrate(q, budget), MixtureMechanism(budget).calibrate(q)):
        channel = token_channel(calibration)
        for token in range(size):
            column = released_token_likelihood(calibration, token)
            np.testing.assert_allclose(column, channel[:, token], rtol=1e-3, atol=2e-4)
            ratios, expected = (np.log(rows / rows[token]) for rows in (column, channel[:, token]))
            assert np.abs(ratios - expected).max() <= 0.01 * np.abs(expected).max()


def test_a_token_nobody_voted_for_has_no_column():
    with pytest.raises(InvalidValueError):
        released_token_likelihood(calibrate(np.array([0.5, 0.5]), 0.1), 2)
