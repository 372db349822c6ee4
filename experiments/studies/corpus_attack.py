"""Attack on membership in the corpus: an attacker who knows a text asks for its continuation, token after token.

Chosen prompts: every beginning of the candidate record, answered by one token each. Where the deployment answers with
the record's own next token more often than the public model would, and above all where the public model is surprised by
that token, the record was probably learnt:

    score = (1/N) Σ_n s_n (1[y_n = x_n] − ρ_n),   s_n = −log p_public(x_n),

with ρ_n the chance that the public model in the deployment's place would have answered x_n: with public coins it is
known to be 0 or 1, otherwise it is a probability. Every record is in half of the worlds or in none, so the theorem
about S says nothing here; what is measured is all there is.

Records are the units of sampling. The deployments of one row share the records, so they are averaged for each resample
of records.

Shape suffixes: N positions of all records together, I records (or members), J other records, R deployments,
B resamples.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from reticent._settings import FiniteModel
from reticent._validate import integer_in_range
from reticent.auditing.metrics.advantage import best_threshold
from reticent.errors import InvalidValueError
from reticent.stats.estimate import Estimate
from reticent.stats.intervals import clopper_pearson
from reticent.stats.means import CONFIDENCE, TextSpans
from reticent.stats.roc import auc

NUM_RESAMPLES = 2000
_ROUNDING = 1e-12

_Weights = NDArray[np.float64]


class CorpusAttack(FiniteModel):
    """Separation of records of the corpus from others by the scores.

    Attributes:
        auc: area under the curve, mean over deployments, with a bootstrap interval over records.
        accuracy: balanced accuracy at the threshold that is best on the other half of the records, likewise.
    """

    auc: Estimate
    accuracy: Estimate
    num_members: int
    num_nonmembers: int
    num_deployments: int


def match_scores(
    tokens_NR: NDArray[np.integer],
    targets_N: NDArray[np.integer],
    public_match_N: NDArray[np.floating] | NDArray[np.bool_],
    surprise_N: NDArray[np.float64],
    spans: TextSpans,
) -> NDArray[np.float64]:
    """The score of each record in each deployment, float64[R, I]; higher means more likely in the corpus.

    Args:
        tokens_NR: released tokens.
        targets_N: the records' own next tokens.
        public_match_N: ρ.
        surprise_N: s, in nats.
        spans: which positions are whose.

    Raises:
        InvalidValueError: the arrays are not of one length, or a record has no position.
    """
    lengths = {len(tokens_NR), len(targets_N), len(public_match_N), len(surprise_N), spans.num_positions}
    sizes_I = np.diff(spans.offsets)
    if len(lengths) != 1 or not sizes_I.min() > 0:
        raise InvalidValueError(f"scores need every record's positions, and as many of everything; got {lengths}")
    gain_NR = (tokens_NR == targets_N[:, None]).astype(np.float64) - public_match_N[:, None]
    scores_RI: NDArray[np.float64] = (spans.sums(gain_NR * surprise_N[:, None]) / sizes_I[:, None]).T
    return scores_RI


def corpus_attack(scores_RI: NDArray[np.float64], members_I: NDArray[np.bool_], seed: int) -> CorpusAttack:
    """Judge the scores of R deployments.

    Args:
        scores_RI: one row a deployment.
        members_I: which records are in the corpus.
        seed: of halves and resamples.

    Raises:
        InvalidValueError: fewer than two members or non-members, or shapes disagree.
    """
    num_members = int(members_I.sum())
    num_nonmembers = members_I.size - num_members
    if scores_RI.ndim != 2 or scores_RI.shape[1:] != members_I.shape or min(num_members, num_nonmembers) < 2:
        raise InvalidValueError(
            f"scores of shape {scores_RI.shape} for {num_members} members and {num_nonmembers} others; both need two"
        )
    integer_in_range("seed", seed, 0)
    generator = np.random.default_rng(seed)
    right_I = correct_decisions(scores_RI, members_I, generator).mean(axis=0)
    beaten_IJ = mean_wins(scores_RI[:, members_I], scores_RI[:, ~members_I])
    area = float(np.mean([auc(scores_I[members_I], scores_I[~members_I]) for scores_I in scores_RI]))

    def wins(members_BI: _Weights, others_BJ: _Weights) -> _Weights:
        areas: _Weights = ((members_BI @ beaten_IJ) * others_BJ).sum(axis=1)
        return areas

    def accuracy(members_BI: _Weights, others_BJ: _Weights) -> _Weights:
        shares: _Weights = 0.5 * (members_BI @ right_I[members_I] + others_BJ @ right_I[~members_I])
        return shares

    value = 0.5 * float(right_I[members_I].mean() + right_I[~members_I].mean())
    sizes = (num_members, num_nonmembers)
    return CorpusAttack(
        auc=_bootstrap_share(area, wins, sizes, generator),
        accuracy=_bootstrap_share(value, accuracy, sizes, generator),
        num_members=num_members,
        num_nonmembers=num_nonmembers,
        num_deployments=len(scores_RI),
    )


def mean_wins(members_RI: NDArray[np.float64], others_RJ: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of deployments in which each member scores above each other record, ties counting half, float64[I, J]."""
    wins = np.zeros((members_RI.shape[1], others_RJ.shape[1]))
    for members_I, others_J in zip(members_RI, others_RJ, strict=True):
        wins += 0.5 + 0.5 * np.sign(members_I[:, None] - others_J)
    return wins / len(members_RI)


def correct_decisions(
    scores_RI: NDArray[np.float64], members_I: NDArray[np.bool_], generator: np.random.Generator
) -> NDArray[np.bool_]:
    """True if each record is called rightly in each deployment, by the threshold that is best on the other half."""
    halves = np.zeros(members_I.size, dtype=np.bool_)
    for group in (np.flatnonzero(members_I), np.flatnonzero(~members_I)):
        halves[generator.permutation(group)[: group.size // 2]] = True
    right_RI = np.empty(scores_RI.shape, dtype=np.bool_)
    for scores_I, right_I in zip(scores_RI, right_RI, strict=True):
        for judged in (halves, ~halves):
            threshold = best_threshold(scores_I[~judged & members_I], scores_I[~judged & ~members_I])
            right_I[judged] = (scores_I[judged] >= threshold) == members_I[judged]
    return right_RI


def _bootstrap_share(
    value: float,
    statistic: Callable[[_Weights, _Weights], _Weights],
    sizes: tuple[int, int],
    generator: np.random.Generator,
) -> Estimate:
    """A share with its percentile interval over resamples of either group of records.

    At exactly 0 or 1 all resamples agree, which says nothing of chance: the interval is then the exact one for as many
    pairs as can be formed without using a record twice, as in `auditing.metrics.bootstrap_auc_interval`.
    """
    value = min(max(value, 0.0), 1.0)
    pairs, certain = min(sizes), round(value)
    if abs(value - certain) < _ROUNDING:
        low, high = clopper_pearson(certain * pairs, pairs, CONFIDENCE)
        return Estimate(value=float(certain), low=low, high=high, confidence=CONFIDENCE)
    of_members, of_others = (
        generator.multinomial(size, np.full(size, 1.0 / size), size=NUM_RESAMPLES) / size for size in sizes
    )
    error = (1.0 - CONFIDENCE) / 2.0
    low, high = np.clip(np.quantile(statistic(of_members, of_others), [error, 1.0 - error]), 0.0, 1.0).tolist()
    return Estimate(value=value, low=min(low, value), high=max(high, value), confidence=CONFIDENCE)
