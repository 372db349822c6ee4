"""The figures of privacy of a corpus deployment: ρ, and its readings.

Contract. Every token costs the same, so no figure tells anything of the corpus: all of them follow from the number of
released tokens and the deployment's constants.
"""

import math
from typing import Any

from reticent.dp.account import RhoAccount
from reticent.dp.accounting import units_to_rho
from reticent.dp.blocks import BlockReading, block_reading
from reticent.dp.curator import CorpusCurator
from reticent.dp.relations import DESCRIPTIONS
from reticent.dp.wording import MEMBERSHIP_MEANING, MEMBERSHIP_QUESTION, NOT_COVERED
from reticent.guarantees import Guarantee
from reticent.ledger.usage import Spending
from reticent.server.corpus_schemas import CorpusDeploymentPrivacy, CorpusKeyPrivacy, CorpusPrivacy
from reticent.server.figures import AccountReading, KeySpending


class CorpusFigures:
    """Figures of a corpus deployment; implements `figures.Figures`.

    Args:
        curator: of the deployment; only its account and counts are read.
        delta: δ at which ε is stated, below one over the number of places.
    """

    def __init__(self, curator: CorpusCurator, delta: float) -> None:
        self._curator = curator
        self._delta = delta
        self._relation = curator.settings.relation.value

    def of_request(self, spending: Spending, key: KeySpending | None, is_operator: bool) -> CorpusPrivacy:
        """The cost of a request, and the totals that its key may see: its own, and an operator's."""
        return CorpusPrivacy(
            relation=self._relation,
            tokens_charged=spending.tokens,
            rho_charged=units_to_rho(spending.units),
            key=None if key is None else self.of_key(key),
            deployment=self.of_deployment() if is_operator else None,
        )

    def of_key(self, key: KeySpending) -> CorpusKeyPrivacy:
        """The cost of one key's tokens over its life."""
        return CorpusKeyPrivacy(
            tokens_charged=key.spending.tokens,
            rho_charged=units_to_rho(key.spending.units),
            tokens_left=key.tokens_left,
        )

    def of_deployment(self) -> CorpusDeploymentPrivacy:
        """The cost of all tokens so far."""
        state = self._curator.state
        account, constants = state.account, state.settings
        return CorpusDeploymentPrivacy(
            tokens_charged=state.tokens_released,
            tokens_left=account.tokens_left(constants.charge_units),
            rho_charged=account.spent_rho,
            rho_left=account.left_rho,
            epsilon=account.epsilon(self._delta),
            delta=self._delta,
            membership_success=account.membership_success,
            relation=self._relation,
            clip=constants.clip,
            gain=constants.gain,
            temperature=constants.temperature,
        )

    def readings(self) -> list[AccountReading]:
        """The gauges of this guarantee."""
        return [
            AccountReading("spent_rho", "Rho charged over the deployment's life.", lambda: self._account.spent_rho),
            AccountReading(
                "left_rho",
                "Rho that may still be charged; +Inf without a cap.",
                lambda: math.inf if (left := self._account.left_rho) is None else left,
            ),
            AccountReading(
                "membership_bound",
                f"{MEMBERSHIP_QUESTION} Bound on the {MEMBERSHIP_MEANING}.",
                lambda: self._account.membership_success,
            ),
            AccountReading(
                "epsilon",
                f"Epsilon of all tokens so far, at delta {self._delta:g}.",
                lambda: self._account.epsilon(self._delta),
            ),
        ]

    def dashboard(self) -> dict[str, Any]:
        """The fields of the dashboard that belong to this guarantee; takes up to a second at the first call."""
        state, at_cap = self._curator.state, self._account.at_cap
        blocks = self._blocks(state.tokens_released)
        return self._promised(at_cap) | {
            "tokens_left": self._curator.tokens_left,
            "rho_a_token": units_to_rho(state.settings.charge_units),
            "rho_spent": state.account.spent_rho,
            "rho_left": state.account.left_rho,
            "membership_bound": state.account.membership_success,
            "epsilon": state.account.epsilon(self._delta),
            "membership_in_blocks": None if blocks is None else blocks.membership_success,
            "epsilon_in_blocks": None if blocks is None else blocks.epsilon(self._delta),
            "clip": state.settings.clip,
            "gain": state.settings.gain,
            "temperature": state.settings.temperature,
            "sway": state.settings.w,
            "candidates": state.settings.num_candidates,
        }

    def promise(self) -> dict[str, Any]:
        """The fields of the page to try that belong to this guarantee: what is promised to everyone."""
        return self._promised(self._account.at_cap)

    @property
    def _account(self) -> RhoAccount:
        return self._curator.account

    def _promised(self, at_cap: RhoAccount | None) -> dict[str, Any]:
        return {
            "guarantee": Guarantee.CORPUS,
            "membership_question": MEMBERSHIP_QUESTION,
            "membership_meaning": MEMBERSHIP_MEANING,
            "not_covered": NOT_COVERED,
            "relation": self._relation,
            "neighbours": DESCRIPTIONS[self._curator.settings.relation],
            "delta": self._delta,
            "rho_cap": None if at_cap is None else at_cap.spent_rho,
            "membership_at_cap": None if at_cap is None else at_cap.membership_success,
            "epsilon_at_cap": None if at_cap is None else at_cap.epsilon(self._delta),
        }

    def _blocks(self, tokens: int) -> BlockReading | None:
        return block_reading(tokens, self._curator.settings.exact_eta)
