"""The spending of a deployment as commands show it: one JSON object, or a table of facts."""

from pathlib import Path
from typing import TYPE_CHECKING

from reticent.cli.output import bound_facts, format_nats
from reticent.errors import RunDirectoryError

if TYPE_CHECKING:
    from reticent.pac.curator import CuratorState


NO_PRIOR = "none: the run does not say who is in which world, so no prior is known"


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
