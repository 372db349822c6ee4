"""The comparison with PMixED, held to enumeration, exact projections and votes counted by hand."""

import itertools

import numpy as np
import pytest

from experiments.studies.matched import (
    TargetProbabilities,
    WeightTable,
    accuracy,
    headroom,
    noiseless_probability,
    pac_probability,
    select_best,
)
from experiments.studies.pmixed import PMixedSettings, mixed_distribution, mixing_weights, projection_orders
from reticent.errors import InvalidValueError
from reticent.evaluation.session_batch import SessionBatch
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.randomness import SeededNoise


def distributions(count, vocabulary, seed, spread=1.0):
    scores = np.random.default_rng(seed).normal(scale=spread, size=(count, vocabulary))
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("rate", [0.2, 0.7, 1.0])
def test_the_law_averaged_over_participation_is_that_of_all_subsets(rate):
    public_V, experts_NV = distributions(1, 9, 0)[0], distributions(4, 9, 1)
    weights_N = mixing_weights(experts_NV, public_V, 0.01, projection_orders(2))
    expected_V = np.zeros(9)
    for taking_part in itertools.product((False, True), repeat=4):
        chosen = np.flatnonzero(taking_part)
        probability = rate**chosen.size * (1.0 - rate) ** (4 - chosen.size)
        expected_V += probability * mixed_distribution(experts_NV[chosen], public_V, weights_N[chosen])
    for token in range(9):
        targets = TargetProbabilities(np.zeros(1, dtype=int), public_V[[token]], experts_NV[None, :, token])
        assert targets.pmixed(weights_N[None], rate)[0] == pytest.approx(expected_V[token], rel=1e-12)


def test_without_pull_pmixed_is_public_and_with_all_of_it_the_experts_mean():
    targets = TargetProbabilities(np.array([0, 1]), np.array([0.2, 0.4]), np.array([[0.1, 0.5], [0.6, 0.2]]))
    assert targets.pmixed(np.zeros((2, 2)), 0.5).tolist() == [0.2, 0.4]
    assert targets.pmixed(np.ones((2, 2)), 1.0) == pytest.approx([0.3, 0.4])
    assert targets.ensemble() == pytest.approx([0.3, 0.4])
    for rate in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidValueError, match="sampling_rate"):
            targets.pmixed(np.ones((2, 2)), rate)


def test_parts_that_do_not_belong_together_are_refused():
    with pytest.raises(InvalidValueError, match="belong together"):
        TargetProbabilities(np.zeros(2, dtype=int), np.full(3, 0.1), np.full((2, 4), 0.1))


def test_tabulated_weights_are_exact_at_their_radii_and_near_between_and_below():
    public_V, experts_NV = distributions(1, 50, 2)[0], distributions(3, 50, 3)

    def exact(beta):
        return mixing_weights(experts_NV, public_V, beta, projection_orders(2))

    radii = np.array([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    table = WeightTable(radii, np.stack([exact(beta) for beta in radii])[:, None])
    for beta in radii:
        assert table.at(beta)[0] == pytest.approx(exact(beta), rel=1e-12)
    for beta in (1e-9, 3e-6, 3e-5, 3e-4, 3e-3):
        assert table.at(beta)[0] == pytest.approx(exact(beta), rel=0.05)
    assert table.at(0.0).max() == 0.0
    assert table.at(50.0)[0] == pytest.approx(exact(1.0))


@pytest.mark.parametrize("radii", [[1e-3], [1e-3, 1e-3], [0.0, 1.0], [1.0, 0.1]])
def test_a_table_needs_rising_radii(radii):
    with pytest.raises(InvalidValueError, match="rise"):
        WeightTable(np.array(radii), np.zeros((len(radii), 1, 1)))


def test_the_best_settings_on_held_out_positions_are_selected_the_first_among_equals():
    candidates = [PMixedSettings(4, rate, 2, 0.1) for rate in (0.1, 0.5, 0.9, 1.0)]
    accuracies = {0.1: 0.2, 0.5: 0.4, 0.9: 0.4, 1.0: 0.3}
    assert select_best(candidates, lambda each: accuracies[each.sampling_rate]) == (candidates[1], 0.4)
    with pytest.raises(InvalidValueError, match="select"):
        select_best([], lambda _: 0.0)


def release(scores_MK, target, release_mechanism, budget, num_draws=4000):
    mechanism, generator = mechanism_for(release_mechanism, budget), np.random.default_rng(5)
    return pac_probability(scores_MK, target, mechanism, generator, SeededNoise(6), num_draws)


def test_worlds_that_agree_release_their_own_distribution():
    scores_K = np.log([0.5, 0.3, 0.2])
    for mechanism in ReleaseMechanism:
        share = release(np.tile(scores_K, (4, 1)), 1, mechanism, 2.0**-32, num_draws=20)
        assert share == pytest.approx(0.3, rel=1e-12)


def test_the_mixture_release_has_the_noiseless_distribution():
    scores_MK = np.log(distributions(6, 4, 7, spread=2.0))
    expected = float(np.exp(scores_MK)[:, 2].mean())
    assert noiseless_probability(scores_MK + 3.0, 2) == pytest.approx(expected, rel=1e-12)
    share = release(scores_MK, 2, ReleaseMechanism.MIXTURE, 2.0**-32, num_draws=2000)
    assert share == pytest.approx(expected, abs=5 * np.sqrt(0.25 / (2000 * 32)))


def test_what_release_adds_is_what_counting_finds():
    scores_MK = np.log(distributions(6, 4, 8, spread=1.0))
    mechanism, generator, noise = (
        mechanism_for(ReleaseMechanism.GAUSSIAN, 2.0**-20),
        np.random.default_rng(9),
        SeededNoise(3),
    )
    hits = 0
    for _ in range(6000):
        votes_M = (scores_MK + generator.gumbel(size=4)).argmax(axis=1)
        secrets_R = np.array([noise.secret_index(6)])
        hits += int(SessionBatch(mechanism, secrets_R, 6, noise).release(votes_M)[0] == 1)
    counted = hits / 6000
    share = release(scores_MK, 1, ReleaseMechanism.GAUSSIAN, 2.0**-20, num_draws=1500)
    assert share == pytest.approx(counted, abs=5 * np.sqrt(0.25 / 6000))


def test_the_gaussian_release_of_two_opposed_halves_is_a_fair_coin():
    # One world of four always votes 0 and three always 1: at so small a budget either comes out half of the time.
    scores_MK = np.array([[50.0, 0.0], *[[0.0, 50.0]] * 3])
    share = release(scores_MK, 0, ReleaseMechanism.GAUSSIAN, 2.0**-32, num_draws=500)
    assert share == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / (500 * 32)))
    assert release(scores_MK, 0, ReleaseMechanism.MIXTURE, 2.0**-32, num_draws=500) == pytest.approx(0.25, abs=0.03)


def test_a_token_outside_the_candidates_is_never_released():
    scores_MK = np.zeros((2, 3))
    assert noiseless_probability(scores_MK, None) == 0.0
    assert release(scores_MK, None, ReleaseMechanism.GAUSSIAN, 0.1, num_draws=1) == 0.0
    with pytest.raises(InvalidValueError, match="target"):
        release(scores_MK, 3, ReleaseMechanism.GAUSSIAN, 0.1, num_draws=1)


def test_accuracy_and_headroom_are_ratios_over_texts():
    text_P = np.array([0, 0, 2])
    method_P, public_P, ceiling_P = np.array([0.3, 0.5, 0.6]), np.array([0.2, 0.4, 0.4]), np.array([0.4, 0.6, 0.8])
    assert accuracy(method_P, text_P).value == pytest.approx(1.4 / 3)
    found = headroom(method_P, public_P, ceiling_P, text_P)
    assert found.value == pytest.approx(0.4 / 0.8)
    assert found.num_samples == 2
    # Both texts keep exactly one half, so the share has no spread.
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)
    assert headroom(method_P, public_P, public_P, text_P) is None
