"""The dashboard's numbers: budget, bounds, a projection, tokens by the hour, times, refusals, keys.

Nothing here depends on the realised world beyond released tokens, and what depends on dissent is as coarse as in the
metrics.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, TypeAdapter

from reticent import __version__
from reticent.guarantees import Guarantee
from reticent.server.corpus_schemas import CorpusGuarantee
from reticent.server.releasing import num_worlds_of
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
    """Everything on the page but what belongs to one guarantee."""

    model: str
    version: str
    now: int
    started: int
    ready: bool
    reason: str | None
    worlds: int
    on_exhausted: str
    budget_spent: bool
    tokens_released: int
    tokens_left: int | None
    tokens_per_hour: float
    hours_left: float | None
    answers_active: int
    answers_waiting: int
    max_concurrent: int
    durations: list[Duration]
    refusals: list[Refusals]
    hours: list[Hour]
    keys: list[KeyUse]


class RealisedWorldSummary(Summary):
    """The page of a realised-world deployment. Bounds are chances; `*_at_cap` is for the whole budget spent."""

    guarantee: Literal[Guarantee.REALISED_WORLD]
    step_nats: float
    charging: str
    nats_spent: float
    nats_cap: float | None
    nats_left: float | None
    half_question: str
    half_meaning: str
    not_bounded: str
    half_bound: float
    half_at_cap: float | None
    world_question: str
    world_bound: float
    world_at_cap: float | None
    dissent_share: float | None


class CorpusSummary(Summary):
    """The page of a corpus deployment. Bounds are chances; `*_at_cap` is for the whole budget spent.

    `*_in_blocks` is a second, tighter reading of the same tokens, or None where it is not certified.
    """

    guarantee: CorpusGuarantee
    relation: str
    neighbours: str
    rho_a_token: float
    rho_spent: float
    rho_cap: float | None
    rho_left: float | None
    membership_question: str
    membership_meaning: str
    not_covered: str
    membership_bound: float
    membership_at_cap: float | None
    membership_in_blocks: float | None
    epsilon: float
    epsilon_at_cap: float | None
    epsilon_in_blocks: float | None
    delta: float
    clip: float
    gain: float
    temperature: float
    sway: Annotated[float, Field(description="w, the most that all worlds together move a score, in nats.")]
    candidates: int


AnySummary = Annotated[RealisedWorldSummary | CorpusSummary, Field(discriminator="guarantee")]
_SUMMARIES: Final[TypeAdapter[RealisedWorldSummary | CorpusSummary]] = TypeAdapter(AnySummary)


def summarise(service: Service, now: int, reason: str | None) -> RealisedWorldSummary | CorpusSummary:
    """Collect the page's numbers; asks the database, so call it off the event loop.

    Args:
        service: the running server.
        now: seconds since 1970.
        reason: what keeps the server from answering, or None.

    Raises:
        StorageError: the database cannot be read.
    """
    curator, settings = service.curator, service.settings
    own = service.figures.dashboard()
    hours = _count_by_hour(service, now)
    per_hour, tokens_left = _tokens_per_hour(hours, now), own["tokens_left"]
    common = {
        "model": settings.model_name,
        "version": __version__,
        "now": now,
        "started": service.started,
        "ready": reason is None,
        "reason": reason,
        "worlds": num_worlds_of(curator),
        "on_exhausted": settings.on_exhausted.value,
        "budget_spent": not curator.account.can_afford(settings.decoding.reserve_units),
        "tokens_released": curator.state.tokens_released,
        "tokens_per_hour": per_hour,
        "hours_left": tokens_left / per_hour if tokens_left is not None and per_hour else None,
        "answers_active": service.batcher.num_active,
        "answers_waiting": service.batcher.num_waiting,
        "max_concurrent": settings.limits.max_concurrent,
        "durations": _summarise_durations(service.metrics.times),
        "refusals": [Refusals(reason=reason, count=count) for reason, count in service.metrics.refusals.items()],
        "hours": hours,
        "keys": _summarise_keys(service, now),
    }
    return _SUMMARIES.validate_python(common | own)


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
