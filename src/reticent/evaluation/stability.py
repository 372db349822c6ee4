"""Stability: how often all worlds agree, and how much of their probability the candidates hold.

Unanimous steps are released without noise, so what noise costs depends on how often worlds dissent; and a world can
only vote for what the public model proposes (arXiv 2609.05676 reports 83.4 % and 88.5 % at k = 200).
"""

from reticent._settings import FiniteModel
from reticent.evaluation.vote_tensor import VoteTensor
from reticent.stats.means import Mean


class StabilityRow(FiniteModel):
    """Stability with one number of candidates; standard errors are over texts.

    Attributes:
        num_candidates: k.
        greedy, gumbel: share of positions at which all worlds cast one vote.
        mass: share of the worlds' probability inside the public model's top k, mean over worlds.
    """

    num_candidates: int
    greedy: Mean
    gumbel: Mean
    mass: Mean


class Stability(FiniteModel):
    """Stability over numbers of candidates, rising."""

    rows: tuple[StabilityRow, ...]
    num_worlds: int
    num_texts: int
    num_positions: int
    num_mass_positions: int

    def at(self, num_candidates: int) -> StabilityRow:
        """The row of one number of candidates; the votes' own is always there."""
        return next(row for row in self.rows if row.num_candidates == num_candidates)


def stability(tensor: VoteTensor) -> Stability:
    """Measure stability on a vote tensor."""
    spans = tensor.spans
    rows = tuple(
        StabilityRow(
            num_candidates=int(count),
            greedy=spans.mean(tensor.greedy.unanimous_NL[:, column]),
            gumbel=spans.mean(tensor.gumbel.unanimous_NL[:, column]),
            mass=spans.mean_at(tensor.mass_positions_P, tensor.mass_PL[:, column]),
        )
        for column, count in enumerate(tensor.candidate_counts_L)
    )
    return Stability(
        rows=rows,
        num_worlds=tensor.num_worlds,
        num_texts=spans.num_texts,
        num_positions=tensor.num_positions,
        num_mass_positions=tensor.mass_positions_P.size,
    )
