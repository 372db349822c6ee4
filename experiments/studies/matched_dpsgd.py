"""DP-SGD at a matched membership bound: the privacy to train with, for a success that an attacker may not exceed.

Formal guarantee. An attacker who is shown the trained model, or any number of its tokens, and who knows at even odds
that a record was in or out, is right with probability at most ½ (1 + δ(0)), where δ(0) is the total variation between
the two outputs, as an accountant of privacy-loss distributions bounds it. That is the exact counterpart of the success
that `pac.bounds` and the readings of `pmixed_calibration` concede, with no detour through an (ε, δ).

| | secret | depends on the number of tokens |
|---|---|---|
| this bound | record in the corpus | no |
| PMixED | record in the corpus | yes |
| the PAC bound | record in the realised world | yes |

The search ends on the private side. Training itself is `training.dpsgd`, asked for by (ε, δ): the ε returned is that
of the noise found here, so that training's own search lands on no less noise.
"""

import math
from dataclasses import dataclass

from reticent import _validate
from reticent.errors import InvalidValueError
from reticent.training.batches import num_batches
from reticent.training.dpsgd import delta_spent, epsilon_spent
from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings

DELTA = 1e-5
_PRECISION = 1e-2
_SMALLEST_MULTIPLIER = 0.25
_LARGEST_MULTIPLIER = 2.0**20


@dataclass(frozen=True)
class MatchedPrivacy:
    """DP-SGD settings and the membership success they bound.

    Attributes:
        privacy: for `training.trainer.AdaptRequest`.
        noise_multiplier: σ.
        success: the bound on membership success, at most the target.
    """

    privacy: PrivacySettings
    noise_multiplier: float
    success: float


def dpsgd_success(noise_multiplier: float, sample_rate: float, num_steps: int) -> float:
    """Bound on success, at even odds, in telling whether a record was among the members: ½ (1 + δ(0)).

    Args:
        noise_multiplier: σ.
        sample_rate: q in (0, 1].
        num_steps: T, training steps.

    Raises:
        InvalidValueError: an argument is outside its range, or dp-accounting is missing.
    """
    _validate.positive_finite("noise_multiplier", noise_multiplier)
    return 0.5 + 0.5 * delta_spent(noise_multiplier, 0.0, sample_rate, num_steps)


def match_privacy(
    target_success: float,
    num_members: int,
    training: SingleTrainingSettings,
    delta: float = DELTA,
    max_gradient_norm: float = 1.0,
) -> MatchedPrivacy:
    """The least noise, to within 1 % and not below σ = ¼, that holds membership success to a target in a training.

    Raises:
        InvalidValueError: a target of ½ or less, or of 1 or more; no noise reaches it; or δ is so large that ε is 0.
    """
    _validate.open_probability("target_success", target_success)
    if not target_success > 0.5:
        raise InvalidValueError(f"target_success must be above 0.5, that of a blind guess, got {target_success!r}")
    batch_size = min(training.batch_size, _validate.integer_in_range("num_members", num_members, 1))
    sample_rate, num_steps = batch_size / num_members, training.epochs * num_batches(num_members, batch_size)
    multiplier = _least_multiplier(target_success, sample_rate, num_steps)
    epsilon = epsilon_spent(multiplier, delta, sample_rate, num_steps)
    if not epsilon > 0.0:
        raise InvalidValueError(
            f"at a success of {target_success!r} epsilon is 0 for delta {delta!r}; ask for a smaller delta"
        )
    return MatchedPrivacy(
        PrivacySettings(epsilon=epsilon, delta=delta, max_gradient_norm=max_gradient_norm),
        multiplier,
        dpsgd_success(multiplier, sample_rate, num_steps),
    )


def _least_multiplier(target_success: float, sample_rate: float, num_steps: int) -> float:
    def is_allowed(multiplier: float) -> bool:
        return dpsgd_success(multiplier, sample_rate, num_steps) <= target_success

    high = 1.0
    while not is_allowed(high):
        high *= 2.0
        if high > _LARGEST_MULTIPLIER:
            raise InvalidValueError(f"no noise multiplier up to {_LARGEST_MULTIPLIER:g} reaches {target_success!r}")
    low = high / 2.0
    while is_allowed(low):
        low, high = low / 2.0, low
        if high <= _SMALLEST_MULTIPLIER:
            return high
    while high - low > _PRECISION * high:
        middle = math.sqrt(low * high)
        if is_allowed(middle):
            high = middle
        else:
            low = middle
    return high
