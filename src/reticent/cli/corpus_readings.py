"""The cost and the bound of a corpus deployment's tokens as commands show them: a JSON object, or a table of facts."""

import math

from reticent.cli.output import percent_at_most
from reticent.dp.accounting import units_to_rho
from reticent.dp.blocks import BLOCK_TOKENS
from reticent.dp.plan import CorpusPlan
from reticent.dp.relations import DESCRIPTIONS
from reticent.dp.wording import MEMBERSHIP_QUESTION
from reticent.guarantees import Guarantee


def plan_record(plan: CorpusPlan) -> dict[str, object]:
    """Collect what a number of tokens costs and bounds, and the constants under which it does."""
    settings, blocks = plan.settings, plan.blocks
    return {
        "guarantee": Guarantee.CORPUS.value,
        "tokens": plan.tokens,
        "rho": plan.rho,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "membership_success": plan.membership_success,
        "relation": settings.relation.value,
        "clip": settings.clip,
        "gain": settings.gain,
        "temperature": settings.temperature,
        "w": settings.w,
        "candidates": settings.num_candidates,
        "worlds": settings.num_worlds,
        "rho_per_token": units_to_rho(settings.charge_units),
        "in_blocks": None
        if blocks is None
        else {"membership_success": blocks.membership_success, "epsilon": blocks.epsilon(plan.delta)},
    }


def plan_facts(plan: CorpusPlan) -> dict[str, str]:
    """Collect the same for people: rows of `facts`."""
    settings = plan.settings
    return {
        "tokens": f"{plan.tokens:,}",
        "charge per token": f"rho {units_to_rho(settings.charge_units):.6g}, whatever the token",
        **reading_facts(plan),
        "gain, clip, temperature": f"{settings.gain:.6g}, {settings.clip:.6g} nats, {settings.temperature:.6g}",
        "worlds move a score by": f"at most {settings.w:.6g} nats",
    }


def reading_facts(plan: CorpusPlan) -> dict[str, str]:
    """Collect the bound on what a number of tokens tells, in each of its readings."""
    blocks = plan.blocks
    in_blocks = {}
    if blocks is not None:
        in_blocks[f"the same in blocks of {BLOCK_TOKENS}"] = (
            f"right at most {percent_at_most(blocks.membership_success)}, "
            f"epsilon {epsilon_at_most(blocks.epsilon(plan.delta))}"
        )
    return {
        "total": f"rho {plan.rho:.6g}",
        **bound_facts_of(plan),
        **in_blocks,
        "neighbouring corpora": f"{DESCRIPTIONS[plan.settings.relation]} ({plan.settings.relation})",
    }


def bound_facts_of(plan: CorpusPlan) -> dict[str, str]:
    """Collect ε and the success that a number of tokens gives, as they are stated first."""
    return {
        f"epsilon at delta {plan.delta:g}": epsilon_at_most(plan.epsilon),
        MEMBERSHIP_QUESTION: f"right at most {percent_at_most(plan.membership_success)} (a guess: 50 %)",
    }


def epsilon_at_most(epsilon: float) -> str:
    """A bound on ε, rounded up to four decimals so that it still bounds."""
    return f"{math.ceil(epsilon * 10_000) / 10_000:.4f}"
