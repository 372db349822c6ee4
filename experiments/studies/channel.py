"""P(token | vote): what the released token alone tells, for an attacker who never sees the noisy vector.

For the Gaussian release, token y wins where all differences R_y − R_d are positive: an orthant probability of a − 1
correlated normal values, whose means alone depend on the vote. At small budgets the means are about √b of the noise, so
a channel is useful only if the *differences between its rows* are accurate. That excludes integrators whose errors
(often 1e-5) differ from call to call. Here every row is integrated on the same points: an error that the rows share
cancels.

| case | method | error of entries | of log-ratios between rows |
|---|---|---|---|
| mixture | its definition | rounding | rounding |
| Gaussian, a = 2 | Φ(1 / √(2e)) | rounding | rounding |
| Gaussian, a = 3 | Owen's T function | rounding | rounding |
| Gaussian, a ≤ 16 | orthants, on a lattice of 2,048 or 4,096 points | 2e-4 | 0.2 % |
| a > 16, votes far below the noise | likelihood-weighted draws, on 65,536 pairs of points | 2e-3 | 3 % |
| a > 16 otherwise | orthants, on a lattice of 256 points | 2e-3 | 2 % |

The errors of the last three lines are typical sizes, found with lattices of more points; log-ratios are relative to the
largest. All is deterministic. The work of an orthant channel is a³ times the points, of a weighted one a² times.

Shape suffixes: A active tokens, D = A − 1 directions, P lattice points.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, owens_t

from reticent._validate import integer_in_range
from reticent.errors import InvalidValueError
from reticent.pac.calibration import Calibration, check_vote_weights
from reticent.pac.divergence import phi
from reticent.pac.mixture import MixtureCalibration

_MOST_ONE_BY_ONE = 16
_LIKELIHOOD_POINTS = 1 << 16
_POINTS_AT_ONCE = 1 << 12
# The largest squared shift, in units of the noise, for which likelihood weights stay near 1.
_SMALL_SHIFT = 0.25
_LEAST_TAIL = 1e-300
_ROW_TOLERANCE = 1e-9


def token_channel(calibration: Calibration | MixtureCalibration) -> NDArray[np.float64]:
    """Return P(token | vote), one row a vote and one column a released token, float64[A, A]; every row sums to 1.

    The likelihood of a released token for world j is the entry at j's vote; see the table above for its accuracy.
    """
    if isinstance(calibration, MixtureCalibration):
        keep = calibration.keep_probability
        channel_AA: NDArray[np.float64] = (1.0 - keep) * calibration.vote_weights + keep * np.eye(
            calibration.num_active
        )
    elif calibration.num_active == 2:
        margin = 1.0 / math.sqrt(2.0 * float(calibration.noise_variances[0]))
        kept, flipped = float(ndtr(margin)), float(ndtr(-margin))
        return np.array([[kept, flipped], [flipped, kept]])
    elif _is_integrated(calibration):
        channel_AA = np.stack(
            [_winning_probabilities(calibration, token) for token in range(calibration.num_active)], 1
        )
    else:
        channel_AA = _weight_by_likelihood(calibration)
    channel_AA /= channel_AA.sum(axis=1, keepdims=True)
    return channel_AA


def released_token_likelihood(calibration: Calibration | MixtureCalibration, token: int) -> NDArray[np.float64]:
    """Return P(token | vote) of one released token for every vote, float64[A]: a column of `token_channel`.

    Where channels are integrated a column costs one integral instead of A, and is not divided by the sums of rows: its
    entries share their errors, so that ratios between votes are as accurate as the table says.

    Args:
        calibration: of the release.
        token: index of the released token among the active ones.

    Raises:
        InvalidValueError: there is no such token.
    """
    integer_in_range("token", token, 0, calibration.num_active - 1)
    if isinstance(calibration, Calibration) and calibration.num_active > 2 and _is_integrated(calibration):
        return _winning_probabilities(calibration, token)
    return token_channel(calibration)[:, token]


def token_information(channel_AA: NDArray[np.float64], vote_weights_A: NDArray[np.float64]) -> float:
    """Return I(S; Y | history) in nats of a channel under the posterior mass behind each vote.

    Summed as Σ_c q_c Σ_y r_y φ(P(y | c) / r_y − 1) over the marginal r, in which nothing cancels. Limited by the
    channel's own precision: entries in float64 resolve the difference between votes down to budgets of about 2^-60.

    Args:
        channel_AA: P(token | vote), each row summing to 1.
        vote_weights_A: q, summing to 1.

    Raises:
        InvalidValueError: shapes differ, or rows or weights are no distributions.
    """
    weights_A = check_vote_weights(vote_weights_A)
    if channel_AA.shape != (weights_A.size, weights_A.size):
        raise InvalidValueError(
            f"a channel over {weights_A.size} active tokens must be square, got shape {channel_AA.shape}"
        )
    worst = float(np.abs(channel_AA.sum(axis=1) - 1.0).max())
    if not (worst <= _ROW_TOLERANCE and float(channel_AA.min()) >= 0.0):
        raise InvalidValueError(f"each row of a channel must be a distribution, but one misses a sum of 1 by {worst!r}")
    marginal = (weights_A @ channel_AA).tolist()
    return math.fsum(
        weight * mass * phi(entry / mass - 1.0)
        for weight, row in zip(weights_A.tolist(), channel_AA.tolist(), strict=True)
        for entry, mass in zip(row, marginal, strict=True)
        if mass > 0.0
    )


def _is_integrated(calibration: Calibration) -> bool:
    """True if tokens are integrated one by one, see the table above."""
    return calibration.num_active <= _MOST_ONE_BY_ONE or not _largest_shift(calibration) <= _SMALL_SHIFT


def _winning_probabilities(calibration: Calibration, token: int) -> NDArray[np.float64]:
    """P(R_token exceeds all other coordinates | vote) for every vote, float64[A]."""
    others_D = np.delete(np.arange(calibration.num_active), token)
    scale_D = np.sqrt(calibration.noise_variances)
    factor_DD = (calibration.directions[token] - calibration.directions[others_D]) * scale_D
    means_AD = np.zeros((calibration.num_active, others_D.size))
    means_AD[token] = 1.0
    means_AD[others_D, np.arange(others_D.size)] = -1.0
    if others_D.size == 2:
        return _positive_quadrant(factor_DD, means_AD)
    order_D = (factor_DD * factor_DD).sum(axis=1).argsort(kind="stable")
    return _positive_orthant(factor_DD[order_D], means_AD[:, order_D])


def _positive_quadrant(factor_22: NDArray[np.float64], means_A2: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(mean + factor · g > 0) for two variables: Owen, "Tables for computing bivariate normal probabilities", 1956.

    The slopes of T are written with the factor's determinant, which near-collinear rows leave accurate.
    """
    variances = (factor_22 * factor_22).sum(axis=1)
    product, determinant = float(factor_22[0] @ factor_22[1]), abs(float(np.linalg.det(factor_22)))
    first_A, second_A = means_A2.T
    heights_A2 = means_A2 / np.sqrt(variances)
    with np.errstate(divide="ignore"):
        slope_first_A = (second_A * variances[0] - first_A * product) / (first_A * determinant)
        slope_second_A = (first_A * variances[1] - second_A * product) / (second_A * determinant)
    opposite_A = (first_A * second_A < 0.0) | ((first_A * second_A == 0.0) & (first_A + second_A < 0.0))
    quadrant_A: NDArray[np.float64] = (
        0.5 * ndtr(heights_A2).sum(axis=1)
        - owens_t(heights_A2[:, 0], slope_first_A)
        - owens_t(heights_A2[:, 1], slope_second_A)
        - 0.5 * opposite_A
    )
    return np.maximum(quadrant_A, 0.0)


def _positive_orthant(factor_DD: NDArray[np.float64], means_AD: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(mean + factor · g > 0) in every coordinate, by conditioning one variable on those before it.

    Genz, "Numerical computation of multivariate normal probabilities", 1992: with the factor made lower triangular,
    each variable's chance given the ones before is a one-dimensional tail, and the product of tails is averaged over a
    lattice on the unit cube.
    """
    size = factor_DD.shape[0]
    lower_DD = np.linalg.qr(factor_DD.T).R.T
    lower_DD *= np.where(np.diag(lower_DD) < 0.0, -1.0, 1.0)
    diagonal_D = np.diag(lower_DD)
    lower_DD = lower_DD / diagonal_D[:, None]
    limits_AD = means_AD / diagonal_D
    points_PD = _small_lattice(size - 1, _num_points(size + 1))
    shape = (means_AD.shape[0], points_PD.shape[0])
    drawn_DAP = np.empty((size, *shape))
    product_AP = np.ones(shape)
    for i in range(size):
        tail_AP = ndtr(limits_AD[:, i : i + 1] + np.tensordot(lower_DD[i, :i], drawn_DAP[:i], axes=1))
        product_AP *= tail_AP
        if i + 1 < size:
            drawn_DAP[i] = -ndtri(np.maximum(points_PD[:, i] * tail_AP, _LEAST_TAIL))
    mean_A: NDArray[np.float64] = product_AP.mean(axis=1)
    return mean_A


def _largest_shift(calibration: Calibration) -> float:
    """The largest squared length of a centred vote in units of the noise."""
    return float((calibration.centred_votes**2 @ (1.0 / calibration.noise_variances)).max())


def _weight_by_likelihood(calibration: Calibration) -> NDArray[np.float64]:
    """The channel from draws around the mean vote, each weighted by its likelihood under every vote.

    P(y | c) = E[1{argmax R = y} exp(m_c · g − |m_c|² / 2)], R = q + U √e g, with m_c the centred vote in units of the
    noise; draws come in pairs g, −g.
    """
    scale_D = np.sqrt(calibration.noise_variances)
    shifts_AD = calibration.centred_votes / scale_D
    constant_A = 0.5 * (shifts_AD * shifts_AD).sum(axis=1)
    channel_AA = np.zeros((calibration.num_active, calibration.num_active))
    for start in range(0, _LIKELIHOOD_POINTS, _POINTS_AT_ONCE):
        normals_PD = ndtri(_lattice(scale_D.size, start, _POINTS_AT_ONCE))
        noise_PA = (normals_PD * scale_D) @ calibration.directions.T
        log_weights_PA = normals_PD @ shifts_AD.T
        for sign in (1.0, -1.0):
            winner_P = (calibration.vote_weights + sign * noise_PA).argmax(axis=1)
            weights_PA = np.exp(sign * log_weights_PA - constant_A)
            channel_AA += weights_PA.T @ np.eye(calibration.num_active)[winner_P]
    return channel_AA / (2 * _LIKELIHOOD_POINTS)


def _num_points(num_active: int) -> int:
    """A power of two that holds the work, about a³ times the points, nearly constant beyond a = 12."""
    return min(1 << 12, max(1 << 8, 1 << (23 - 3 * (num_active - 1).bit_length())))


@lru_cache(maxsize=32)
def _small_lattice(dimensions: int, num_points: int) -> NDArray[np.float64]:
    points_PD = _lattice(dimensions, 0, num_points)
    points_PD.flags.writeable = False
    return points_PD


def _lattice(dimensions: int, start: int, num_points: int) -> NDArray[np.float64]:
    """Points of the unit cube: multiples of the square roots of primes, folded (Genz and Bretz 2009, section 4.2.2)."""
    generator_D = np.sqrt(np.array(_primes(dimensions), dtype=np.float64))
    multiple_P = np.arange(start + 1, start + num_points + 1)
    folded_PD: NDArray[np.float64] = np.abs(2.0 * (np.outer(multiple_P, generator_D) % 1.0) - 1.0)
    return folded_PD


def _primes(count: int) -> list[int]:
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % prime for prime in found):
            found.append(candidate)
        candidate += 1
    return found
