"""The release mechanisms, as a closed set: the guarantee is proved for these and no others.

A further one is a file beside `gaussian` and `mixture` with its proof, and an entry in each table here.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from reticent.pac.release import Mechanism


class ReleaseMechanism(StrEnum):
    """A mechanism that turns the realised world's vote into a token, at a charge fixed beforehand."""

    GAUSSIAN = "gaussian"
    """Gaussian noise on the one-hot vote, then the largest coordinate (arXiv 2609.05676)."""
    MIXTURE = "mixture"
    """The vote itself with a small probability, else a draw from the posterior's distribution of votes."""


DEFAULT_RELEASE: Final = ReleaseMechanism.GAUSSIAN

DESCRIPTIONS: Final[dict[ReleaseMechanism, str]] = {
    ReleaseMechanism.GAUSSIAN: "decides for the plurality most of the time",
    ReleaseMechanism.MIXTURE: "keeps the worlds' proportions",
}
"""One clause for each mechanism, for help texts."""


def mechanism_for(release: ReleaseMechanism, step_budget: float) -> "Mechanism[Any]":
    """Return a mechanism of the set at a step budget b in nats.

    Raises:
        InvalidValueError: the budget is out of range.
    """
    return _mechanisms()[release](step_budget)


@cache
def _mechanisms() -> "Mapping[ReleaseMechanism, Callable[[float], Mechanism[Any]]]":
    # Imported by the first ballot, whatever its votes: help and plans need the names alone, and not SciPy.
    from reticent.pac.gaussian import GaussianMechanism
    from reticent.pac.mixture import MixtureMechanism

    return {ReleaseMechanism.GAUSSIAN: GaussianMechanism, ReleaseMechanism.MIXTURE: MixtureMechanism}
