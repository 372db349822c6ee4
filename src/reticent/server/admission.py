"""Checks of a request before any work is done for it: limits, budget, quota and rate.

Contract: a request is measured by what it asks for, `n` times its prompts and the longest answer to each. That is taken
from its key's rate here, before a prompt is tokenised, and what was not written is given back when its answers end. A
request that is refused after this point for what it holds gives nothing back, so that refused work has its price.
"""

import math
from dataclasses import dataclass

from reticent.ledger.api_keys import ApiKey
from reticent.server import errors
from reticent.server.errors import ApiError
from reticent.server.metering import KeyMeter
from reticent.server.service import Service
from reticent.server.settings import Limits, OnExhausted


@dataclass(frozen=True)
class Admission:
    """Leave for a request to be worked on.

    Attributes:
        key: the asking key, or None.
        meter: the key's.
        reserved: tokens taken from its rate.
    """

    key: ApiKey | None
    meter: KeyMeter
    reserved: int

    @property
    def key_id(self) -> str | None:
        """The key's identifier, or None."""
        return None if self.key is None else self.key.id

    def give_back(self, num_written: int = 0) -> None:
        """Return what was reserved and not written to the key's rate."""
        self.meter.give_back(self.reserved - num_written)


@dataclass(frozen=True)
class Extent:
    """The amount that a request asks for.

    Attributes:
        num_choices: answers to each prompt.
        num_prompts: how many prompts.
        max_tokens: longest answer, or None where the request names none.
        default_max_tokens: longest answer where it names none.
        length_field: the field that names it.
    """

    num_choices: int
    num_prompts: int
    max_tokens: int | None
    default_max_tokens: int
    length_field: str = "max_tokens"

    def default_within(self, limits: Limits) -> int:
        """Longest answer where the request names none."""
        return min(self.default_max_tokens, limits.max_tokens)


def admit(service: Service, key: ApiKey | None, extent: Extent, reserve_units: int) -> Admission:
    """Hold a request against limits, budget, quota and rate, and take what it may write from its key's rate.

    Args:
        service: the server.
        key: the asking key, or None.
        extent: how much it asks for.
        reserve_units: the most that one of its tokens can cost, in units of the account.

    Raises:
        ApiError: status 400, 429 or 503.
    """
    limits = service.settings.limits
    _check_limits(extent, limits)
    if not service.batcher.is_running:
        raise errors.shutting_down()
    if service.settings.on_exhausted is OnExhausted.REFUSE and not service.curator.account.can_afford(reserve_units):
        raise errors.budget_exhausted()
    longest = extent.default_within(limits) if extent.max_tokens is None else extent.max_tokens
    admission = Admission(key, service.meters.of(key), extent.num_choices * extent.num_prompts * longest)
    _reserve(admission)
    return admission


def _check_limits(extent: Extent, limits: Limits) -> None:
    most = min(limits.max_answers, limits.max_queue + limits.max_concurrent)
    if extent.num_choices * extent.num_prompts > most:
        raise ApiError(
            400,
            f"One request may have {most} answers here, n times its prompts, and this one asks for "
            f"{extent.num_choices * extent.num_prompts}. Send several requests.",
            param="n" if extent.num_choices > 1 else "prompt",
        )
    if extent.max_tokens is not None and extent.max_tokens > limits.max_tokens:
        raise ApiError(
            400,
            f"An answer may have {limits.max_tokens} tokens here, and this request asks for {extent.max_tokens}. "
            f"Lower {extent.length_field}.",
            param=extent.length_field,
        )


def _reserve(admission: Admission) -> None:
    if admission.meter.is_exhausted:
        raise errors.quota_exhausted()
    wait = admission.meter.reserve(admission.reserved)
    if wait == math.inf:
        raise ApiError(
            429,
            f"This request may write {admission.reserved} tokens, more than its API key may have in a minute. "
            "Lower max_tokens or n.",
            kind="rate_limit_error",
            param="max_tokens",
            code="rate_limit_exceeded",
            reason="request_above_rate",
        )
    if wait > 0:
        raise ApiError(
            429,
            "This API key has used its tokens of the last minute. Try again later.",
            kind="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after=math.ceil(wait),
            reason="rate",
        )
