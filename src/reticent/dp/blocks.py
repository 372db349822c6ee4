"""A second, tighter reading of the same account: tokens composed in blocks of 64.

ρ adds up bounds that no single mechanism attains at all orders. Composing 64 releases of one range η exactly, for the
worst adaptive choice of each, gives a block that is μ-GDP with μ² = 1.024·64·η²/4 (Gaussian differential privacy, Dong,
Roth and Su 2022); blocks then add up their μ². The balanced pair composed 64 times would claim less than a user who
chooses contexts adaptively can learn.

Guarantee: `is_certified` is a proof, up to float64 rounding far below its margins, that the bound holds for blocks of a
range η. Readings are given only where it succeeds, and cover a block that has begun as a whole one.

The certificate. The excess F_n(ε) = sup E_P[(1 − e^(ε − L))₊] over n adaptive steps of range η satisfies

    F_n(ε) = sup over 0 ≤ t ≤ η of p F_{n−1}(ε − t) + (1 − p) F_{n−1}(ε − t + η), p = (1 − e^(t−η))/(1 − e^−η),

F_0(ε) = (1 − e^ε)₊, since among likelihood ratios in [e^(t−η), e^t] the two end points are the most spread out and F is
convex in e^ε (Dong, Durfee and Rogers 2020). On a grid of step h with the range widened to η + h, each t lies between
grid points whose interval contains its own: the recursion on the grid is an upper bound. Between grid points F lies
below its chord and the Gaussian's excess above its tangents, both in e^ε. ε < 0 follows, as both sides are symmetric.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from reticent._validate import integer_in_range, open_probability
from reticent.dp.accounting import ROUNDING_ETA, rho_of_range

BLOCK_TOKENS: Final = 64
BLOCK_FACTOR: Final = Fraction(1024, 1000)
"""The ratio of a block's μ² to twice what it is charged."""

_GRID_STEPS: Final = 256
_ROUNDING: Final = 1e-9
# Outside, float64 does not tell F from the Gaussian's excess well enough.
_CERTIFIABLE: Final = (1e-6, 2.0)


@dataclass(frozen=True, slots=True)
class BlockReading:
    """The bound on everything released, read in blocks: it is μ-GDP.

    Attributes:
        mu: μ, rounded up.
    """

    mu: float

    @property
    def membership_success(self) -> float:
        """Bound on telling whether a unit is in the corpus (prior ½)."""
        return min(1.0, float(ndtr(self.mu / 2.0)) * (1.0 + _ROUNDING))

    def epsilon(self, delta: float) -> float:
        """Return ε at a δ in (0, 1), rounded up; 0 where δ alone covers it.

        Raises:
            InvalidValueError: δ is out of range.
        """
        target = open_probability("delta", delta) * (1.0 - _ROUNDING)
        if self.mu == 0.0 or gaussian_excess(0.0, self.mu) <= target:
            return 0.0
        # Beyond it, the first of the two normal tails alone is below δ.
        limit = self.mu * (self.mu / 2.0 + math.sqrt(-2.0 * math.log(target)))
        root = brentq(lambda eps: gaussian_excess(eps, self.mu) - target, 0.0, limit, xtol=1e-13, rtol=1e-13)
        return float(root) * (1.0 + _ROUNDING) + 1e-12


def block_reading(tokens: int, eta: Fraction) -> BlockReading | None:
    """Return what a number of released tokens of exact range η tell together, or None where no certificate is found.

    Args:
        tokens: released so far, or planned.
        eta: `CorpusSettings.exact_eta`; what the arithmetic adds to it is added here.

    Raises:
        InvalidValueError: `tokens` is negative.
    """
    blocks = -(-integer_in_range("tokens", tokens, 0) // BLOCK_TOKENS)
    widened = eta + ROUNDING_ETA
    if not is_certified(math.nextafter(float(widened), math.inf)):
        return None
    return BlockReading(math.sqrt(float(blocks * _mu_squared(widened))) * (1.0 + _ROUNDING))


@lru_cache(maxsize=64)
def is_certified(eta: float, factor: Fraction = BLOCK_FACTOR) -> bool:
    """Return True if every adaptive block of range η is shown to be μ-GDP, μ² being `factor` times twice its ρ.

    Takes about half a second. False proves nothing.
    """
    if not _CERTIFIABLE[0] <= eta <= _CERTIFIABLE[1]:
        return False
    epsilons, excess = worst_excess(eta, BLOCK_TOKENS, _GRID_STEPS)
    mu = math.sqrt(float(_mu_squared(Fraction(eta), factor)))
    return bool((_largest_chord_gap(epsilons, excess * (1.0 + _ROUNDING), mu) <= 0.0).all())


def worst_excess(eta: float, steps: int, grid_steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return grid points ε ≥ 0 up to the largest loss, and upper bounds on F there after adaptive steps of range η."""
    spacing = eta / grid_steps
    width = grid_steps + 1
    half = (steps + 1) * width
    epsilons = np.arange(-half, half + 1, dtype=np.float64) * spacing
    excess: NDArray[np.float64] = np.maximum(0.0, -np.expm1(epsilons))
    shares = -np.expm1((np.arange(width + 1) - width) * spacing) / -np.expm1(-width * spacing)
    for _ in range(steps):
        inner = excess[width:-width].copy()
        for up, share in enumerate(shares):
            below = excess[width - up : excess.size - width - up]
            above = excess[2 * width - up : excess.size - up]
            np.maximum(inner, share * below + (1.0 - share) * above, out=inner)
        # Outside of what all steps together reach, F is exact.
        excess[width:-width] = inner
    return epsilons[half:], excess[half:]


def gaussian_excess(epsilons: float, mu: float) -> float:
    """Return δ(ε) of μ-GDP."""
    return float(_gaussian_excess(np.array(epsilons), mu))


def _mu_squared(eta: Fraction, factor: Fraction = BLOCK_FACTOR) -> Fraction:
    return factor * 2 * BLOCK_TOKENS * rho_of_range(eta)


def _gaussian_excess(epsilons: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    values: NDArray[np.float64] = ndtr(mu / 2.0 - epsilons / mu) - np.exp(
        epsilons + log_ndtr(-mu / 2.0 - epsilons / mu)
    )
    return values


def _largest_chord_gap(epsilons: NDArray[np.float64], excess: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """On each interval between grid points, a bound on how far the chord of F lies above the Gaussian's excess."""
    # In u = e^ε the Gaussian's excess is convex with slope −Φ(−μ/2 − ε/μ).
    u, gauss = np.exp(epsilons), _gaussian_excess(epsilons, mu)
    slopes = -ndtr(-mu / 2.0 - epsilons / mu)
    left, right = slice(None, -1), slice(1, None)
    # Where the tangents at both ends meet, their larger one is least.
    bend = slopes[right] - slopes[left]
    meet = np.where(
        bend > 0.0,
        (gauss[left] - gauss[right] + slopes[right] * u[right] - slopes[left] * u[left]) / np.maximum(bend, 1e-300),
        u[left],
    )
    meet = np.clip(meet, u[left], u[right])
    share = (meet - u[left]) / (u[right] - u[left])
    chord = (1.0 - share) * excess[left] + share * excess[right]
    tangent = np.maximum(
        gauss[left] + slopes[left] * (meet - u[left]), gauss[right] + slopes[right] * (meet - u[right])
    )
    gaps: NDArray[np.float64] = np.maximum.reduce(
        [excess[left] - gauss[left], excess[right] - gauss[right], chord - tangent]
    )
    return gaps
