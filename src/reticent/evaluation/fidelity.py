"""Sampling fidelity: the distance of a decoder's token distribution from the noiseless mixture of the worlds.

The mixture is p̄ = (1/m) Σ_j p_j over the candidates, and the measure the total variation ½ Σ_c |P(Y = c) − p̄_c|, P
being over coins, S and noise, by simulation at the positions whose logits were kept. Under fixed coins the expected
share of worlds that vote c is p̄_c exactly, so the decoder's frequencies are compared with the shares of the very votes
it was given: both have the same coins, and draws on which all worlds agree cancel. The noise that remains is what the
row of the fresh-world draw shows, whose true distance is 0; read the others against it. The posterior is uniform
everywhere.

Shape suffixes: F positions, M worlds, K candidates, Q draws, V distinct votes, R draws of one, A active tokens.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent._settings import FiniteModel
from reticent.errors import InvalidValueError
from reticent.evaluation.controls import Control, fresh_world_draw, plurality
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.calibration import active_votes
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.pac.release import BatchMechanism
from reticent.randomness import SeededNoise
from reticent.stats.means import Mean

_RELEASES_A_DRAW = 16
"""Releases under each draw of coins: they cost little and take most of the noise out."""

Draws = NDArray[np.int64]
TokensOfVotes = Callable[[NDArray[np.int64]], Draws]
"""Votes of Q draws of coins, int64[Q, M], to one token a draw, int64[Q]."""


class FidelityRow(FiniteModel):
    """One decoder's mean total variation to the noiseless mixture; `step_budget` in nats for a release mechanism."""

    method: str
    step_budget: float | None = None
    total_variation: Mean


class Fidelity(FiniteModel):
    """Sampling fidelity of the Gumbel decoder, mean over positions; standard errors over texts."""

    rows: tuple[FidelityRow, ...]
    temperature: float
    num_positions: int
    num_draws: int


def fidelity(
    tensor: VoteTensor,
    temperature: float,
    budgets: Sequence[float],
    num_draws: int = 256,
    max_positions: int = 200,
    seed: int = 0,
) -> Fidelity:
    """Measure sampling fidelity.

    Args:
        tensor: votes with logits.
        temperature: of the Gumbel decoder, as the votes were cast.
        budgets: b in nats, for each release mechanism.
        num_draws: draws of coins at each position.
        max_positions: the most positions with logits to use, spread evenly.
        seed: of all draws.

    Raises:
        InvalidValueError: the tensor holds no logits, or an argument is out of range.
    """
    _validate.positive_finite("temperature", temperature)
    _validate.integer_in_range("num_draws", num_draws, 2)
    _validate.integer_in_range("max_positions", max_positions, 1)
    available = tensor.logit_positions_F.size
    if not available:
        raise InvalidValueError("the votes hold no logits; cast them with a smaller logits_every")
    chosen_F = np.unique(np.linspace(0, available - 1, min(max_positions, available)).round().astype(np.int64))
    generator = np.random.default_rng(seed)
    methods: dict[tuple[str, float | None], TokensOfVotes] = {
        (Control.PLURALITY.value, None): plurality,
        (Control.FRESH_WORLD.value, None): lambda votes_QM: fresh_world_draw(votes_QM, generator),
    }
    noise = SeededNoise(seed)
    for mechanism in ReleaseMechanism:
        for budget in sorted(budgets, reverse=True):
            methods[(mechanism.value, budget)] = _make_release(mechanism_for(mechanism, budget), noise, generator)
    distances: dict[tuple[str, float | None], list[float]] = {method: [] for method in methods}
    for index in chosen_F:
        scores_MK = tensor.logits_FMK[index].astype(np.float64) / temperature
        votes_QM = np.repeat(_coupled_votes(scores_MK, num_draws, generator), _RELEASES_A_DRAW, axis=0)
        shares_K = np.bincount(votes_QM.ravel(), minlength=scores_MK.shape[1]) / votes_QM.size
        for method, release in methods.items():
            distances[method].append(total_variation(release(votes_QM), shares_K))
    positions_F = tensor.logit_positions_F[chosen_F]
    rows = tuple(
        FidelityRow(
            method=name, step_budget=budget, total_variation=tensor.spans.mean_at(positions_F, np.array(values))
        )
        for (name, budget), values in distances.items()
    )
    return Fidelity(rows=rows, temperature=temperature, num_positions=positions_F.size, num_draws=num_draws)


def total_variation(tokens_Q: Draws, distribution_K: NDArray[np.float64]) -> float:
    """½ Σ |empirical − distribution| over K tokens."""
    empirical_K = np.bincount(tokens_Q, minlength=distribution_K.size) / tokens_Q.size
    return 0.5 * float(np.abs(empirical_K - distribution_K).sum())


def _coupled_votes(scores_MK: NDArray[np.float64], num_draws: int, generator: np.random.Generator) -> Draws:
    """Each world's vote under Q fresh coin vectors shared by all worlds, int64[Q, M]."""
    coins_QK = generator.gumbel(size=(num_draws, scores_MK.shape[1]))
    return np.stack([(scores_MK + coins_K).argmax(axis=1) for coins_K in coins_QK])


def _make_release(mechanism: BatchMechanism, noise: SeededNoise, generator: np.random.Generator) -> TokensOfVotes:
    """One release a draw: S from the prior, the posterior uniform."""

    def release(votes_QM: Draws) -> Draws:
        num_worlds = votes_QM.shape[1]
        secrets_Q: NDArray[np.int64] = generator.integers(num_worlds, size=len(votes_QM))
        distinct_VM, which_Q = np.unique(votes_QM, axis=0, return_inverse=True)
        tokens_Q = votes_QM[:, 0].copy()
        for number, votes_M in enumerate(distinct_VM):
            active_A, index_M = active_votes(votes_M)
            if active_A.size > 1:
                draws = np.flatnonzero(which_Q == number)
                weights_RM = np.full((draws.size, num_worlds), 1.0 / num_worlds)
                index_R, _ = mechanism.release_batch(index_M, weights_RM, secrets_Q[draws], noise)
                tokens_Q[draws] = active_A[index_R]
        return tokens_Q

    return release
