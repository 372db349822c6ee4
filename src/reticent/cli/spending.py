"""The spending of a deployment as commands show it: one JSON object, or a table of facts."""

from typing import TYPE_CHECKING

from reticent.cli.output import bound_facts, format_nats

if TYPE_CHECKING:
    from reticent.pac.curator import CuratorState


def spending_record(state: "CuratorState") -> dict[str, object]:
    """Collect what a deployment has spent, may spend, and what that bounds. Nothing of S or the posterior."""
    account = state.account
    return {
        "tokens": state.tokens_released,
        "dissenting_steps": state.dissenting_steps,
        "nats_charged": account.spent_nats,
        "nats_cap": account.cap_nats,
        "nats_left": account.left_nats,
        "half_success": account.half_success,
        "world_success": account.world_success(state.num_worlds),
        "worlds": state.num_worlds,
    }


def spending_facts(state: "CuratorState") -> dict[str, str]:
    """Collect the same for people: rows of `facts`."""
    account = state.account
    return {
        "tokens released": f"{state.tokens_released:,}",
        "dissenting steps": f"{state.dissenting_steps:,}",
        "charged": format_nats(account.spent_nats),
        "cap": "none" if account.cap_nats is None else format_nats(account.cap_nats),
        "left": "no limit" if account.left_nats is None else format_nats(account.left_nats),
        **bound_facts(account.half_success, account.world_success(state.num_worlds), state.num_worlds),
    }
