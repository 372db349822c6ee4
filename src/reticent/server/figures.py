"""The figures of privacy that a server shows, under either guarantee: of a request, a key, and the deployment.

Contract. What users see follows from their own answers and from the deployment's constants. Nothing here depends on a
realised world, or on who is in a corpus, beyond released tokens; figures that depend on dissent are coarse.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from reticent.ledger.usage import Spending
from reticent.server.corpus_schemas import CorpusDeploymentPrivacy, CorpusKeyPrivacy, CorpusPrivacy
from reticent.server.schemas import DeploymentPrivacy, KeyPrivacy, Privacy

AnyPrivacy = Privacy | CorpusPrivacy
AnyKeyPrivacy = KeyPrivacy | CorpusKeyPrivacy
AnyDeploymentPrivacy = DeploymentPrivacy | CorpusDeploymentPrivacy


@dataclass(frozen=True)
class KeySpending:
    """The use of one key: its tokens and the most that they cost, and the tokens left to it or None for no quota."""

    spending: Spending
    tokens_left: int | None


@dataclass(frozen=True)
class AccountReading:
    """A gauge: its name, its help, and a function that reads it now."""

    name: str
    help_text: str
    read: Callable[[], float]


class Figures(Protocol):
    """Figures of one deployment."""

    def of_request(self, spending: Spending, key: KeySpending | None, is_operator: bool) -> AnyPrivacy:
        """The most that a request cost, and the totals that its key may see: its own, and an operator's."""
        ...

    def of_key(self, key: KeySpending) -> AnyKeyPrivacy:
        """The most that one key's tokens cost over its life."""
        ...

    def of_deployment(self) -> AnyDeploymentPrivacy:
        """The cost of all releases so far."""
        ...

    def readings(self) -> list[AccountReading]:
        """The gauges of this guarantee."""
        ...

    def dashboard(self) -> dict[str, Any]:
        """The fields of the dashboard that belong to this guarantee; takes up to a second at the first call."""
        ...

    def promise(self) -> dict[str, Any]:
        """The fields of the page to try that belong to this guarantee: what is promised to everyone."""
        ...
