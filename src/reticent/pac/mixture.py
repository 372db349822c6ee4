"""The mixture release: the realised world's vote now and then, otherwise a draw from the posterior over votes.

With q the posterior mass behind each active token, and v_S the realised world's vote,

    P(Y = y | v_S) = α 1[y = v_S] + (1 − α) q_y.

Y is distributed exactly as q, whatever α is: unlike the Gaussian release, which hands a single dissenting world half of
the say, it preserves the noiseless mixture of the worlds. Its channel is explicit, so that α can be set by the *exact*
information rather than by a bound on it, and the posterior is updated from the released token alone.

Formal guarantee. With x_c = α (1 − q_c) / q_c and φ(x) = (1 + x) log(1 + x) − x,

    I(S; Y | history) = H(q) − Σ_c q_c H(α e_c + (1 − α) q) = Σ_c q_c [q_c φ(x_c) + (1 − q_c) φ(−α)] ≤ b,

where all terms of the second sum are non-negative, so nothing cancels. It grows with α from 0 to H(q); α is the end of
a search whose every stop lies on the private side. For α far below every mass, I = α² (a − 1) / 2 to leading order, so
α ≈ √(2b / (a − 1)); tokens of smaller mass leak less than that, and α is larger. Always √(b / (a − 1)) ≤ α.

| case | outcome |
|---|---|
| H(q) ≤ b | α = 1: the vote itself is released, and worlds that voted otherwise have posterior 0 from then on |
| α < 1 | no world becomes impossible |
| a mass that is 0 in float64 | taken as 2^-1000 |
| one active token | no calibration: the votes are unanimous, see `curator` |

Shape suffixes: R sessions, M worlds, A active tokens.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.errors import InvalidValueError
from reticent.pac.accounting import check_step_budget
from reticent.pac.calibration import check_vote_weights, vote_weights_batch
from reticent.pac.divergence import phi, phi_of_array
from reticent.pac.release import BatchRelease, Release, require_world
from reticent.randomness import NoiseSource

_LEAST_MASS = 2.0**-1000
# Far above the rounding of the sum above (about A · 2^-52) and of the uniforms, far below anything that matters.
_SAFETY = 2.0**-40
# The share of the budget that the search may leave unused.
_SLACK = 2.0**-32
_MAX_STEPS = 200
# The relative distance from the budget at which the search over many sessions ends.
_BATCH_ACCURACY = 2.0**-32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MixtureCalibration:
    """The parameters of one release. They derive from the posterior, so the repr shows none of them.

    Attributes:
        step_budget: b, in nats.
        vote_weights: q, the posterior mass behind each active token, all positive, float64[A].
        keep_probability: α, the chance that the realised world's vote is released as it is, in (0, 1].
    """

    step_budget: float
    vote_weights: NDArray[np.float64]
    keep_probability: float

    @property
    def num_active(self) -> int:
        """The number of active tokens, a."""
        return self.vote_weights.size

    def __repr__(self) -> str:
        return f"MixtureCalibration(num_active={self.num_active}, step_budget={self.step_budget!r})"


@dataclass(frozen=True, slots=True)
class MixtureMechanism:
    """Release the realised world's vote with probability α, and otherwise a draw from q.

    Attributes:
        step_budget: b, in nats.

    Raises:
        InvalidValueError: the budget is out of range.
    """

    step_budget: float

    def __post_init__(self) -> None:
        check_step_budget(self.step_budget)

    def calibrate(self, vote_weights_A: NDArray[np.float64]) -> MixtureCalibration:
        """Return the parameters that hold one release to the step budget.

        Args:
            vote_weights_A: q, the posterior mass behind each of a ≥ 2 active tokens, float64[A]; zeros are allowed.

        Raises:
            InvalidValueError: fewer than two tokens, a negative mass, or masses that do not sum to 1.
        """
        weights_A = np.maximum(check_vote_weights(vote_weights_A), _LEAST_MASS)
        return MixtureCalibration(self.step_budget, weights_A, _largest_keep_probability(weights_A, self.step_budget))

    def release(
        self, index_M: NDArray[np.int64], calibration: MixtureCalibration, secret: int, noise: NoiseSource
    ) -> Release:
        """Draw Y, by the same steps whatever S is; the secret selects one row.

        Args:
            index_M: each world's vote as an index among the active tokens, int64[m].
            calibration: this mechanism's calibration for the posterior mass behind those tokens.
            secret: S, in [0, m).
            noise: the source of two uniforms.

        Raises:
            InvalidValueError: the calibration is for another budget, or the secret is not a world.
        """
        if calibration.step_budget != self.step_budget:
            raise InvalidValueError(
                f"calibrated for a step budget of {calibration.step_budget!r} nats, used at {self.step_budget!r}"
            )
        require_world(secret, index_M)
        keep, position = noise.uniform(2).tolist()
        drawn = _draw(calibration.vote_weights, position)
        released = int(index_M[secret]) if keep <= calibration.keep_probability else drawn
        return Release(released, mixture_log_likelihood(calibration, index_M, released))

    def release_batch(
        self,
        index_M: NDArray[np.int64],
        weights_RM: NDArray[np.float64],
        secrets_R: NDArray[np.int64],
        noise: NoiseSource,
    ) -> BatchRelease:
        """Release one token in each of R sessions; see `BatchMechanism.release_batch`."""
        weights_RA = np.maximum(vote_weights_batch(index_M, weights_RM), _LEAST_MASS)
        keep_R = keep_probabilities(weights_RA, self.step_budget)
        kept_R, position_R = noise.uniform(2 * len(keep_R)).reshape(2, -1)
        cumulated_RA = weights_RA.cumsum(axis=1)
        drawn_R = (cumulated_RA < position_R[:, None] * cumulated_RA[:, -1:]).sum(axis=1)
        released_R = np.where(kept_R <= keep_R, index_M[secrets_R], drawn_R)
        mass_R = weights_RA[np.arange(len(keep_R)), released_R]
        with np.errstate(divide="ignore"):
            others_R = np.log1p(-keep_R)
        same_R = np.log1p(keep_R * (1.0 - mass_R) / mass_R)
        return released_R, np.where(index_M == released_R[:, None], same_R[:, None], others_R[:, None])


def mixture_log_likelihood(
    calibration: MixtureCalibration, index_M: NDArray[np.int64], released: int
) -> NDArray[np.float64]:
    """Return log P(Y = y | v_j) − log q_y for each world j, float64[m].

    That is log(1 + α (1 − q_y) / q_y) for the worlds that voted for the released token y, and log(1 − α) for all
    others, −∞ where α = 1.
    """
    keep, weights_A = calibration.keep_probability, calibration.vote_weights
    other_mass = _sum_without(weights_A.tolist(), released)
    others = math.log1p(-keep) if keep < 1.0 else -math.inf
    per_token_A = np.full(weights_A.size, others)
    per_token_A[released] = math.log1p(keep * other_mass / float(weights_A[released]))
    by_world_M: NDArray[np.float64] = per_token_A[index_M]
    return by_world_M


def mixture_information_nats(vote_weights_A: NDArray[np.float64], keep_probability: float) -> float:
    """Return I(S; Y | history) of the mixture release, exact up to rounding, in nats.

    Args:
        vote_weights_A: q, positive and summing to 1, float64[A].
        keep_probability: α, in [0, 1].
    """
    masses = vote_weights_A.tolist()
    return _information(masses, [_sum_without(masses, c) for c in range(len(masses))], keep_probability)


def _information(masses: list[float], rests: list[float], keep: float) -> float:
    """The sum of the module's docstring; `rests` holds 1 − q_c, each summed from the other masses."""
    away = phi(-keep)
    return math.fsum(
        mass * (mass * phi(keep * rest / mass) + rest * away) for mass, rest in zip(masses, rests, strict=True)
    )


def _slope(masses: list[float], rests: list[float], keep: float) -> float:
    """dI/dα = Σ_c q_c (1 − q_c) (log(1 + x_c) − log(1 − α)), for α < 1."""
    away = math.log1p(-keep)
    return math.fsum(
        mass * rest * (math.log1p(keep * rest / mass) - away) for mass, rest in zip(masses, rests, strict=True)
    )


def _largest_keep_probability(weights_A: NDArray[np.float64], step_budget: float) -> float:
    """The largest α whose information is within the budget, short of it by a share of at most `_SLACK`.

    `low` is private throughout, so that whatever ends the search, the answer is. It starts at √(b / (a − 1)), which is
    private because φ(x) ≤ x²/2 for x ≥ 0 and φ(−α) ≤ α². The steps are Newton's for log I as a function of log α, whose
    slope lies between 1 and 2, towards the middle of the admitted range; outside the bracket, they are bisections.
    """
    masses = weights_A.tolist()
    rests = [_sum_without(masses, c) for c in range(len(masses))]
    target = step_budget * (1.0 - _SAFETY)
    if _information(masses, rests, 1.0) <= target:
        return 1.0
    low = keep = math.sqrt(target / (len(masses) - 1)) * (1.0 - _SAFETY)
    high = 1.0
    for _ in range(_MAX_STEPS):
        nats = _information(masses, rests, keep)
        if nats > target:
            high = keep
        else:
            low = keep
            if nats >= target * (1.0 - _SLACK):
                break
        step = keep * (target * (1.0 - 0.5 * _SLACK) / nats) ** (nats / (keep * _slope(masses, rests, keep)))
        keep = step if low < step < high else math.sqrt(low * high)
    return low


def _sum_without(masses: list[float], left_out: int) -> float:
    """1 − q_c, without the cancellation where q_c is nearly 1."""
    return math.fsum(masses[:left_out] + masses[left_out + 1 :])


def _draw(weights_A: NDArray[np.float64], position: float) -> int:
    """The token at a uniform `position` in (0, 1] of the cumulated masses, lightest first.

    In that order every mass keeps its relative precision; a light one cumulated onto heavier ones would be lost.
    """
    order_A = weights_A.argsort(kind="stable")
    cumulated_A = weights_A[order_A].cumsum()
    return int(order_A[cumulated_A.searchsorted(position * cumulated_A[-1])])


def keep_probabilities(weights_RA: NDArray[np.float64], step_budget: float) -> NDArray[np.float64]:
    """Return the largest α of each session whose information is at most b, float64[R]; for experiments.

    Newton's steps for log I as a function of log α, kept inside a bracket that they shrink.
    """
    low_R = np.full(len(weights_RA), math.sqrt(min(step_budget / (weights_RA.shape[1] - 1), 1.0)))
    whole_R = _batch_information(weights_RA, np.ones_like(low_R)) <= step_budget
    keep_R, high_R = np.where(whole_R, 0.5, low_R), np.ones_like(low_R)
    for _ in range(_MAX_STEPS):
        nats_R = _batch_information(weights_RA, keep_R)
        if np.all(whole_R | (np.abs(nats_R - step_budget) <= _BATCH_ACCURACY * step_budget)):
            break
        low_R = np.where(nats_R <= step_budget, keep_R, low_R)
        high_R = np.where(nats_R > step_budget, keep_R, high_R)
        # Where the whole vote may be released the numbers do not matter, and may leave their range.
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            elasticity_R = keep_R * _batch_slope(weights_RA, keep_R) / nats_R
            step_R = keep_R * (step_budget / nats_R) ** (1.0 / elasticity_R)
        keep_R = np.where((low_R < step_R) & (step_R < high_R), step_R, np.sqrt(low_R * high_R))
    return np.where(whole_R, 1.0, keep_R)


def _batch_information(weights_RA: NDArray[np.float64], keep_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """I(S; Y) = Σ_c q_c [q_c φ(α (1 − q_c) / q_c) + (1 − q_c) φ(−α)], in nats, float64[R]."""
    rest_RA = 1.0 - weights_RA
    gain_RA = weights_RA * phi_of_array(keep_R[:, None] * rest_RA / weights_RA)
    nats_R: NDArray[np.float64] = (weights_RA * (gain_RA + rest_RA * phi_of_array(-keep_R)[:, None])).sum(axis=1)
    return nats_R


def _batch_slope(weights_RA: NDArray[np.float64], keep_R: NDArray[np.float64]) -> NDArray[np.float64]:
    """dI/dα = Σ_c q_c (1 − q_c) (log(1 + x_c) − log(1 − α)), float64[R]."""
    rest_RA = 1.0 - weights_RA
    with np.errstate(divide="ignore"):
        rise_RA = np.log1p(keep_R[:, None] * rest_RA / weights_RA) - np.log1p(-keep_R)[:, None]
    slope_R: NDArray[np.float64] = (weights_RA * rest_RA * rise_RA).sum(axis=1)
    return slope_R
