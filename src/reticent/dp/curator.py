"""The curator of a corpus deployment: holds its constants and its account, and releases tokens one after another.

Formal guarantee: for every adaptive user, colluding or not, in any number of sessions, everything released is ρ-zCDP
between neighbouring corpora, ρ being what the account holds. It rests on these habits:

* One curator per deployment. The constants never change; the account is continued from the stored state, never reset.
* Every token costs the same, whatever the history, the request and the worlds, so a charge tells nothing. It is tested
  against the cap, debited and durable before anything random is drawn.
* If `CorpusStore.commit` raises, the state in memory is as before and nothing was drawn; a crash can lose a token,
  never a charge. A lost token is not drawn again.
* A commit that raised may have been made durable all the same. Nothing more is released before the store has said which
  state stands.
* All aggregates of a batch are fixed before any of its tokens is seen. Drafts are computed beforehand elsewhere: what
  was computed behind a guess is used only if the token drawn here equals it.

There is no secret world and no posterior. Threads may share a `CorpusCurator`: releases happen one batch after another.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reticent._validate import integer_in_range, positive_finite
from reticent.dp.account import RhoAccount
from reticent.dp.accounting import cap_units
from reticent.dp.release import Aggregate, CorpusSettings, release, require_settings
from reticent.errors import InvalidValueError
from reticent.randomness import BitSource


@dataclass(frozen=True, slots=True)
class CorpusState:
    """All that a corpus deployment must keep to continue.

    Attributes:
        settings: its constants.
        spent_units: charged so far, in units of 2^-64 of ρ.
        cap_units: the most that may ever be charged, or None.
        tokens_released: tokens returned over the deployment's life.
    """

    settings: CorpusSettings
    spent_units: int = 0
    cap_units: int | None = None
    tokens_released: int = 0

    @property
    def account(self) -> RhoAccount:
        """The account: what has been spent and may be spent."""
        return RhoAccount(self.spent_units, self.cap_units)

    @classmethod
    def initial(cls, settings: CorpusSettings, total_rho: float | None = None) -> "CorpusState":
        """Return the state of a new deployment.

        Args:
            settings: its constants.
            total_rho: the cap over its life, or None.

        Raises:
            InvalidValueError: the cap is not positive and finite.
        """
        return cls(settings, cap_units=None if total_rho is None else cap_units(total_rho))


@dataclass(frozen=True, slots=True, eq=False)
class CorpusBallot:
    """The votes for one token, added up, and what its record will say.

    Attributes:
        aggregate: what the public model and the worlds say, fixed before the call.
        request: identifier of the request.
        step: position of the token in its answer.
        key_id: identifier of the API key that asked, or None.
        temperature: the client's, which divides the public log-probabilities alone; the deployment's where None.
    """

    aggregate: Aggregate
    request: str
    step: int
    key_id: str | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class CorpusReleaseRecord:
    """The facts of one release; all of them follow from what its user sees.

    Attributes:
        step: position of the token in its answer.
        request: identifier of the request.
        charge_units: the charge, in units of 2^-64 of ρ.
        key_id: identifier of the API key that asked, or None.
    """

    step: int
    request: str
    charge_units: int
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class CorpusToken:
    """One token on its way out: its id and its charge in units of 2^-64 of ρ."""

    token: int
    charge_units: int


class CorpusStore(Protocol):
    """Durable storage of a corpus deployment's state."""

    def commit(self, state: CorpusState, records: Sequence[CorpusReleaseRecord]) -> None:
        """Make the state durable together with the records that led to it, all or nothing; raise if that fails."""
        ...

    def reconcile(self, state: CorpusState) -> CorpusState:
        """Return the state that is durable after a commit that raised: `state`, the one before it, or the one it made.

        Raises where that cannot be found out yet; nothing is released until it can.
        """
        ...


class CorpusCurator:
    """Releases tokens against one account.

    Args:
        state: where the deployment stands; `CorpusState.initial` for a new one, else what the store last kept.
        store: where each new state goes before its token is returned.
        bits: a secure source, such as `SystemNoise`: its draws are the noise.

    Raises:
        InvalidValueError: the source is not secure, or the state is inconsistent.
    """

    def __init__(self, state: CorpusState, store: CorpusStore, bits: BitSource) -> None:
        if bits.is_secure is not True:
            raise InvalidValueError(
                f"{type(bits).__name__} can be replayed and would reveal what the worlds say; use SystemNoise, "
                "or CorpusCurator.for_experiments where nothing private is at stake"
            )
        self._adopt(state, store, bits)

    @classmethod
    def for_experiments(cls, state: CorpusState, store: CorpusStore, bits: BitSource) -> "CorpusCurator":
        """Return a curator that accepts a seeded source. It protects nothing; a deployment never calls this."""
        curator = object.__new__(cls)
        curator._adopt(state, store, bits)
        return curator

    def _adopt(self, state: CorpusState, store: CorpusStore, bits: BitSource) -> None:
        self._store = store
        self._bits = bits
        self._in_doubt = False
        self._lock = threading.Lock()
        self._continue_from(state)

    def _continue_from(self, state: CorpusState) -> None:
        integer_in_range("tokens_released", state.tokens_released, 0)
        if state.spent_units != state.tokens_released * state.settings.charge_units:
            raise InvalidValueError(
                f"the stored account holds {state.spent_units} units, but {state.tokens_released} tokens cost "
                f"{state.tokens_released * state.settings.charge_units}"
            )
        self._account = state.account
        self._state = state

    @property
    def state(self) -> CorpusState:
        """The state last committed."""
        return self._state

    @property
    def settings(self) -> CorpusSettings:
        """The constants of this deployment."""
        return self._state.settings

    @property
    def account(self) -> RhoAccount:
        """The account: what has been spent and may be spent."""
        return self._account

    @property
    def tokens_left(self) -> int | None:
        """Tokens that the cap still allows; None for no cap."""
        return self._account.tokens_left(self.settings.charge_units)

    def release(
        self,
        aggregate: Aggregate,
        *,
        request: str,
        step: int,
        key_id: str | None = None,
        temperature: float | None = None,
    ) -> CorpusToken:
        """Commit the charge of one token, then draw and return it; see `CorpusBallot` for the arguments.

        Raises:
            InvalidValueError: the aggregate was made under other settings, or the temperature is out of range.
            BudgetExhaustedError: the charge would pass the cap; nothing was drawn or changed.
            Exception: whatever the store raises; nothing was changed and no token leaves.
        """
        released = self.release_many([CorpusBallot(aggregate, request, step, key_id, temperature)])[0]
        if released is None:
            self._account.charged(self.settings.charge_units)
            raise AssertionError("a ballot is refused only where its charge would pass the cap")
        return released

    def release_many(self, ballots: Sequence[CorpusBallot]) -> list[CorpusToken | None]:
        """Commit the charges of all ballots at once, then draw a token for each, and return the tokens in order.

        The ballots that the cap does not cover are the last ones: their places in the list hold None.

        Args:
            ballots: all fixed before this call.

        Raises:
            InvalidValueError: a ballot was made under other settings or at no temperature; nothing was drawn.
            Exception: whatever the store raises; nothing was changed and no token leaves.
        """
        for ballot in ballots:
            require_settings(ballot.aggregate, self.settings)
            if ballot.temperature is not None:
                positive_finite("temperature", ballot.temperature)
        with self._lock:
            covered = self._charge(ballots)
            charge = self.settings.charge_units
            tokens = [CorpusToken(self._draw(ballot), charge) for ballot in covered]
        return [*tokens, *[None] * (len(ballots) - len(covered))]

    def _charge(self, ballots: Sequence[CorpusBallot]) -> Sequence[CorpusBallot]:
        """Commit the charges of as many ballots as the cap covers, and return those; the caller holds the lock."""
        if self._in_doubt:
            self._continue_from(self._store.reconcile(self._state))
            self._in_doubt = False
        charge, left = self.settings.charge_units, self.tokens_left
        covered = ballots if left is None else ballots[:left]
        if covered:
            account = self._account.charged(charge * len(covered))
            state = replace(
                self._state,
                spent_units=account.spent_units,
                tokens_released=self._state.tokens_released + len(covered),
            )
            records = [CorpusReleaseRecord(ballot.step, ballot.request, charge, ballot.key_id) for ballot in covered]
            self._in_doubt = True
            self._store.commit(state, records)
            self._in_doubt = False
            self._state, self._account = state, account
        return covered

    def _draw(self, ballot: CorpusBallot) -> int:
        index = release(ballot.aggregate, self.settings, self._bits, ballot.temperature)
        return int(ballot.aggregate.candidates_K[index])
