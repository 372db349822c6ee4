"""Row on the mechanism: one release in the active tokens' space against the same over all candidates."""

import itertools

import numpy as np
from numpy.typing import NDArray

from benchmarks import full_space, parity
from benchmarks.decoding import STEP_BUDGET
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import time_in_turn
from benchmarks.workspace import Workspace
from reticent.pac.calibration import active_votes, vote_weights
from reticent.pac.gaussian import GaussianMechanism, log_likelihood, noise_covariance
from reticent.pac.posterior import Posterior
from reticent.randomness import SystemNoise

_ACTIVE = (2, 3, 4, 5)
_TOLERANCE = 1e-6


def release_against_full_space(workspace: Workspace) -> Measured:
    """Calibrate, draw, argmax and posterior with 2 to 5 distinct votes, both ways."""
    sizes = workspace.sizes
    generator = np.random.default_rng(workspace.seed)
    cases = [_votes(generator, active, sizes.num_worlds, sizes.num_candidates) for active in _ACTIVE]
    for votes_M in cases:
        _check(votes_M, sizes.num_candidates, generator)
    mechanism, source = GaussianMechanism(STEP_BUDGET), SystemNoise()
    prior = Posterior.uniform(sizes.num_worlds)
    onehots = [np.eye(sizes.num_candidates)[votes_M] for votes_M in cases]
    next_votes, next_onehot = itertools.cycle(cases), itertools.cycle(onehots)

    def ours() -> None:
        for _ in range(sizes.releases_a_pair):
            _, index_M = active_votes(next(next_votes))
            calibration = mechanism.calibrate(vote_weights(index_M, prior))
            prior.updated(mechanism.release(index_M, calibration, 0, source).log_likelihood)

    full_releases = max(len(_ACTIVE), sizes.releases_a_pair // 10)

    def theirs() -> None:
        for _ in range(full_releases):
            onehot_MK = next(next_onehot)
            noise = full_space.calibrate(onehot_MK, prior.weights, STEP_BUDGET)
            _, noisy_K = full_space.release(onehot_MK, noise, 0, source)
            full_space.update_weights(prior.weights, onehot_MK, noise, noisy_K)

    times = time_in_turn(ours, theirs, sizes.pairs).scale(1 / sizes.releases_a_pair, 1 / full_releases)
    return Measured(times, None, notes="the limit is Python's and NumPy's calls, not operations or bytes")


def _votes(generator: np.random.Generator, active: int, num_worlds: int, num_candidates: int) -> NDArray[np.int64]:
    """Votes for exactly `active` of the candidates 0 … k − 1; most worlds agree."""
    tokens = generator.choice(num_candidates, active, replace=False)
    votes_M = np.full(num_worlds, tokens[0], dtype=np.int64)
    dissenters = generator.choice(num_worlds, max(active - 1, num_worlds // 6), replace=False)
    votes_M[dissenters] = tokens[1 + np.arange(dissenters.size) % (active - 1)]
    return votes_M


def _check(votes_M: NDArray[np.int64], num_candidates: int, generator: np.random.Generator) -> None:
    """The noise of both forms has the same distribution, and the same draw gives the same posterior."""
    logs = generator.normal(size=votes_M.size)
    posterior = Posterior(logs - np.log(np.exp(logs).sum()))
    active_A, index_M = active_votes(votes_M)
    calibration = GaussianMechanism(STEP_BUDGET).calibrate(vote_weights(index_M, posterior))
    onehot_MK = np.eye(num_candidates)[votes_M]
    full = full_space.calibrate(onehot_MK, posterior.weights, STEP_BUDGET)
    covariance_KK = full_space.covariance(full)
    parity.require_close(
        "noise covariance", noise_covariance(calibration), covariance_KK[np.ix_(active_A, active_A)], _TOLERANCE
    )
    elsewhere = np.delete(covariance_KK, active_A, axis=0)
    scale = float(np.abs(covariance_KK).max())
    parity.require(float(np.abs(elsewhere).max()) <= _TOLERANCE * scale, "noise reaches tokens nobody voted for")
    normals = generator.normal(size=calibration.noise_variances.size)
    noisy_A = calibration.directions @ (np.sqrt(calibration.noise_variances) * normals)
    noisy_A[index_M[0]] += 1.0
    noisy_K = np.zeros(num_candidates)
    noisy_K[active_A] = noisy_A
    ours = posterior.updated(log_likelihood(calibration, index_M, noisy_A)).weights
    theirs = full_space.update_weights(posterior.weights, onehot_MK, full, noisy_K)
    moved = np.log(ours) - np.log(posterior.weights)
    expected = np.log(theirs) - np.log(posterior.weights)
    # The squared distances are some 10^4 times what they change, so the reference itself is good to a few digits.
    parity.require_close("posterior's change", moved, expected, 1e-3)


BENCHMARKS = (
    Benchmark(
        "release-vs-full-space",
        "one release (calibrate, draw, argmax, posterior) with 2 to 5 distinct votes",
        "the full-space form over all candidates, by SVD",
        1 / 40,
        "<=",
        release_against_full_space,
        weight=4,
    ),
)
