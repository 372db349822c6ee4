"""DP-SGD at a matched bound, against the Gaussian mechanism's own total variation and by what training then does."""

import numpy as np
import pytest
from scipy.stats import norm

from experiments.studies.matched_dpsgd import dpsgd_success, match_privacy
from reticent.errors import InvalidValueError
from reticent.training.private_training import calibrate_training_noise
from reticent.training.single_settings import SingleTrainingSettings


@pytest.mark.parametrize(("multiplier", "steps"), [(1.0, 1), (4.0, 3), (50.0, 8)])
def test_without_sampling_success_is_that_of_a_likelihood_ratio_test(multiplier, steps):
    """T Gaussian releases are one of mean √T/σ: the best test at even odds is right Φ(√T / 2σ) of the time."""
    exact = norm.cdf(np.sqrt(steps) / (2 * multiplier))
    found = dpsgd_success(multiplier, 1.0, steps)
    assert exact <= found + 1e-9
    assert found == pytest.approx(exact, rel=2e-3)


def test_one_sampled_step_hides_behind_its_sampling():
    """TV between (1 − q) N(0) + q N(1) and N(0) is q times that without sampling."""
    whole, sampled = (dpsgd_success(1.0, rate, 1) - 0.5 for rate in (1.0, 0.1))
    assert sampled == pytest.approx(0.1 * whole, rel=0.02)


@pytest.mark.parametrize("target", [0.51, 0.75])
def test_training_lands_on_no_less_noise_than_the_target_needs(target):
    training = SingleTrainingSettings(epochs=2, batch_size=8)
    matched = match_privacy(target, 40, training)
    assert target - 0.01 < matched.success <= target
    trained = calibrate_training_noise(40, training, matched.privacy)
    assert (trained.sample_rate, trained.num_steps) == (0.2, 10)
    assert trained.noise_multiplier >= matched.noise_multiplier * (1 - 1e-12)
    assert dpsgd_success(trained.noise_multiplier, 0.2, 10) <= target


def test_a_target_near_one_still_gets_some_noise():
    matched = match_privacy(1.0 - 1e-12, 8, SingleTrainingSettings(batch_size=4))
    assert matched.noise_multiplier == 0.25
    assert 0.8 < matched.success < 1.0


@pytest.mark.parametrize("target", [0.5, 0.4, 1.0, float("nan")])
def test_a_target_that_is_no_bound_is_refused(target):
    with pytest.raises(InvalidValueError):
        match_privacy(target, 16, SingleTrainingSettings())
