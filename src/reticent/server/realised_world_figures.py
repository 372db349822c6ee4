"""The figures of privacy of a realised-world deployment: nats, and the two bounds that follow."""

import math
from typing import Any, Final

from reticent.guarantees import Guarantee
from reticent.ledger.usage import Spending
from reticent.pac.accounting import units_to_nats
from reticent.pac.bounds import MEMBERSHIP_PRIOR, attack_success
from reticent.pac.charging import Charging
from reticent.pac.curator import Curator
from reticent.pac.wording import HALF_MEANING, HALF_QUESTION, NOT_BOUNDED, WORLD_MEANING, WORLD_QUESTION
from reticent.server.coarse import CoarseAccount, CoarseDissent
from reticent.server.figures import AccountReading, KeySpending
from reticent.server.schemas import DeploymentPrivacy, KeyPrivacy, Privacy

_WORDS: Final = {
    "half_question": HALF_QUESTION,
    "half_meaning": HALF_MEANING,
    "world_question": WORLD_QUESTION,
    "world_meaning": WORLD_MEANING,
    "not_bounded": NOT_BOUNDED,
}


class RealisedWorldFigures:
    """Figures of a realised-world deployment; implements `figures.Figures`.

    Args:
        curator: of the deployment; only its account and counts are read.
        charging: what a token costs.
    """

    def __init__(self, curator: Curator, charging: Charging) -> None:
        self._curator = curator
        self._charging = charging
        self._dissent = CoarseDissent(curator)
        self._spending = CoarseAccount(curator, charging)

    def of_request(self, spending: Spending, key: KeySpending | None, is_operator: bool) -> Privacy:
        """The most that a request cost, and the totals that its key may see: its own, and an operator's."""
        return Privacy(
            tokens_charged=spending.tokens,
            nats_charged=units_to_nats(spending.units),
            key=None if key is None else self.of_key(key),
            deployment=self.of_deployment() if is_operator else None,
        )

    def of_key(self, key: KeySpending) -> KeyPrivacy:
        """The most that one key's tokens cost over its life."""
        return KeyPrivacy(
            tokens_charged=key.spending.tokens,
            nats_charged=units_to_nats(key.spending.units),
            tokens_left=key.tokens_left,
        )

    def of_deployment(self) -> DeploymentPrivacy:
        """The cost of all releases so far, coarsely."""
        account = self._spending.account
        return DeploymentPrivacy(
            tokens_charged=self._curator.state.tokens_released,
            nats_charged=account.spent_nats,
            nats_left=account.left_nats,
            half_bound=account.half_success,
            world_bound=account.world_success(self._curator.num_worlds),
        )

    def readings(self) -> list[AccountReading]:
        """The gauges of this guarantee."""
        return [
            AccountReading(
                "spent_nats",
                "Information charged over the deployment's life, or up to 1,000 tokens' more.",
                lambda: self._spending.account.spent_nats,
            ),
            AccountReading(
                "left_nats",
                "Information that may still be charged; +Inf without a cap.",
                lambda: math.inf if (left := self._spending.account.left_nats) is None else left,
            ),
            AccountReading(
                "half_bound",
                f"{HALF_QUESTION} Bound on the {HALF_MEANING}.",
                lambda: self._spending.account.half_success,
            ),
            AccountReading(
                "world_bound",
                f"{WORLD_QUESTION} Bound on the {WORLD_MEANING}.",
                lambda: self._spending.account.world_success(self._curator.num_worlds),
            ),
            AccountReading(
                "dissent_ratio",
                "Share of tokens on which worlds differed: coarse, and NaN at first.",
                lambda: math.nan if self._dissent.share is None else self._dissent.share,
            ),
        ]

    def dashboard(self) -> dict[str, Any]:
        """The fields of the dashboard that belong to this guarantee."""
        account, num_worlds = self._spending.account, self._curator.num_worlds
        at_cap = account.at_cap
        return {
            "guarantee": Guarantee.REALISED_WORLD,
            "tokens_left": account.tokens_left(self._charging),
            "step_nats": self._charging.step_budget,
            "charging": self._charging.rule.value,
            "nats_spent": account.spent_nats,
            "nats_cap": account.cap_nats,
            "nats_left": account.left_nats,
            "half_bound": account.half_success,
            "half_at_cap": None if at_cap is None else at_cap.half_success,
            "world_bound": account.world_success(num_worlds),
            "world_at_cap": None if at_cap is None else at_cap.world_success(num_worlds),
            "dissent_share": self._dissent.share,
        } | _WORDS

    def promise(self) -> dict[str, Any]:
        """The fields of the page to try that belong to this guarantee: what is promised to everyone."""
        units = self._curator.account.cap_units
        nats_cap = None if units is None else units_to_nats(units)
        return {
            "guarantee": Guarantee.REALISED_WORLD,
            "nats_cap": nats_cap,
            "half_at_cap": None if nats_cap is None else attack_success(nats_cap, MEMBERSHIP_PRIOR),
        } | _WORDS
