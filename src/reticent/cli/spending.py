"""The spending of a deployment as commands show it: one JSON object, or a table of facts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reticent.cli.output import bound_facts, format_nats
from reticent.errors import RunDirectoryError
from reticent.guarantees import Guarantee

if TYPE_CHECKING:
    from reticent.dp.curator import CorpusState
    from reticent.ledger.reader import LedgerReader
    from reticent.pac.curator import CuratorState

NO_PRIOR = "none: the run does not say who is in which world, so no prior is known"


@dataclass(frozen=True)
class SpendingReport:
    """The spending of a deployment of either guarantee.

    Attributes:
        record: for programs.
        facts: for people, rows of `facts`.
    """

    record: dict[str, object]
    facts: dict[str, str]


def read_spending(reader: "LedgerReader", run: Path, delta: float | None = None) -> SpendingReport:
    """Read what a deployment has spent, may spend, and what that bounds.

    Args:
        reader: of its ledger.
        run: the run directory.
        delta: δ at which a corpus deployment's ε is stated; the default of a plan unless given.

    Raises:
        InvalidValueError: δ is out of range.
        RunDirectoryError: the manifest of a run with places cannot be read.
    """
    if reader.header.guarantee is Guarantee.CORPUS:
        return corpus_spending(reader.corpus_state, _capacity(run, reader.corpus_state), delta)
    state, prior_known = reader.state, has_prior(run)
    return SpendingReport(
        spending_record(state, prior_known=prior_known), spending_facts(state, prior_known=prior_known)
    )


def corpus_spending(state: "CorpusState", capacity: int, delta: float | None = None) -> SpendingReport:
    """Collect what a corpus deployment has spent, may spend, and what that bounds.

    Args:
        state: where it stands.
        capacity: places of its run, taken or not.
        delta: δ at which ε is stated.
    """
    from reticent.cli.corpus_readings import bound_facts_of, plan_record, reading_facts
    from reticent.dp.plan import check_delta, default_delta, make_plan

    delta = default_delta(capacity) if delta is None else check_delta(delta, capacity)
    account, settings = state.account, state.settings
    spent = make_plan(settings, state.tokens_released, delta)
    tokens_left = account.tokens_left(settings.charge_units)
    record = plan_record(spent) | {
        "rho_cap": account.cap_rho,
        "rho_left": account.left_rho,
        "tokens_left": tokens_left,
        "at_cap": None,
    }
    rows = {"guarantee": Guarantee.CORPUS.value, "tokens released": f"{spent.tokens:,}", **reading_facts(spent)}
    rows |= {"cap": "none", "left": "no limit"}
    if account.cap_units is not None:
        at_cap = make_plan(settings, account.cap_units // settings.charge_units, delta)
        record["at_cap"] = {"epsilon": at_cap.epsilon, "membership_success": at_cap.membership_success}
        rows |= {"cap": f"rho {account.cap_rho:.6g}", "left": f"rho {account.left_rho:.6g}, {tokens_left:,} tokens"}
        rows |= {f"once the cap is spent, {name}": value for name, value in bound_facts_of(at_cap).items()}
    return SpendingReport(record, rows)


def _capacity(run: Path, state: "CorpusState") -> int:
    from reticent.worlds.manifest import read_manifest

    capacity = read_manifest(run).capacity
    return state.settings.num_worlds if capacity is None else capacity.num_places


def has_prior(run: Path) -> bool:
    """True if the run says that each unit is in half of its worlds; without that no bound can be stated."""
    from reticent.worlds.assignment import Assignment
    from reticent.worlds.manifest import read_manifest

    try:
        return read_manifest(run).assignment is Assignment.OVERLAPPING
    except RunDirectoryError:
        return False


def spending_record(state: "CuratorState", *, prior_known: bool) -> dict[str, object]:
    """Collect what a deployment has spent, may spend, and what that bounds. Nothing of S or the posterior.

    Args:
        state: where the deployment stands.
        prior_known: whether bounds can be stated, see `has_prior`; they are None where not.
    """
    account = state.account
    return {
        "charging": state.charging_rule.value,
        "tokens": state.tokens_released,
        "dissenting_steps": state.dissenting_steps,
        "nats_charged": account.spent_nats,
        "nats_cap": account.cap_nats,
        "nats_left": account.left_nats,
        "half_success": account.half_success if prior_known else None,
        "world_success": account.world_success(state.num_worlds) if prior_known else None,
        "worlds": state.num_worlds,
    }


def spending_facts(state: "CuratorState", *, prior_known: bool) -> dict[str, str]:
    """Collect the same for people: rows of `facts`."""
    account = state.account
    bounds = {"bounds": NO_PRIOR}
    if prior_known:
        bounds = bound_facts(account.half_success, account.world_success(state.num_worlds), state.num_worlds)
    return {
        "tokens released": f"{state.tokens_released:,}",
        "dissenting steps": f"{state.dissenting_steps:,}",
        "charged": f"{format_nats(account.spent_nats)}, by the rule {state.charging_rule}",
        "cap": "none" if account.cap_nats is None else format_nats(account.cap_nats),
        "left": "no limit" if account.left_nats is None else format_nats(account.left_nats),
        **bounds,
    }
