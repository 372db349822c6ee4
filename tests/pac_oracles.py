"""Independent computations the tests hold the package to: information by quadrature, token channels, stub sources.

A channel is given by vote masses q[a], the votes' positions along noisy directions x[a, d] and noise variances e[d];
nothing here is taken from the package's own formulas.
"""

from itertools import pairwise

import mpmath
import numpy as np
from scipy import stats
from scipy.special import logsumexp, rel_entr

from reticent.randomness import SeededNoise

REVEALED = 1e-24
"""A noise variance so small that the direction is revealed."""


def vector_information(masses, positions, noise_variances):
    """I(S; R) in nats for at most two noisy directions, by the trapezoid rule."""
    means = positions / np.sqrt(noise_variances)
    step = 0.02 if means.shape[1] == 1 else 0.1
    axis = np.arange(-9.0, 9.0 + step / 2, step)
    grid = np.stack(np.meshgrid(*[axis] * means.shape[1], indexing="ij"), axis=-1).reshape(-1, means.shape[1])
    weight = np.prod(stats.norm.pdf(grid) * step, axis=1)
    information = 0.0
    for mass, mean in zip(masses, means, strict=True):
        if mass == 0.0:
            continue
        shift = means - mean
        log_ratio = grid @ shift.T - 0.5 * (shift**2).sum(axis=1)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            excess = np.expm1(log_ratio) @ masses
            precise, general = np.log1p(excess), logsumexp(log_ratio + np.log(masses), axis=1)
        mixture = np.where(np.abs(excess) < 0.5, precise, general)
        information -= mass * float(weight @ mixture)
    return information


def entropy(masses):
    masses = np.asarray(masses)
    return float(-(masses[masses > 0] * np.log(masses[masses > 0])).sum())


def two_way_token_channel(noise_variance):
    """P(token | vote) for two active tokens and noise of this variance along (1, −1)/√2."""
    keep = stats.norm.cdf(1.0 / np.sqrt(2.0 * noise_variance))
    flip = stats.norm.sf(1.0 / np.sqrt(2.0 * noise_variance))
    return np.array([[keep, flip], [flip, keep]])


def three_way_token_channel(covariance):
    """P(token | vote) for three active tokens, by polar integration of the plane's Gaussian over each token's wedge."""
    plane = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]).T / np.sqrt([2.0, 6.0])
    whiten = np.linalg.inv(np.linalg.cholesky(plane.T @ covariance @ plane)) @ plane.T
    ties = whiten @ (np.ones((3, 3)) - 2.0 * np.eye(3))  # column c: the ray on which the two others tie and win
    angles = np.arctan2(ties[1], ties[0])
    order = np.argsort(angles)
    nodes, node_weights = np.polynomial.legendre.leggauss(60)
    channel = np.zeros((3, 3))
    bounds = [*angles[order], angles[order[0]] + 2 * np.pi]
    for (low, high), (left, right) in zip(pairwise(bounds), pairwise([*order, order[0]]), strict=True):
        winner = 3 - left - right
        theta = 0.5 * (high - low) * nodes + 0.5 * (high + low)
        for vote in range(3):
            mean = whiten @ (np.eye(3)[vote] - 1.0 / 3.0)
            t = mean[0] * np.cos(theta) + mean[1] * np.sin(theta)
            density = np.exp(-0.5 * mean @ mean) / (2 * np.pi) + t * stats.norm.cdf(t) * np.exp(
                0.5 * (t**2 - mean @ mean)
            ) / np.sqrt(2 * np.pi)
            channel[vote, winner] = 0.5 * (high - low) * node_weights @ density
    return channel


def token_information(masses, channel):
    """I(S; Y) in nats from P(token | vote), with the first-order terms cancelled before summing."""
    marginal = masses @ channel
    divergence = rel_entr(channel, marginal) - channel + marginal
    relative = channel / marginal - 1.0
    small = np.abs(relative) < 1e-3
    series = marginal * relative**2 * (1 / 2 - relative / 6 + relative**2 / 12 - relative**3 / 20)
    return float(masses @ np.where(small, series, divergence).sum(axis=1))


class FixedNormals:
    """A noise source that hands out given normal values, for tests."""

    is_secure = False

    def __init__(self, *normals, secret=0):
        self.normals = np.array(normals, dtype=np.float64)
        self.secret = secret
        self.drawn = 0

    def standard_normal(self, count):
        self.drawn += count
        return self.normals[:count]

    def secret_index(self, num_worlds):
        return self.secret


class FixedUniforms:
    """A noise source that hands out the same given uniforms at every draw, for tests."""

    is_secure = False

    def __init__(self, *uniforms):
        self.uniforms = np.array(uniforms, dtype=np.float64)

    def uniform(self, count):
        return self.uniforms[:count]


class CountingNoise:
    """A seeded source that counts the values it hands out."""

    is_secure = False

    def __init__(self, seed):
        self.source = SeededNoise(seed)
        self.drawn = 0

    def standard_normal(self, count):
        self.drawn += count
        return self.source.standard_normal(count)

    def uniform(self, count):
        self.drawn += count
        return self.source.uniform(count)


def mixture_channel(masses, keep_probability):
    """P(token | vote) of the mixture release, straight from its definition."""
    return keep_probability * np.eye(len(masses)) + (1.0 - keep_probability) * np.asarray(masses)


def mixture_information(masses, keep_probability, digits=60):
    """I(S; Y) = H(q) − Σ_c q_c H(α e_c + (1 − α) q) of the mixture release in nats, an mpmath number."""
    with mpmath.workdps(digits):
        q = [mpmath.mpf(float(mass)) for mass in masses]
        q = [mass / sum(q) for mass in q]
        keep = mpmath.mpf(float(keep_probability))

        def entropy_of(channel):
            return -sum(p * mpmath.log(p) for p in channel if p > 0)

        rows = [[(1 - keep) * q[y] + (keep if y == c else 0) for y in range(len(q))] for c in range(len(q))]
        return entropy_of(q) - sum(mass * entropy_of(row) for mass, row in zip(q, rows, strict=True))


class MemoryStore:
    """A store that keeps what it is given, one entry a commit, or fails on demand: before or after it has kept it."""

    def __init__(self):
        self.commits = []
        self.broken = False
        self.loses_answers = False

    def commit(self, state, records):
        if self.broken:
            raise OSError("disk full")
        self.commits.append((state, *records))
        if self.loses_answers:
            raise OSError("connection lost")

    def reconcile(self, state):
        if self.broken:
            raise OSError("disk full")
        return self.commits[-1][0] if self.commits else state
