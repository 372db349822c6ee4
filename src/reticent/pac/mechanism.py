"""The laws by which a token may be released, as a closed set: the guarantee is proved for these and no others."""

from enum import StrEnum
from typing import Any

from reticent.pac.gaussian import GaussianMechanism, Mechanism
from reticent.pac.mixture import MixtureMechanism


class ReleaseMechanism(StrEnum):
    """A mechanism that turns the realised world's vote into a token, at a charge fixed beforehand."""

    GAUSSIAN = "gaussian"
    """Gaussian noise on the one-hot vote, then the largest coordinate (arXiv 2609.05676)."""
    MIXTURE = "mixture"
    """The vote itself with a small probability, else a draw from the posterior's law of votes."""


def mechanism_for(law: ReleaseMechanism, step_budget: float) -> Mechanism[Any]:
    """Return the mechanism of a law at a step budget b in nats.

    Raises:
        InvalidValueError: the budget is out of range.
    """
    if law is ReleaseMechanism.MIXTURE:
        return MixtureMechanism(step_budget)
    return GaussianMechanism(step_budget)
