"""Composition and leakage against quadrature, bounds, and deployments that really generate."""

import numpy as np
import pytest
from hand_made_votes import random_tensor, tensor_of
from pac_oracles import vector_information

from reticent.decoding.votes import Decoder
from reticent.errors import InvalidValueError
from reticent.evaluation.leakage import leakage, refinement_nats
from reticent.evaluation.sessions import (
    Composition,
    SessionOutcomes,
    SessionSettings,
    composition,
    is_world_named,
    join_outcomes,
    measured_half_success,
    query_positions,
    simulate_sessions,
)
from reticent.pac.calibration import calibrate
from reticent.pac.mechanism import ReleaseMechanism
from reticent.pac.mixture import MixtureMechanism, mixture_information_nats
from reticent.stats.means import TextSpans
from reticent.worlds.assignment import membership_matrix

GUMBEL, GAUSSIAN = Decoder.GUMBEL, ReleaseMechanism.GAUSSIAN


def outcomes_of(weights, secrets, budget=0.1, tokens=10):
    with np.errstate(divide="ignore"):
        log_weights = np.log(np.asarray(weights, dtype=np.float64))
    return SessionOutcomes(budget, tokens, np.array(secrets), log_weights, np.zeros(len(secrets)))


def test_one_release_leaks_what_quadrature_says():
    votes = [0, 0, 1, 2, 2, 2]
    tensor = tensor_of([votes] * 2, [0] * 2, [0] * 2)
    settings = SessionSettings(num_queries=1, tokens_per_query=1, num_sessions=20_000, num_streams=1)
    for budget in (0.5, 2.0**-10):
        calibration = calibrate(np.array([2, 1, 3]) / 6, budget)
        exact = vector_information(np.array([2, 1, 3]) / 6, calibration.centred_votes, calibration.noise_variances)
        measured = leakage(simulate_sessions(tensor, GUMBEL, GAUSSIAN, budget, settings), GUMBEL, GAUSSIAN)
        error = measured.information_nats.standard_error
        assert error < 0.03 * exact
        assert measured.information_nats.value == pytest.approx(exact, abs=4 * error)
        assert measured.share_of_charge.value == pytest.approx(measured.information_nats.value / budget)
        assert measured.dissent.value == 1.0

    mixture = MixtureMechanism(0.2).calibrate(np.array([2, 1, 3]) / 6)
    exact = mixture_information_nats(mixture.vote_weights, mixture.keep_probability)
    outcomes = simulate_sessions(tensor, GUMBEL, ReleaseMechanism.MIXTURE, 0.2, settings)
    nats = leakage(outcomes, GUMBEL, ReleaseMechanism.MIXTURE).information_nats
    assert nats.value == pytest.approx(exact, abs=4 * nats.standard_error)


@pytest.mark.parametrize("budget", [2.0**-32, 2.0**-20])
def test_at_small_budgets_the_share_is_the_dissent_rate(budget):
    tensor = random_tensor(dissent=0.17, num_texts=16)
    settings = SessionSettings(num_queries=16, tokens_per_query=64, num_sessions=800)
    result = leakage(simulate_sessions(tensor, GUMBEL, GAUSSIAN, budget, settings), GUMBEL, GAUSSIAN)
    assert result.charge_nats == budget * 1024
    assert result.share_of_charge.standard_error < 0.02 * result.dissent.value * 2
    assert result.share_of_charge.value == pytest.approx(
        result.dissent.value, abs=4 * result.share_of_charge.standard_error
    )


def test_refinement_keeps_its_digits():
    generator = np.random.default_rng(0)
    deviation = generator.normal(size=128)
    deviation -= deviation.mean()
    for scale in (1e-8, 1e-5, 1e-2):
        weights = (1 + scale * deviation) / 128
        # Second and third order of Σ φ(x)/m.
        expected = np.mean(0.5 * (scale * deviation) ** 2 - (scale * deviation) ** 3 / 6)
        assert refinement_nats(np.log(weights)[None])[0] == pytest.approx(expected, rel=max(1e-6, scale**2))
    assert refinement_nats(outcomes_of([[1.0, 0.0, 0.0, 0.0]], [0]).log_weights_RM)[0] == pytest.approx(np.log(4))
    assert refinement_nats(np.full((1, 128), -np.log(128)))[0] == pytest.approx(0.0, abs=1e-30)


def test_attack_success_stays_under_the_bound_and_finds_what_there_is():
    tensor = random_tensor(num_worlds=16, dissent=0.3)
    members = membership_matrix(40, 16, 0)
    settings = SessionSettings(num_queries=10, tokens_per_query=40, num_sessions=600)
    for budget in (2.0**-32, 2.0**-12, 2.0**-6, 2.0):
        outcomes = simulate_sessions(tensor, GUMBEL, GAUSSIAN, budget, settings)
        result = composition(outcomes, GUMBEL, GAUSSIAN, members)
        assert result.membership.interval(0.999)[0] <= result.membership_bound
        assert result.world.low <= result.world_bound
        assert Composition.model_validate_json(result.model_dump_json()) == result
        assert (
            result.model_dump(mode="json")["mechanism"]
            == leakage(outcomes, GUMBEL, GAUSSIAN).model_dump()["mechanism"]
            == "gaussian"
        )
        if budget == 2.0**-32:
            low, high = result.membership.interval(0.999)
            assert low < 0.5 < high
            assert result.world.low < 1 / 16 < result.world.high
        if budget == 2.0:
            assert result.membership.value == result.world.value == 1.0


def test_decisions_and_ties_by_hand():
    members = np.array([[1, 1, 0, 0], [1, 0, 1, 0]], dtype=bool)
    outcomes = outcomes_of([[0.4, 0.3, 0.2, 0.1], [0.25] * 4, [0.1, 0.4, 0.4, 0.1]], [0, 3, 1])
    # Third: unit 0 has mass 0.5 (tie), unit 1 too.
    np.testing.assert_array_equal(measured_half_success(outcomes, members), [1.0, 0.5, 0.5])
    named = [is_world_named(outcomes, np.random.default_rng(seed)) for seed in range(400)]
    np.testing.assert_allclose(np.mean(named, axis=0), [1.0, 0.25, 0.5], atol=0.1)


def test_queries_are_windows_inside_texts_and_take_turns():
    spans = TextSpans(np.array([0, 10, 14, 30, 42]))
    positions = query_positions(spans, 9, 8, np.random.default_rng(1)).reshape(9, 8)
    assert (np.diff(positions, axis=1) == 1).all()
    texts = np.searchsorted(spans.offsets, positions, side="right") - 1
    assert (texts == texts[:, :1]).all()
    counts = np.bincount(texts[:, 0], minlength=4)
    assert counts.tolist() == [3, 0, 3, 3]
    with pytest.raises(InvalidValueError, match="longest has 16"):
        query_positions(spans, 1, 17, np.random.default_rng(0))


def test_what_does_not_fit_is_refused():
    outcomes = outcomes_of([[0.5, 0.5]], [0])
    with pytest.raises(InvalidValueError, match="2 worlds"):
        measured_half_success(outcomes, np.ones((3, 4), dtype=bool))
    with pytest.raises(InvalidValueError, match="budgets or lengths"):
        join_outcomes([outcomes, outcomes_of([[0.5, 0.5]], [0], budget=0.2)])
    with pytest.raises(InvalidValueError, match="num_streams"):
        SessionSettings(num_sessions=2, num_streams=3)
