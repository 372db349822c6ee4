"""The dashboard's numbers: budget, bounds, a projection, tokens by the hour, times, refusals, keys.

Nothing here depends on the realised world beyond released tokens, and what depends on dissent is as coarse as in the
metrics.
"""

from typing import Final

from pydantic import BaseModel

from reticent import __version__
from reticent.pac.wording import HALF_MEANING, HALF_QUESTION, NOT_BOUNDED, WORLD_QUESTION
from reticent.server.service import Service
from reticent.server.timings import AnswerTimes

HOURS_SHOWN: Final = 48
_HOURS_AVERAGED: Final = 24
_SECONDS_AN_HOUR: Final = 3600


class Hour(BaseModel):
    """Tokens released in the hour that starts at `start` (seconds since 1970)."""

    start: int
    tokens: int


class KeyUse(BaseModel):
    """An API key and what it has used."""

    id: str
    name: str
    scopes: list[str]
    tokens_used: int
    total_tokens: int | None
    tokens_per_minute: int | None
    expires: int | None
    revoked: bool
    live: bool


class Duration(BaseModel):
    """Median and 95th percentile of a kind of duration, in seconds, over the latest 1,000; None before the first."""

    name: str
    median: float | None
    ninety_fifth: float | None


class Refusals(BaseModel):
    """The number of requests and connections refused for one reason since the start."""

    reason: str
    count: int


class Summary(BaseModel):
    """Everything on the page. Bounds are chances; `*_at_cap` is what they will be once the whole budget is spent."""

    model: str
    version: str
    now: int
    started: int
    ready: bool
    reason: str | None
    worlds: int
    on_exhausted: str
    step_nats: float
    charging: str
    budget_spent: bool
    tokens_released: int
    tokens_left: int | None
    nats_spent: float
    nats_cap: float | None
    nats_left: float | None
    half_question: str = HALF_QUESTION
    half_meaning: str = HALF_MEANING
    not_bounded: str = NOT_BOUNDED
    half_bound: float
    half_at_cap: float | None
    world_question: str = WORLD_QUESTION
    world_bound: float
    world_at_cap: float | None
    tokens_per_hour: float
    hours_left: float | None
    dissent_share: float | None
    answers_active: int
    answers_waiting: int
    max_concurrent: int
    durations: list[Duration]
    refusals: list[Refusals]
    hours: list[Hour]
    keys: list[KeyUse]


def summarise(service: Service, now: int, reason: str | None) -> Summary:
    """Collect the page's numbers; asks the database, so call it off the event loop.

    Args:
        service: the running server.
        now: seconds since 1970.
        reason: what keeps the server from answering, or None.

    Raises:
        StorageError: the database cannot be read.
    """
    curator, settings = service.curator, service.settings
    account, charging = service.metrics.spending.account, settings.decoding.charging
    at_cap, tokens_left = account.at_cap, account.tokens_left(charging)
    hours = _count_by_hour(service, now)
    per_hour = _tokens_per_hour(hours, now)
    return Summary(
        model=settings.model_name,
        version=__version__,
        now=now,
        started=service.started,
        ready=reason is None,
        reason=reason,
        worlds=curator.num_worlds,
        on_exhausted=settings.on_exhausted.value,
        step_nats=charging.step_budget,
        charging=charging.rule.value,
        budget_spent=not curator.account.can_afford(charging.reserve_units),
        tokens_released=curator.state.tokens_released,
        tokens_left=tokens_left,
        nats_spent=account.spent_nats,
        nats_cap=account.cap_nats,
        nats_left=account.left_nats,
        half_bound=account.half_success,
        half_at_cap=None if at_cap is None else at_cap.half_success,
        world_bound=account.world_success(curator.num_worlds),
        world_at_cap=None if at_cap is None else at_cap.world_success(curator.num_worlds),
        tokens_per_hour=per_hour,
        hours_left=tokens_left / per_hour if tokens_left is not None and per_hour else None,
        dissent_share=service.metrics.dissent.share,
        answers_active=service.batcher.num_active,
        answers_waiting=service.batcher.num_waiting,
        max_concurrent=settings.limits.max_concurrent,
        durations=_summarise_durations(service.metrics.times),
        refusals=[Refusals(reason=reason, count=count) for reason, count in service.metrics.refusals.items()],
        hours=hours,
        keys=_summarise_keys(service, now),
    )


def _summarise_durations(times: AnswerTimes) -> list[Duration]:
    kinds = {"start (time in the queue)": times.queue, "first token": times.first_token, "end": times.whole}
    return [
        Duration(name=name, median=timing.quantile(0.5), ninety_fifth=timing.quantile(0.95))
        for name, timing in kinds.items()
    ]


def _count_by_hour(service: Service, now: int) -> list[Hour]:
    """The last 48 hours, empty ones included."""
    first = (now // _SECONDS_AN_HOUR - HOURS_SHOWN + 1) * _SECONDS_AN_HOUR
    released = dict(service.usage.tokens_by_hour(first))
    starts = range(first, first + HOURS_SHOWN * _SECONDS_AN_HOUR, _SECONDS_AN_HOUR)
    return [Hour(start=start, tokens=released.get(start, 0)) for start in starts]


def _tokens_per_hour(hours: list[Hour], now: int) -> float:
    """Tokens an hour over the last day, or over the time since the first token if that is shorter."""
    recent = hours[-_HOURS_AVERAGED:]
    first = next((hour.start for hour in recent if hour.tokens), now)
    elapsed = max(1.0, (now - first) / _SECONDS_AN_HOUR)
    return sum(hour.tokens for hour in recent) / elapsed


def _summarise_keys(service: Service, now: int) -> list[KeyUse]:
    used = service.meters.used()
    return [
        KeyUse(
            id=key.id,
            name=key.name,
            scopes=sorted(key.scopes),
            tokens_used=used.get(key.id, 0),
            total_tokens=key.total_tokens,
            tokens_per_minute=key.tokens_per_minute,
            expires=key.expires,
            revoked=key.revoked is not None,
            live=key.is_live(now),
        )
        for key in (stored.key for stored in service.keys.current())
    ]
