"""The token-only attacker: beliefs about S from released tokens, for whoever never sees the curator's noisy vectors.

The attacker knows every world's votes, the mechanism and the budget. After tokens y_1 … y_t its belief is

    π_t(j) ∝ π_{t−1}(j) P(y_t | v_j, calibration),

with the channel of `experiments.studies.channel`. The calibration depends on the curator's posterior, which the
attacker does not know; it puts its own belief in the place, the posterior's conditional mean given the tokens.

| release | how exact π is |
|---|---|
| mixture | exact: the curator's posterior is a function of the released tokens too, so the two are one |
| Gaussian | exact for the first dissenting token, and to first order in the budget after it |
| noiseless, and controls taken for it | worlds by the number of tokens that they agree with |

Shape suffixes: N positions, M worlds, R deployments, A active tokens.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from experiments.studies.channel import released_token_likelihood
from reticent.errors import InvalidValueError
from reticent.pac.calibration import active_votes
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.pac.release import Mechanism

_ROUNDING_OCTAVE = 32
"""Beliefs are rounded to 2^(1/32) of their value where channels are integrated, so that most are integrated once."""
_LEAST_BELIEF = 2.0**-40
_LEAST_LIKELIHOOD = 1e-300
_DISAGREEMENT = 1e-6


class TokenLikelihood(Protocol):
    """An attacker's likelihood of one released token."""

    def log_likelihood(self, belief_A: NDArray[np.float64], released: int) -> NDArray[np.float64]:
        """Log P(released token | vote) for each vote among the active tokens, float64[A].

        Args:
            belief_A: the attacker's belief in each vote, summing to 1.
            released: index of the released token.
        """
        ...


@dataclass
class ReleaseLikelihood:
    """The channel of a calibrated release.

    Attributes:
        release_mechanism, step_budget: of the release; b in nats.
        rounded: whether beliefs are rounded to about 1 % before three or more active tokens are integrated.

    Raises:
        InvalidValueError: the budget is out of range.
    """

    release_mechanism: ReleaseMechanism
    step_budget: float
    rounded: bool = True
    _mechanism: Mechanism[Any] = field(init=False)
    _known: dict[tuple[bytes, int], NDArray[np.float64]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._mechanism = mechanism_for(self.release_mechanism, self.step_budget)

    def log_likelihood(self, belief_A: NDArray[np.float64], released: int) -> NDArray[np.float64]:
        """See `TokenLikelihood.log_likelihood`."""
        belief_A = np.maximum(belief_A, _LEAST_BELIEF)
        if self.release_mechanism is not ReleaseMechanism.GAUSSIAN or belief_A.size == 2 or not self.rounded:
            return self._compute_likelihood(belief_A / belief_A.sum(), released)
        # A channel does not depend on the order of its tokens.
        order_A = belief_A.argsort(kind="stable")
        steps_A = np.round(np.log2(belief_A[order_A]) * _ROUNDING_OCTAVE).astype(np.int16)
        place = int(np.flatnonzero(order_A == released)[0])
        key = (steps_A.tobytes(), place)
        if key not in self._known:
            rounded_A = np.exp2(steps_A / _ROUNDING_OCTAVE)
            self._known[key] = self._compute_likelihood(rounded_A / rounded_A.sum(), place)
        in_order_A = np.empty_like(belief_A)
        in_order_A[order_A] = self._known[key]
        return in_order_A

    def _compute_likelihood(self, belief_A: NDArray[np.float64], released: int) -> NDArray[np.float64]:
        likelihood_A = released_token_likelihood(self._mechanism.calibrate(belief_A), released)
        log_A: NDArray[np.float64] = np.log(np.maximum(likelihood_A, _LEAST_LIKELIHOOD))
        return log_A


@dataclass(frozen=True)
class AgreementLikelihood:
    """Tokens taken for the realised world's own votes, with a little doubt: for noiseless releases and for controls."""

    disagreement: float = _DISAGREEMENT

    def log_likelihood(self, belief_A: NDArray[np.float64], released: int) -> NDArray[np.float64]:
        """See `TokenLikelihood.log_likelihood`."""
        log_A = np.full(belief_A.size, math.log(self.disagreement))
        log_A[released] = math.log1p(-self.disagreement)
        return log_A


def token_beliefs(
    votes_NM: NDArray[np.integer], tokens_NR: NDArray[np.integer], likelihood: TokenLikelihood
) -> NDArray[np.float64]:
    """Compute the attacker's beliefs about S after all tokens of each deployment, as log-weights, float64[R, M].

    Args:
        votes_NM: each world's vote at each position.
        tokens_NR: the token that each deployment released there.
        likelihood: what the attacker takes the releases for.

    Raises:
        InvalidValueError: shapes disagree, or a token was nobody's vote.
    """
    if votes_NM.ndim != 2 or tokens_NR.ndim != 2 or len(votes_NM) != len(tokens_NR):
        raise InvalidValueError(
            f"votes of shape {votes_NM.shape} and tokens of shape {tokens_NR.shape} must have a row for each position"
        )
    num_worlds, num_deployments = votes_NM.shape[1], tokens_NR.shape[1]
    beliefs_RM = np.full((num_deployments, num_worlds), -math.log(num_worlds))
    for votes_M, tokens_R in zip(votes_NM.astype(np.int64), tokens_NR, strict=True):
        active_A, index_M = active_votes(votes_M)
        released_R = np.minimum(active_A.searchsorted(tokens_R), active_A.size - 1)
        if (active_A[released_R] != tokens_R).any():
            raise InvalidValueError("a released token is no world's vote; votes and tokens are not of one stream")
        if active_A.size == 1:
            continue
        for session, released in enumerate(released_R.tolist()):
            belief_M = beliefs_RM[session]
            belief_A = np.bincount(index_M, weights=np.exp(belief_M), minlength=active_A.size).astype(np.float64)
            belief_M = belief_M + likelihood.log_likelihood(belief_A, released)[index_M]
            beliefs_RM[session] = belief_M - np.logaddexp.reduce(belief_M)
    return beliefs_RM
