"""The curator: holds the secret, the posterior and the account, and releases tokens one after another.

Formal guarantee: for one persistent S and every adaptive, colluding user, I(S; all released tokens) ≤ Σ charges, the
charges being what `Account` holds (arXiv 2601.14033 for the composition). It rests on these habits:

* One curator per deployment. S, the posterior and the account are continued from the stored state, never reset.
* The charge is fixed with the votes, tested against the cap and debited before anything random is drawn. What a token
  costs is said in `charging` alone, and by which rule in the deployment's state: chosen once, never changed.
* Votes are unanimous only if *all* m worlds agree, whatever their posterior mass. Then the consensus leaves without
  noise and without an update of the posterior.
* The new state is durable before any token of a batch is returned. If `ReleaseStore.commit` raises, the state in memory
  is as before and no token leaves; a crash can lose a token, never a charge.
* A commit that raised may have been made durable all the same, as when a connection breaks while it is acknowledged.
  Nothing more is released before the store has said which state stands.
* The votes of a batch are all fixed before any of its outputs is seen; its releases are charged and calibrated in the
  order of the ballots, each on the posterior that the one before it left.
* The secret selects one row of the votes. No branch, error or count depends on it.

A `Curator` is not thread-safe: releases happen one after another in a fixed order, by one writer.

Shape suffixes: M worlds, A active tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reticent._validate import integer_in_range
from reticent._validate import num_worlds as validated_num_worlds
from reticent.errors import InvalidValueError
from reticent.pac import accounting
from reticent.pac.account import Account
from reticent.pac.calibration import active_votes, vote_weights
from reticent.pac.charging import DEFAULT_CHARGING_RULE, Charging, ChargingRule
from reticent.pac.mechanism import DEFAULT_RELEASE, ReleaseMechanism, mechanism_for
from reticent.pac.posterior import Posterior
from reticent.pac.release import Mechanism
from reticent.randomness import NoiseSource


@dataclass(frozen=True, slots=True, eq=False)
class CuratorState:
    """All that a deployment must keep to continue. Secret: its repr shows neither S nor the posterior.

    Attributes:
        secret: S, the index of the realised world.
        log_posterior: log-weights over worlds, float64[m].
        spent_units: information charged so far, in units of 2^-64 nat.
        cap_units: the most that may ever be charged, or None.
        tokens_released: tokens returned over the deployment's life.
        dissenting_steps: those of them on which the worlds' votes differed.
        charging_rule: the rule by which tokens are charged over the deployment's whole life.
    """

    secret: int = field(repr=False)
    log_posterior: NDArray[np.float64] = field(repr=False)
    spent_units: int = 0
    cap_units: int | None = None
    tokens_released: int = 0
    dissenting_steps: int = 0
    charging_rule: ChargingRule = DEFAULT_CHARGING_RULE

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self.log_posterior.size

    @property
    def account(self) -> Account:
        """The account: what has been spent and may be spent."""
        return Account(self.spent_units, self.cap_units)

    @classmethod
    def initial(
        cls,
        num_worlds: int,
        noise: NoiseSource,
        total_budget: float | None = None,
        charging_rule: ChargingRule = DEFAULT_CHARGING_RULE,
    ) -> "CuratorState":
        """Draw S and return the state of a new deployment.

        Args:
            num_worlds: m, even.
            noise: the source S is drawn from.
            total_budget: B, the cap over the deployment's life in nats, or None.
            charging_rule: the rule by which its tokens are charged.

        Raises:
            InvalidValueError: a value out of range.
        """
        validated_num_worlds(num_worlds)
        cap = None if total_budget is None else accounting.cap_units(total_budget)
        posterior = Posterior.uniform(num_worlds)
        secret = noise.secret_index(num_worlds)
        return cls(secret, posterior.log_weights, cap_units=cap, charging_rule=charging_rule)


@dataclass(frozen=True, slots=True, eq=False)
class Ballot:
    """The votes for one token, and what its record will say.

    Attributes:
        votes_M: each world's token, fixed before the call, int64[m].
        charging: the step budget, and what the token costs at it.
        request: identifier of the request.
        step: position of the token in its answer.
        coin_key: the 16-byte key of the public coins behind the votes, or None for a decoder without coins.
        key_id: identifier of the API key that asked, or None.
        release_mechanism: turns the realised world's vote into a token. The charge is the same for every mechanism, and
            a deployment may change from one to another: the posterior carries what each has released.
    """

    votes_M: NDArray[np.int64]
    charging: Charging
    request: str
    step: int
    coin_key: bytes | None = None
    key_id: str | None = None
    release_mechanism: ReleaseMechanism = DEFAULT_RELEASE


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """The facts of one release that others may see.

    Attributes:
        step: position of the token in its answer.
        request: identifier of the request.
        coin_key: the 16-byte key of its public coins, or None for a decoder without coins.
        num_active: the number of distinct votes, a. It depends on the corpus, not on S: show it coarsely.
        charge_units: the charge, in units of 2^-64 nat. Under some rules it tells as much: show it coarsely.
        reserve_units: the most that the token could have cost, likewise; the same whatever the votes.
        key_id: identifier of the API key that asked, or None.
    """

    step: int
    request: str
    coin_key: bytes | None
    num_active: int
    charge_units: int
    reserve_units: int
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReleasedToken:
    """One token on its way out: its id, distinct votes, and charge and reserve in units of 2^-64 nat."""

    token: int
    num_active: int
    charge_units: int
    reserve_units: int


class ReleaseStore(Protocol):
    """Durable storage of a deployment's state."""

    def commit(self, state: CuratorState, records: Sequence[ReleaseRecord]) -> None:
        """Make the state durable together with the records that led to it, all or nothing; raise if that fails."""
        ...

    def reconcile(self, state: CuratorState) -> CuratorState:
        """Return the state that is durable after a commit that raised: `state`, the one before it, or the one it made.

        Raises where that cannot be found out yet; nothing is released until it can.
        """
        ...


class Curator:
    """Releases tokens against one secret, one posterior and one account.

    Args:
        state: where the deployment stands; `CuratorState.initial` for a new one, else what the store last kept.
        store: where each new state goes before its token is returned.
        noise: a secure source, such as `SystemNoise`.

    Raises:
        InvalidValueError: the source is not secure, or the state is inconsistent.
    """

    def __init__(self, state: CuratorState, store: ReleaseStore, noise: NoiseSource) -> None:
        if noise.is_secure is not True:
            raise InvalidValueError(
                f"{type(noise).__name__} can be replayed and would reveal the secret; use SystemNoise, "
                "or Curator.for_experiments where nothing private is at stake"
            )
        self._adopt(state, store, noise)

    @classmethod
    def for_experiments(cls, state: CuratorState, store: ReleaseStore, noise: NoiseSource) -> "Curator":
        """Return a curator that accepts a seeded source. It protects nothing; a deployment never calls this."""
        curator = object.__new__(cls)
        curator._adopt(state, store, noise)
        return curator

    def _adopt(self, state: CuratorState, store: ReleaseStore, noise: NoiseSource) -> None:
        self._store = store
        self._noise = noise
        self._in_doubt = False
        self._continue_from(state)

    def _continue_from(self, state: CuratorState) -> None:
        posterior = Posterior(state.log_posterior)
        if not 0 <= state.secret < posterior.num_worlds:
            raise InvalidValueError(f"the stored secret is not one of the {posterior.num_worlds} worlds")
        if not isinstance(state.charging_rule, ChargingRule):
            raise InvalidValueError(f"the stored charging rule {state.charging_rule!r} is none of the set")
        integer_in_range("dissenting_steps", state.dissenting_steps, 0)
        integer_in_range("tokens_released", state.tokens_released, state.dissenting_steps)
        self._account = state.account
        self._posterior = posterior
        self._state = state

    @property
    def state(self) -> CuratorState:
        """The state last committed. Secret."""
        return self._state

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return self._posterior.num_worlds

    @property
    def account(self) -> Account:
        """The account: what has been spent and may be spent."""
        return self._account

    @property
    def charging_rule(self) -> ChargingRule:
        """The rule by which this deployment's tokens are charged."""
        return self._state.charging_rule

    @property
    def half_success(self) -> float:
        """Bound on telling which half a record is in, from all that was spent so far (prior ½)."""
        return self._account.half_success

    @property
    def world_success(self) -> float:
        """Bound on naming the realised world, from all that was spent so far (prior 1/m)."""
        return self._account.world_success(self.num_worlds)

    def release(
        self,
        votes_M: NDArray[np.int64],
        charging: Charging,
        *,
        request: str,
        step: int,
        coin_key: bytes | None = None,
        release_mechanism: ReleaseMechanism = DEFAULT_RELEASE,
    ) -> ReleasedToken:
        """Release one token, commit its charge, and return it.

        Args:
            votes_M: each world's token, fixed before this call, int64[m].
            charging: the step budget, and what the token costs at it.
            request: identifier of the request, for the record.
            step: position of the token in its answer, for the record.
            coin_key: key of the public coins behind the votes, for the record.
            release_mechanism: turns the realised world's vote into a token.

        Raises:
            InvalidValueError: malformed votes.
            BudgetExhaustedError: the charge would pass the cap; nothing was drawn or changed.
            Exception: whatever the store raises; nothing was changed and no token leaves.
        """
        ballot = Ballot(votes_M, charging, request, step, coin_key, release_mechanism=release_mechanism)
        released = self.release_many([ballot])[0]
        if released is None:
            self._account.charged(charging.reserve_units)
            raise AssertionError("a ballot is refused only where its charge would pass the cap")
        return released

    def release_many(self, ballots: Sequence[Ballot]) -> list[ReleasedToken | None]:
        """Release a token for each ballot, commit all charges at once, and return the tokens in order.

        A ballot whose charge would pass the cap is refused together with all after it that are not free: their places
        in the list hold None, and the other releases stand.

        Args:
            ballots: all fixed before this call.

        Raises:
            InvalidValueError: a ballot has malformed votes, or another rule than the deployment's; nothing was drawn.
            Exception: whatever the store raises; nothing was changed and no token leaves.
        """
        counts = [self._count(ballot) for ballot in ballots]
        if self._in_doubt:
            self._continue_from(self._store.reconcile(self._state))
            self._in_doubt = False
        state, posterior, account = self._state, self._posterior, self._account
        tokens: list[ReleasedToken | None] = []
        records = []
        is_exhausted = False
        for ballot, count in zip(ballots, counts, strict=True):
            is_exhausted = is_exhausted or not account.can_afford(count.charge_units)
            if is_exhausted and count.charge_units > 0:
                tokens.append(None)
                continue
            account = account.charged(count.charge_units)
            index, posterior = self._draw(count, posterior)
            dissent = count.active_A.size > 1
            state = replace(
                state,
                log_posterior=posterior.log_weights,
                spent_units=account.spent_units,
                tokens_released=state.tokens_released + 1,
                dissenting_steps=state.dissenting_steps + int(dissent),
            )
            tokens.append(count.token(index))
            records.append(count.record(ballot))
        if records:
            self._in_doubt = True
            self._store.commit(state, records)
            self._in_doubt = False
            self._state, self._posterior, self._account = state, posterior, account
        return tokens

    def _draw(self, count: "_Count", posterior: Posterior) -> tuple[int, Posterior]:
        """The index of the released token among the active ones, and the posterior after it."""
        if count.active_A.size == 1:
            return 0, posterior
        calibration = count.mechanism.calibrate(vote_weights(count.index_M, posterior))
        drawn = count.mechanism.release(count.index_M, calibration, self._state.secret, self._noise)
        return drawn.index, posterior.updated(drawn.log_likelihood)

    def _count(self, ballot: Ballot) -> "_Count":
        votes_M = ballot.votes_M
        if votes_M.shape != (self.num_worlds,) or votes_M.dtype.kind not in "iu":
            raise InvalidValueError(
                f"votes must be {self.num_worlds} integers, one for each world; got {votes_M.dtype} of shape "
                f"{votes_M.shape}"
            )
        active_A, index_M = active_votes(votes_M)
        if not active_A[0] >= 0:
            raise InvalidValueError(f"votes must be token ids of at least 0, got {int(active_A[0])}")
        charging = ballot.charging
        if charging.rule is not self._state.charging_rule:
            raise InvalidValueError(
                f"this deployment charges by the rule {self._state.charging_rule}, a token came with {charging.rule}"
            )
        mechanism = mechanism_for(ballot.release_mechanism, charging.step_budget)
        charge, reserve = charging.charge(active_A.size), charging.reserve_units
        if not 0 <= charge <= reserve:
            raise InvalidValueError(f"the charging rule {charging.rule} charges more than it reserves")
        return _Count(active_A, index_M, mechanism, charge, reserve)

    def __repr__(self) -> str:
        return f"Curator({self._state!r})"


@dataclass(frozen=True, slots=True, eq=False)
class _Count:
    """A checked ballot: the distinct votes, each world's index among them, the mechanism, its charge and reserve."""

    active_A: NDArray[np.int64]
    index_M: NDArray[np.int64]
    mechanism: Mechanism[Any]
    charge_units: int
    reserve_units: int

    def token(self, index: int) -> ReleasedToken:
        """The token at an index among the distinct votes, on its way out."""
        return ReleasedToken(int(self.active_A[index]), self.active_A.size, self.charge_units, self.reserve_units)

    def record(self, ballot: Ballot) -> ReleaseRecord:
        """The record that the ledger keeps of this release."""
        return ReleaseRecord(
            ballot.step,
            ballot.request,
            ballot.coin_key,
            self.active_A.size,
            self.charge_units,
            self.reserve_units,
            ballot.key_id,
        )
