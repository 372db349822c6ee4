"""Utility of tokens released under the corpus guarantee: against the public model and the full-data adapter.

Every method is measured as a distribution over the public model's candidates: the one that a release draws from, the
public model's and the full-data adapter's. Two measures: the probability of the text's own token, which is the accuracy
of a drawn token; and its negative log-likelihood in nats, over positions where it is a candidate, the same for all.

Shape suffixes: N positions, K candidates, I texts.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reticent._settings import FiniteModel
from reticent.dp.accounting import cap_units, units_to_rho
from reticent.dp.bounds import rho_for_epsilon
from reticent.dp.release import MAX_EXPONENT, CorpusSettings
from reticent.errors import InvalidValueError
from reticent.evaluation.corpus_sums import NOT_A_CANDIDATE, CorpusSums
from reticent.stats.means import Mean, ratio


class CorpusUtilityRow(FiniteModel):
    """One method on all positions.

    Attributes:
        method: `public`, `full-data` or `released`.
        gain: g of a release; None for the others.
        w: gc/τ, the most by which all worlds move a score, in nats.
        rho_per_token: what a token costs.
        tokens: tokens that an ε leaves, by the ε, at the study's δ.
        accuracy: chance that a drawn token is the text's own.
        loss: nats a token where the text's own is a candidate.
        loss_gain: nats a token less than the public model.
        kept: `loss_gain` as a share of the full-data adapter's; None without one.
    """

    method: str
    gain: float | None = None
    w: float | None = None
    rho_per_token: float | None = None
    tokens: dict[str, int] = Field(default_factory=dict)
    accuracy: Mean
    loss: Mean
    loss_gain: Mean
    kept: Mean | None = None


class CorpusUtility(FiniteModel):
    """The study of one clip.

    Attributes:
        candidates_cover: share of positions whose own token is a candidate.
        rows: public model, full-data adapter where there is one, then a release for each gain.
    """

    candidates_cover: float
    rows: tuple[CorpusUtilityRow, ...]


def corpus_utility(
    sums: CorpusSums,
    settings: Callable[[float], CorpusSettings],
    gains: Sequence[float],
    epsilons: Sequence[float],
    delta: float,
) -> CorpusUtility:
    """Measure the public model, the full-data adapter, and a release at each gain.

    Args:
        sums: of all test texts.
        settings: the constants of a deployment with a given gain; their clip is that of the sums.
        gains: g of each row.
        epsilons: for each, how many tokens it leaves.
        delta: δ of these.

    Raises:
        InvalidValueError: a gain is out of range, or no token of the texts is a candidate.
    """
    if not (sums.target_N != NOT_A_CANDIDATE).any():
        raise InvalidValueError("no token of the test texts is among the public model's candidates; raise --candidates")
    methods: list[tuple[str, NDArray[np.float64], CorpusSettings | None]] = [("public", sums.public_logp_NK, None)]
    if sums.full_logp_NK.shape[1]:
        methods.append(("full-data", sums.full_logp_NK, None))
    for gain in gains:
        constants = settings(gain)
        methods.append(("released", release_log_probabilities(sums, constants), constants))
    public_I = _losses_by_text(sums, sums.public_logp_NK)
    full_I = _losses_by_text(sums, sums.full_logp_NK) if sums.full_logp_NK.shape[1] else None
    rows = tuple(
        _row(sums, method, logp_NK, constants, public_I, full_I, epsilons, delta)
        for method, logp_NK, constants in methods
    )
    return CorpusUtility(candidates_cover=float((sums.target_N != NOT_A_CANDIDATE).mean()), rows=rows)


def release_log_probabilities(sums: CorpusSums, settings: CorpusSettings) -> NDArray[np.float64]:
    """The log-probability of each candidate under the release, float64[N, K]; what it leaves out has -inf."""
    public_NK = (sums.public_logp_NK - sums.public_logp_NK.max(axis=1, keepdims=True)) / settings.temperature
    scores_NK = np.where(
        2.0 * settings.w - public_NK <= MAX_EXPONENT, public_NK + settings.kappa * sums.sum_NK, -np.inf
    )
    scores_NK -= scores_NK.max(axis=1, keepdims=True)
    normalised: NDArray[np.float64] = scores_NK - np.log(np.exp(scores_NK).sum(axis=1, keepdims=True))
    return normalised


def _row(
    sums: CorpusSums,
    method: str,
    logp_NK: NDArray[np.float64],
    settings: CorpusSettings | None,
    public_I: NDArray[np.float64],
    full_I: NDArray[np.float64] | None,
    epsilons: Sequence[float],
    delta: float,
) -> CorpusUtilityRow:
    own_I = _losses_by_text(sums, logp_NK)
    counts_I = _sum_by_text(sums, (sums.target_N != NOT_A_CANDIDATE).astype(np.float64))
    positions_I = np.diff(sums.offsets).astype(np.float64)
    chance_N = np.where(sums.target_N == NOT_A_CANDIDATE, 0.0, np.exp(_at_target(sums, logp_NK)))
    charge = None if settings is None else settings.charge_units
    return CorpusUtilityRow(
        method=method,
        gain=None if settings is None else settings.gain,
        w=None if settings is None else settings.w,
        rho_per_token=None if charge is None else units_to_rho(charge),
        tokens={}
        if charge is None
        else {f"{epsilon:g}": cap_units(rho_for_epsilon(epsilon, delta)) // charge for epsilon in epsilons},
        accuracy=ratio(_sum_by_text(sums, chance_N), positions_I),
        loss=ratio(own_I, counts_I),
        loss_gain=ratio(public_I - own_I, counts_I),
        kept=None if full_I is None or not (public_I - full_I).sum() else ratio(public_I - own_I, public_I - full_I),
    )


def _losses_by_text(sums: CorpusSums, logp_NK: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each text's summed negative log-likelihood where its own token is a candidate, float64[I]."""
    is_candidate_N = sums.target_N != NOT_A_CANDIDATE
    return -_sum_by_text(sums, np.where(is_candidate_N, _at_target(sums, logp_NK), 0.0))


def _at_target(sums: CorpusSums, logp_NK: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.take_along_axis(logp_NK, np.maximum(sums.target_N, 0)[:, None], axis=1)[:, 0]


def _sum_by_text(sums: CorpusSums, values_N: NDArray[np.float64]) -> NDArray[np.float64]:
    totals: NDArray[np.float64] = np.add.reduceat(values_N, sums.offsets[:-1])
    return totals
