"""The routes of whoever runs the server: health, metrics and the dashboard."""

import asyncio
import time
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field

from reticent.server.auth import Administrating
from reticent.server.dashboard.summary import AnySummary, CorpusSummary, RealisedWorldSummary, summarise
from reticent.server.pages import page_file
from reticent.server.readiness import Readiness, ReadinessCheck
from reticent.server.routes_openai import REFUSALS
from reticent.server.service import Service

router = APIRouter()

_ADMIN_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {status: REFUSALS[status] for status in (401, 403, 503)}


class Health(BaseModel):
    """True if the process works."""

    status: Literal["ok", "engine stopped"]


class ReadinessReport(BaseModel):
    """True if requests would be answered now."""

    ready: bool
    reason: str | None
    budget_spent: Annotated[
        bool,
        Field(description="The budget covers no further token; ready all the same where the public model continues."),
    ]


@router.get("/health", response_model=Health, responses={503: {"model": Health}})
@router.get("/healthz", response_model=Health, responses={503: {"model": Health}})
async def healthz(request: Request) -> JSONResponse:
    """True if the process works; if not, it should be started again."""
    alive = request.app.state.service.batcher.is_alive
    return JSONResponse({"status": "ok" if alive else "engine stopped"}, 200 if alive else 503)


@router.get("/readyz", response_model=ReadinessReport, responses={503: {"model": ReadinessReport}})
async def readyz(request: Request) -> JSONResponse:
    """True if requests would be answered now: the engine runs, the ledger can be written, and the budget lasts."""
    found = await _readiness(request)
    report = ReadinessReport(ready=found.reason is None, reason=found.reason, budget_spent=found.budget_spent)
    return JSONResponse(report.model_dump(), 200 if report.ready else 503)


async def _readiness(request: Request) -> Readiness:
    check: ReadinessCheck = request.app.state.readiness
    return await check.run()


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_ADMIN_REFUSALS},
)
async def metrics(request: Request, _: Administrating) -> Response:
    """Metrics for Prometheus."""
    return Response(request.app.state.service.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/dashboard/data", response_model=AnySummary, responses=_ADMIN_REFUSALS)
async def dashboard_data(request: Request, _: Administrating) -> RealisedWorldSummary | CorpusSummary:
    """Serve the dashboard's numbers."""
    service: Service = request.app.state.service
    found = await _readiness(request)
    return await asyncio.to_thread(summarise, service, int(time.time()), found.reason)


@router.get("/", include_in_schema=False)
async def dashboard() -> Response:
    """The dashboard's page. It holds no data; those need a key, which the page asks for."""
    return page_file("index.html")


@router.get("/dashboard/{name}", include_in_schema=False)
async def dashboard_file(name: str) -> Response:
    """A script, style or picture of the pages."""
    return page_file(name)
