"""The tokens that deployments release on one stream of votes: what attackers and studies of emission look at.

R deployments are asked the same queries and differ in S, posterior and randomness. Controls and noiseless worlds are
brought into the same shape, so that every attack runs against every way of choosing tokens; the controls' S is drawn
and then used for nothing.

Shape suffixes: N positions, M worlds, R deployments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reticent.evaluation.controls import Control, control_tokens
from reticent.evaluation.session_batch import SessionBatch
from reticent.pac.mechanism import ReleaseMechanism, mechanism_for
from reticent.randomness import NoiseSource


@dataclass(frozen=True)
class ReleasedTokens:
    """Tokens released by R deployments.

    Attributes:
        secrets_R: S of each, int64[R].
        tokens_NR: the released tokens, int64[N, R].
        log_weights_RM: each curator's posterior as log-weights, float64[R, M]; None where there is no curator.
    """

    secrets_R: NDArray[np.int64]
    tokens_NR: NDArray[np.int64]
    log_weights_RM: NDArray[np.float64] | None = None

    @property
    def num_deployments(self) -> int:
        """R."""
        return self.secrets_R.size


def release_by_mechanism(
    votes_NM: NDArray[np.integer],
    mechanism: ReleaseMechanism,
    step_budget: float,
    secrets_R: NDArray[np.int64],
    noise: NoiseSource,
) -> ReleasedTokens:
    """Release every position in order, each deployment with one posterior throughout.

    Raises:
        InvalidValueError: a secret is not a world, or the budget is out of range.
    """
    votes_NM = votes_NM.astype(np.int64)
    batch = SessionBatch(mechanism_for(mechanism, step_budget), secrets_R, votes_NM.shape[1], noise)
    tokens_NR = np.repeat(votes_NM[:, :1], secrets_R.size, axis=1)
    for position in np.flatnonzero((votes_NM != votes_NM[:, :1]).any(axis=1)):
        tokens_NR[position] = batch.release(votes_NM[position])
    return ReleasedTokens(secrets_R, tokens_NR, batch.log_weights)


def release_noiseless(votes_NM: NDArray[np.integer], secrets_R: NDArray[np.int64]) -> ReleasedTokens:
    """Release the realised world's own votes."""
    return ReleasedTokens(secrets_R, votes_NM[:, secrets_R].astype(np.int64))


def release_by_control(
    votes_NM: NDArray[np.integer],
    control: Control,
    secrets_R: NDArray[np.int64],
    generator: np.random.Generator,
    request_N: NDArray[np.integer] | None = None,
) -> ReleasedTokens:
    """Release by a control, whose worlds J are drawn without regard to S.

    Args:
        votes_NM: each world's vote at each position.
        control: which one.
        secrets_R: only reported.
        generator: source of J.
        request_N: which request each position belongs to; one request unless given.
    """
    columns = [control_tokens(control, votes_NM, generator, request_N) for _ in range(secrets_R.size)]
    return ReleasedTokens(secrets_R, np.stack(columns, axis=1))
