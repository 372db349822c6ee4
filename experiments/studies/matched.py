"""PMixED and PAC at an equal bound on membership: what each makes of the text's own next token, position by position.

Utility is the probability that the sampled token is the text's own. For PMixED it is exact: an expert's projection does
not depend on who else takes part, so the distribution of a token averaged over participation is

    (1 − (1 − q)^N) · mean of the N projections + (1 − q)^N · public distribution,

and with p̄_i = p₀ + λ_i (p_i − p₀) only λ_i and the probabilities of one token enter. For PAC coins, secrets and noise
are simulated; the posterior is uniform, which at the budgets of interest it stays.

The two bounds speak of different secrets: PAC's of a record in the realised world, PMixED's of a record in the corpus.

Shape suffixes: P positions, N experts, B radii, M worlds, K candidates, R releases.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.studies.pmixed import PMixedSettings
from reticent import _validate
from reticent._settings import FiniteModel
from reticent.errors import InvalidValueError
from reticent.evaluation.session_batch import SessionBatch, secret_indices
from reticent.pac.release import BatchMechanism
from reticent.randomness import NoiseSource
from reticent.stats.means import Mean, ratio

_RELEASES_A_DRAW = 32
_LOG_OF_NOTHING = -700.0
"""Stands for the logarithm of a weight of 0."""

Floats = NDArray[np.float64]


class MatchedRow(FiniteModel):
    """One way to release tokens at one horizon.

    Attributes:
        method: `pmixed` or a release mechanism of PAC.
        horizon: T.
        reading: of PMixED's accounting.
        step_budget: b of PAC, in nats a token.
        num_shards, sampling_rate, max_order, beta: PMixED's settings.
        accuracy: expected accuracy of the sampled token.
        of_own_ceiling: share of the headroom below what the method would reach without privacy: a noiseless world for
            PAC, the experts' plain mean for PMixED. None without headroom.
        of_full_data: share of the headroom below the adapter on all records, sampled from the whole vocabulary.
    """

    method: str
    horizon: int
    reading: str | None = None
    step_budget: float | None = None
    num_shards: int | None = None
    sampling_rate: float | None = None
    max_order: int | None = None
    beta: float | None = None
    accuracy: Mean
    of_own_ceiling: Mean | None
    of_full_data: Mean | None


class OneOrderRow(FiniteModel):
    """The effect of checking the ball at order α alone, over some experts and positions.

    Attributes:
        max_order, beta: of the ball.
        weight: mean λ with the ball at every order of the accounting, 2 … 2α.
        one_order_weight: mean λ with the ball at order α alone.
        largest_excess: the largest divergence of the latter over its limit, over those orders; 1 is the limit.
        share_outside: share of projections of the latter that leave the ball at some order.
    """

    max_order: int
    beta: float
    weight: float
    one_order_weight: float
    largest_excess: float
    share_outside: float


@dataclass(frozen=True)
class TargetProbabilities:
    """Models' probabilities of the text's own next token.

    Attributes:
        text_P: the text of each position, int64[P].
        public_P: the public model's probability.
        experts_PN: each expert's, of one number of shards.
    """

    text_P: NDArray[np.int64]
    public_P: Floats
    experts_PN: Floats

    def __post_init__(self) -> None:
        size = (self.text_P.size,)
        if self.text_P.shape != size or self.public_P.shape != size or self.experts_PN.shape[:1] != size:
            raise InvalidValueError(
                f"{self.text_P.shape} texts, {self.public_P.shape} public probabilities and experts of shape "
                f"{self.experts_PN.shape} do not belong together"
            )

    def pmixed(self, weights_PN: Floats, sampling_rate: float) -> Floats:
        """The probability that PMixED samples the token, averaged over who takes part; float64[P].

        Args:
            weights_PN: λ of each expert's projection.
            sampling_rate: q.

        Raises:
            InvalidValueError: the rate is outside (0, 1].
        """
        if not 0.0 < sampling_rate <= 1.0:
            raise InvalidValueError(f"sampling_rate must lie in (0, 1], got {sampling_rate!r}")
        num_experts = self.experts_PN.shape[1]
        somebody = 1.0 if sampling_rate == 1.0 else -math.expm1(num_experts * math.log1p(-sampling_rate))
        shift_P = (weights_PN * (self.experts_PN - self.public_P[:, None])).mean(axis=1)
        probability_P: Floats = self.public_P + somebody * shift_P
        return probability_P

    def ensemble(self) -> Floats:
        """The experts' plain mean, the ceiling of any release that mixes them; float64[P]."""
        mean_P: Floats = self.experts_PN.mean(axis=1)
        return mean_P


@dataclass(frozen=True)
class WeightTable:
    """λ at some radii, and between them: log λ is interpolated linearly in log β. For selection, not for results.

    Below the smallest radius λ falls with √β, its behaviour where the ball is small; above the largest it stays.

    Attributes:
        radii_B: β, rising, positive.
        weights_BPN: λ at each.
    """

    radii_B: Floats
    weights_BPN: Floats

    def __post_init__(self) -> None:
        if self.radii_B.size < 2 or not (self.radii_B[0] > 0.0 and (np.diff(self.radii_B) > 0.0).all()):
            raise InvalidValueError("a table of weights needs two or more radii that are positive and rise")
        if len(self.weights_BPN) != self.radii_B.size:
            raise InvalidValueError(f"{self.radii_B.size} radii and weights of shape {self.weights_BPN.shape}")

    def at(self, beta: float) -> Floats:
        """λ of each expert at each position, float64[P, N]."""
        _validate.non_negative_finite("beta", beta)
        if beta <= self.radii_B[0]:
            lowest: Floats = math.sqrt(beta / self.radii_B[0]) * self.weights_BPN[0]
            return lowest
        upper = min(int(np.searchsorted(self.radii_B, beta)), self.radii_B.size - 1)
        low, high = np.log(self.radii_B[upper - 1 : upper + 1])
        share = min(1.0, (math.log(beta) - low) / (high - low))
        below_PN, above_PN = (_log(self.weights_BPN[index]) for index in (upper - 1, upper))
        weights_PN: Floats = np.exp(below_PN + share * (above_PN - below_PN))
        return weights_PN


def _log(weights_PN: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(weights_PN), _LOG_OF_NOTHING)


def select_best(
    candidates: Iterable[PMixedSettings], held_out: Callable[[PMixedSettings], float]
) -> tuple[PMixedSettings, float]:
    """The settings of largest accuracy on held-out positions, with it; the first among equals.

    Raises:
        InvalidValueError: there are no candidates.
    """
    scored = [(settings, held_out(settings)) for settings in candidates]
    if not scored:
        raise InvalidValueError("there are no settings to select from")
    return max(scored, key=lambda pair: pair[1])


def pac_probability(
    scores_MK: Floats,
    target: int | None,
    mechanism: BatchMechanism,
    generator: np.random.Generator,
    noise: NoiseSource,
    num_draws: int,
) -> float:
    """The probability that PAC's coupled Gumbel decoder releases the text's own token at one position, by simulation.

    Over coins the share of worlds that vote for the token is `noiseless_probability` on average; so only what release
    adds to that share is simulated, under the same coins, and draws on which all worlds agree add nothing.

    Args:
        scores_MK: each world's logits at the candidates, over the temperature.
        target: the token's place among the candidates; None if it is not there, so that nobody can vote for it.
        mechanism: of release.
        generator: of coins.
        noise: of secrets and release.
        num_draws: draws of coins, each with some secrets and releases.

    Raises:
        InvalidValueError: an argument is out of range.
    """
    _validate.integer_in_range("num_draws", num_draws, 1)
    if target is None:
        return 0.0
    num_worlds, num_candidates = scores_MK.shape
    _validate.integer_in_range("target", target, 0, num_candidates - 1)
    added = 0.0
    for _ in range(num_draws):
        votes_M = (scores_MK + generator.gumbel(size=num_candidates)).argmax(axis=1)
        share = float((votes_M == target).mean())
        if 0.0 < share < 1.0:
            secrets_R = secret_indices(_RELEASES_A_DRAW, num_worlds, noise)
            released_R = SessionBatch(mechanism, secrets_R, num_worlds, noise).release(votes_M)
            added += float((released_R == target).mean()) - share
    return noiseless_probability(scores_MK, target) + added / num_draws


def noiseless_probability(scores_MK: Floats, target: int | None) -> float:
    """The same of a noiseless world drawn from the prior, exact: the mean over worlds of its softmax."""
    if target is None:
        return 0.0
    weights_MK = np.exp(scores_MK - scores_MK.max(axis=1, keepdims=True))
    return float((weights_MK[:, target] / weights_MK.sum(axis=1)).mean())


def accuracy(probability_P: Floats, text_P: NDArray[np.int64]) -> Mean:
    """The expected accuracy of the sampled token, with its standard error over texts."""
    return ratio(_sums(probability_P, text_P), _sums(np.ones_like(probability_P), text_P))


def headroom(method_P: Floats, public_P: Floats, ceiling_P: Floats, text_P: NDArray[np.int64]) -> Mean | None:
    """(method − public)/(ceiling − public), with its standard error over texts; None without headroom."""
    room = _sums(ceiling_P - public_P, text_P)
    if not room.sum() > 0.0:
        return None
    return ratio(_sums(method_P - public_P, text_P), room)


def _sums(values_P: Floats, text_P: NDArray[np.int64]) -> Floats:
    return np.bincount(text_P, weights=values_P).astype(np.float64)
