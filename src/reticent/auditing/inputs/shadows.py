"""Shadow models' scores of the audited texts: models trained like the target, each on some of the texts.

They come from adapted models on disk, or are the other worlds of a run, each of which holds half of the records. Who
was trained on which text is looked up by the text's hash, never assumed.

Shape suffixes: N texts, K shadow models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.auditing.attacks.evidence import Missing, ShadowEvidence
from reticent.auditing.attacks.rmia import log_probability_ratio
from reticent.errors import InvalidValueError

ENOUGH_FOR_OWN_VARIANCE = 32
"""Shadow models on each side from which a text's own variance is used (Carlini et al. 2022, section VI-C: with fewer
than 64 models in all, one variance for all texts does better)."""


@dataclass(frozen=True, eq=False)
class ShadowTable:
    """Mean log-probabilities under shadow models.

    Attributes:
        hashes: SHA-256 of each text.
        means_NK: mean ℓ, nats per token, float64[N, K]; NaN where a model scored no token of the text.
        members_NK: whether the model was trained on the text, bool[N, K].
        source: what the models are, for the report.

    Raises:
        InvalidValueError: the shapes do not agree, or a hash repeats.
    """

    hashes: tuple[str, ...]
    means_NK: NDArray[np.float64]
    members_NK: NDArray[np.bool_]
    source: str

    def __post_init__(self) -> None:
        shape = self.means_NK.shape
        if len(shape) != 2 or self.members_NK.shape != shape or shape[0] != len(self.hashes):
            raise InvalidValueError(
                f"a shadow table needs [{len(self.hashes)} texts, models] twice, "
                f"got {shape} and {self.members_NK.shape}"
            )
        if len(set(self.hashes)) < len(self.hashes):
            raise InvalidValueError("a shadow table has each text once; a hash repeats")

    @property
    def num_models(self) -> int:
        """K."""
        return int(self.means_NK.shape[1])


def shadow_evidence(
    table: ShadowTable, target_means: Mapping[str, float], population: Sequence[str], offline_a: float
) -> dict[str, ShadowEvidence | Missing]:
    """Gather for each text what LiRA and RMIA need.

    Args:
        table: the shadow models' means.
        target_means: mean ℓ of each text under the target, by hash, in nats per token; texts without a score absent.
        population: hashes of the texts that RMIA compares with: the non-members, whose ratio under the target is not
            raised by training.
        offline_a: RMIA's scaling.
    """
    rows = {text: row for row, text in enumerate(table.hashes)}
    variances = _pooled_variances(table)
    ratios = []
    for text in population:
        outside = _outside(table, rows[text]) if text in rows else np.empty(0)
        if text in target_means and len(outside):
            ratios.append(log_probability_ratio(target_means[text], outside, offline_a))
    population_log_ratios = np.asarray(ratios, dtype=np.float64)
    evidence: dict[str, ShadowEvidence | Missing] = {}
    for text, row in rows.items():
        usable = np.isfinite(table.means_NK[row])
        evidence[text] = ShadowEvidence(
            in_means=table.means_NK[row, table.members_NK[row] & usable],
            out_means=table.means_NK[row, ~table.members_NK[row] & usable],
            variances=variances,
            population_log_ratios=population_log_ratios,
            offline_a=offline_a,
        )
    return evidence


def _outside(table: ShadowTable, row: int) -> NDArray[np.float64]:
    means: NDArray[np.float64] = table.means_NK[row, ~table.members_NK[row] & np.isfinite(table.means_NK[row])]
    return means


def _pooled_variances(table: ShadowTable) -> tuple[float, float] | None:
    """Variances within texts, of the models with a text and of those without, pooled over all texts, in nats².

    None where every text has enough models for its own, or none has two.
    """
    usable = np.isfinite(table.means_NK)
    sides = (table.members_NK & usable, ~table.members_NK & usable)
    if min(side.sum(axis=1).min(initial=ENOUGH_FOR_OWN_VARIANCE) for side in sides) >= ENOUGH_FOR_OWN_VARIANCE:
        return None
    pooled = []
    for side in sides:
        counts = side.sum(axis=1)
        degrees = int(np.maximum(counts - 1, 0).sum())
        values = np.where(side, table.means_NK, 0.0)
        centres = values.sum(axis=1) / np.maximum(counts, 1)
        squares = float((np.where(side, values - centres[:, None], 0.0) ** 2).sum())
        if degrees == 0 or not squares > 0.0:
            return None
        pooled.append(squares / degrees)
    return pooled[0], pooled[1]
