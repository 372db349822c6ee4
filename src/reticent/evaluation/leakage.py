"""Leakage: how much information about S the mechanism's internal history really holds, as a share of what was charged.

I(S; H_T) = log m − E H(p_T) = E KL(p_T ‖ uniform), the expectation over S, queries' coins and noise; one session gives
one term. The divergence is summed as Σ φ(m p_j − 1) / m with m p_j − 1 from the log-weights, so that nothing cancels:
at b = 2^-32 a whole session refines the posterior by some 1e-7 nats, far below the rounding of log m − H(p).

Charged are all tokens, informative are those on which worlds dissent: for small b the share is the dissent rate.
"""

import math

import numpy as np
from numpy.typing import NDArray

from reticent._settings import FiniteModel
from reticent.decoding.votes import Decoder
from reticent.evaluation.sessions import SessionOutcomes
from reticent.pac.divergence import phi_of_array
from reticent.pac.mechanism import ReleaseMechanism
from reticent.stats.means import Mean, sample_mean


class Leakage(FiniteModel):
    """Measured leakage of deployments of one budget; standard errors are over sessions.

    Attributes:
        charge_nats: bT, the bound.
        information_nats: I(S; H_T).
        share_of_charge: their ratio, to be compared with `dissent`.
        dissent: share of steps on which worlds differed.
    """

    decoder: Decoder
    mechanism: ReleaseMechanism
    step_budget: float
    num_tokens: int
    num_sessions: int
    charge_nats: float
    information_nats: Mean
    share_of_charge: Mean
    dissent: Mean


def leakage(outcomes: SessionOutcomes, decoder: Decoder, mechanism: ReleaseMechanism) -> Leakage:
    """Estimate the leakage of simulated deployments."""
    nats_R = refinement_nats(outcomes.log_weights_RM)
    return Leakage(
        decoder=decoder,
        mechanism=mechanism,
        step_budget=outcomes.step_budget,
        num_tokens=outcomes.num_tokens,
        num_sessions=len(nats_R),
        charge_nats=outcomes.charge_nats,
        information_nats=sample_mean(nats_R),
        share_of_charge=sample_mean(nats_R / outcomes.charge_nats),
        dissent=sample_mean(outcomes.dissent_R),
    )


def refinement_nats(log_weights_RM: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(p ‖ uniform) of each posterior, float64[R], accurate however close to uniform it is."""
    num_worlds = log_weights_RM.shape[1]
    excess_RM = np.expm1(log_weights_RM + math.log(num_worlds))
    # Rounding leaves the weights' sum a little off 1; the divergence must not take that for information.
    excess_RM = excess_RM - excess_RM.mean(axis=1, keepdims=True)
    nats_R: NDArray[np.float64] = phi_of_array(excess_RM).mean(axis=1)
    return nats_R
