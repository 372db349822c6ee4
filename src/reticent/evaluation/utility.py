"""Utility: how often the released token is the text's own next token, for every budget, beside what it could be.

The positions of all texts, in order, are one deployment's history: S and the posterior persist, as they must. Each
budget is run with several secrets and noise draws at once, and a row's accuracy is the mean over them. The share of
the noiseless gain kept is (accuracy − public) / (noiseless − public); for a mechanism `noiseless` has the same
secrets, for everything else it is the mean over all worlds. The share of the full-data gain, which arXiv 2609.05676
reports, has the accuracy of one adapter on all records in place of `noiseless`. Standard errors are over texts; the
draws are common to all texts, so what they add is not in them.

Shape suffixes: N positions, M worlds, R sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent import _validate
from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.evaluation.controls import Control, control_tokens
from reticent.evaluation.session_batch import SessionBatch
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.randomness import SeededNoise
from reticent.stats.means import Mean, TextSpans, ratio

BUDGETS = tuple(2.0**-power for power in range(4, 33, 4))
"""2^-4 to 2^-32 in steps of 2^4, in nats a token."""


class UtilityRow(FiniteModel):
    """One way to choose tokens.

    Attributes:
        method: `public`, `full-data`, `full-data-unrestricted`, `noiseless`, a control, or a release mechanism.
        step_budget: b in nats, for a release mechanism.
        accuracy: share of positions with the text's own next token.
        kept: share of the noiseless gain; None where there is no gain, and for the two ends of the scale.
        of_full_gain: share of the gain of one adapter on all records; None without such an adapter or a gain of it.
        noise_cost: noiseless accuracy, with the same secrets, less this one; for a release mechanism.
        flips: share of dissenting positions whose token is not the realised world's vote; for a release mechanism.
    """

    method: str
    step_budget: float | None = None
    accuracy: Mean
    kept: Mean | None = None
    of_full_gain: Mean | None = None
    noise_cost: Mean | None = None
    flips: Mean | None = None


class Utility(FiniteModel):
    """The utility of one decoder.

    Attributes:
        decoder: how worlds vote.
        rows: baselines and controls first, then release mechanisms by falling budget.
        gain: noiseless accuracy less the public model's.
        unanimity: share of positions where all worlds agree.
        in_candidates: share of positions whose next token is among the candidates, a ceiling for every row.
        num_sessions: secrets and noise draws behind each release mechanism's row.
    """

    decoder: Decoder
    rows: tuple[UtilityRow, ...]
    gain: Mean
    unanimity: Mean
    in_candidates: Mean
    num_sessions: int

    def row(self, method: str, step_budget: float | None = None) -> UtilityRow:
        """The row of a method, at a budget for a release mechanism."""
        return next(row for row in self.rows if (row.method, row.step_budget) == (method, step_budget))


@dataclass(frozen=True)
class UtilitySettings:
    """Settings of the comparison.

    Attributes:
        budgets: b in nats.
        mechanisms: the release mechanisms.
        num_sessions: secrets and noise draws for each budget; distinct worlds as far as they go.
        seed: of secrets, noise and the controls' draws.
    """

    budgets: Sequence[float] = BUDGETS
    mechanisms: Sequence[ReleaseMechanism] = tuple(ReleaseMechanism)
    num_sessions: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.integer_in_range("num_sessions", self.num_sessions, 1)
        _validate.integer_in_range("seed", self.seed, 0)
        for budget in self.budgets:
            _validate.positive_finite("budget", budget)


def utility(tensor: VoteTensor, decoder: Decoder, settings: UtilitySettings | None = None) -> Utility:
    """Measure the utility of every method with one decoder.

    Raises:
        InvalidValueError: a budget is out of range.
    """
    settings = settings or UtilitySettings()
    votes, spans = tensor.votes(decoder), tensor.spans
    hits_NM = votes.worlds_NM == tensor.targets_N[:, None]
    scale = _Scale(
        spans,
        spans.sums(votes.public_N == tensor.targets_N),
        spans.sums(hits_NM),
        spans.sums(votes.full_N == tensor.targets_N) if tensor.has_full else None,
    )
    generator = np.random.default_rng([settings.seed, 0])
    rows = [*_ends(tensor, decoder, scale), *_controls(tensor, decoder, settings.num_sessions, generator, scale)]
    rows += [
        _measure_mechanism(tensor, decoder, mechanism, budget, settings, scale)
        for mechanism in settings.mechanisms
        for budget in sorted(settings.budgets, reverse=True)
    ]
    in_candidates_N = (tensor.candidates_NK == tensor.targets_N[:, None]).any(axis=1)
    return Utility(
        decoder=decoder,
        rows=tuple(rows),
        gain=ratio(scale.noiseless - scale.public_I, scale.sizes),
        unanimity=spans.mean(~votes.dissent),
        in_candidates=spans.mean(in_candidates_N),
        num_sessions=settings.num_sessions,
    )


@dataclass(frozen=True)
class _Scale:
    """The ends between which a gain is kept: right tokens a text of the public model, each world, the full adapter."""

    spans: TextSpans
    public_I: NDArray[np.float64]
    worlds_IM: NDArray[np.float64]
    full_I: NDArray[np.float64] | None

    @property
    def noiseless(self) -> NDArray[np.float64]:
        """Right tokens a text of a noiseless world, mean over all worlds."""
        mean_I: NDArray[np.float64] = self.worlds_IM.mean(axis=1)
        return mean_I

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Positions of each text."""
        return np.diff(self.spans.offsets).astype(np.float64)

    def kept(self, right_I: NDArray[np.float64], noiseless_I: NDArray[np.float64] | None = None) -> Mean | None:
        """The share of the gain that is kept, or None where the total gain is not positive."""
        return self._share(right_I, self.noiseless if noiseless_I is None else noiseless_I)

    def of_full_gain(self, right_I: NDArray[np.float64]) -> Mean | None:
        """The share of the full adapter's gain, or None where there is none."""
        return None if self.full_I is None else self._share(right_I, self.full_I)

    def _share(self, right_I: NDArray[np.float64], best_I: NDArray[np.float64]) -> Mean | None:
        gain_I = best_I - self.public_I
        return ratio(right_I - self.public_I, gain_I) if gain_I.sum() > 0.0 else None

    def row(self, method: str, hits_N: NDArray[np.float64] | NDArray[np.bool_]) -> UtilityRow:
        """The row of a method whose chance of the right token at each position is given."""
        right_I = self.spans.sums(hits_N)
        return UtilityRow(
            method=method,
            accuracy=ratio(right_I, self.sizes),
            kept=self.kept(right_I),
            of_full_gain=self.of_full_gain(right_I),
        )


def _ends(tensor: VoteTensor, decoder: Decoder, scale: _Scale) -> list[UtilityRow]:
    votes, targets_N = tensor.votes(decoder), tensor.targets_N
    rows = [
        UtilityRow(method="public", accuracy=ratio(scale.public_I, scale.sizes)),
        UtilityRow(
            method="noiseless",
            accuracy=ratio(scale.noiseless, scale.sizes),
            of_full_gain=scale.of_full_gain(scale.noiseless),
        ),
    ]
    if tensor.has_full:
        rows.append(scale.row("full-data", votes.full_N == targets_N))
        if decoder is Decoder.GREEDY:
            rows.append(scale.row("full-data-unrestricted", tensor.full_argmax_N == targets_N))
    return rows


def _controls(
    tensor: VoteTensor, decoder: Decoder, num_draws: int, generator: np.random.Generator, scale: _Scale
) -> list[UtilityRow]:
    votes_NM = tensor.votes(decoder).worlds_NM
    text_N = tensor.spans.text_of_position()
    rows = []
    for control in Control:
        draws = 1 if control is Control.PLURALITY else num_draws
        hits_N = np.zeros(tensor.num_positions)
        for _ in range(draws):
            hits_N += control_tokens(control, votes_NM, generator, text_N) == tensor.targets_N
        rows.append(scale.row(control.value, hits_N / draws))
    return rows


def _measure_mechanism(
    tensor: VoteTensor,
    decoder: Decoder,
    mechanism: ReleaseMechanism,
    budget: float,
    settings: UtilitySettings,
    scale: _Scale,
) -> UtilityRow:
    spans, dissent_N = tensor.spans, tensor.votes(decoder).dissent
    generator = np.random.default_rng([settings.seed, 1])
    secrets_R = _spread_secrets(settings.num_sessions, tensor.num_worlds, generator)
    hits_N, flips_N = _release_all(tensor, decoder, mechanism, budget, secrets_R, SeededNoise(settings.seed))
    right_I = spans.sums(hits_N)
    noiseless_I = scale.worlds_IM[:, secrets_R].mean(axis=1)
    flips = ratio(spans.sums(flips_N), spans.sums(dissent_N)) if dissent_N.any() else None
    return UtilityRow(
        method=mechanism.value,
        step_budget=budget,
        accuracy=ratio(right_I, scale.sizes),
        kept=scale.kept(right_I, noiseless_I),
        of_full_gain=scale.of_full_gain(right_I),
        noise_cost=ratio(noiseless_I - right_I, scale.sizes),
        flips=flips,
    )


def _release_all(
    tensor: VoteTensor,
    decoder: Decoder,
    mechanism: ReleaseMechanism,
    budget: float,
    secrets_R: NDArray[np.int64],
    noise: SeededNoise,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of sessions that release the right token, and that release another than v_S, at each position."""
    votes = tensor.votes(decoder)
    hits_N = (votes.worlds_NM[:, 0] == tensor.targets_N).astype(np.float64)
    flips_N = np.zeros(tensor.num_positions)
    sessions = SessionBatch(mechanism_for(mechanism, budget), secrets_R, tensor.num_worlds, noise)
    for position in np.flatnonzero(votes.dissent):
        votes_M = votes.worlds_NM[position].astype(np.int64)
        released_R = sessions.release(votes_M)
        hits_N[position] = (released_R == tensor.targets_N[position]).mean()
        flips_N[position] = (released_R != votes_M[secrets_R]).mean()
    return hits_N, flips_N


def _spread_secrets(num_sessions: int, num_worlds: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Secrets that repeat no world before all have had their turn, in random order."""
    rounds = [generator.permutation(num_worlds) for _ in range(-(-num_sessions // num_worlds))]
    return np.concatenate(rounds)[:num_sessions].astype(np.int64)
