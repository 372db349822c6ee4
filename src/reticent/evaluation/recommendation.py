"""The release mechanism to choose for a run, from what its evaluation measured, with the reason.

All mechanisms charge the same, so the one that keeps more of the gain at the smallest budget is better; where their
difference is within sampling error, the default is named. The Gaussian's loss follows from dissent: it loses about
`LOSS_PER_DISSENT` of accuracy at a dissenting position (`experiments/pac/dissent-cost-all.md`), the mixture none.
"""

import math

from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.evaluation.utility import Utility, UtilityRow
from reticent.pac.mechanism import DEFAULT_RELEASE, ReleaseMechanism
from reticent.stats.means import Mean

LOSS_PER_DISSENT = 0.0123
"""Accuracy that the Gaussian release loses at a dissenting position: 0.0123 ± 0.0014 over 34 runs."""
_CLEAR = 2.0
"""Standard errors between two shares that make a difference clear."""
_WANTED_SHARE = 0.9


class Recommendation(FiniteModel):
    """The mechanism to choose for one decoder.

    Attributes:
        decoder: how worlds vote.
        mechanism: the one to choose.
        reason: one or two sentences.
        expected_gaussian_share: share of the gain that dissent alone lets the Gaussian keep, 1 − c · dissent / gain.
        largest_dissent: dissent at which the Gaussian would keep nine tenths of this gain.
    """

    decoder: Decoder
    mechanism: ReleaseMechanism
    reason: str
    expected_gaussian_share: float
    largest_dissent: float


def recommend(result: Utility) -> Recommendation | None:
    """Recommend a mechanism for one decoder; None where there is no gain to keep or no mechanism was measured."""
    rows = [row for row in result.rows if row.step_budget is not None and row.kept is not None]
    if not rows or not result.gain.value > 0.0:
        return None
    smallest = min(row.step_budget for row in rows if row.step_budget is not None)
    shares = {ReleaseMechanism(row.method): _share(row) for row in rows if row.step_budget == smallest}
    best = max(shares, key=lambda mechanism: shares[mechanism].value)
    chosen, reason = _choose(shares, best, smallest)
    dissent = 1.0 - result.unanimity.value
    expected = 1.0 - LOSS_PER_DISSENT * dissent / result.gain.value
    largest = min(1.0, (1.0 - _WANTED_SHARE) * result.gain.value / LOSS_PER_DISSENT)
    by_dissent = (
        f"Worlds dissent at {dissent:.1%} of positions; the Gaussian keeps {_WANTED_SHARE:.0%} of a gain of "
        f"{result.gain.value:.2%} where they dissent at no more than about {largest:.1%}."
    )
    return Recommendation(
        decoder=result.decoder,
        mechanism=chosen,
        reason=f"{reason} {by_dissent}",
        expected_gaussian_share=expected,
        largest_dissent=largest,
    )


def _choose(
    shares: dict[ReleaseMechanism, Mean], best: ReleaseMechanism, budget: float
) -> tuple[ReleaseMechanism, str]:
    at = f"at {budget:.3g} nats a token, the same charge"
    others = [mechanism for mechanism in shares if mechanism is not best]
    if not others:
        return best, f"It keeps {shares[best].value:.0%} of the noiseless gain; no other mechanism was measured."
    second = max(others, key=lambda mechanism: shares[mechanism].value)
    kept = f"{best} keeps {shares[best].value:.0%} of the noiseless gain and {second} {shares[second].value:.0%} {at}"
    if shares[best].value - shares[second].value > _CLEAR * _joint_error(shares[best], shares[second]):
        return best, f"{kept}."
    chosen = DEFAULT_RELEASE if DEFAULT_RELEASE in (best, second) else best
    return chosen, f"{kept}, which is within sampling error: either will do."


def _share(row: UtilityRow) -> Mean:
    assert row.kept is not None, "rows without a share were left out"
    return row.kept


def _joint_error(first: Mean, second: Mean) -> float:
    """The standard error of a difference, as if both were independent; they share texts, so it is rather too large."""
    return math.hypot(first.standard_error or 0.0, second.standard_error or 0.0)
