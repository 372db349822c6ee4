"""The application: routes, middleware, errors, the OpenAPI document, and the engine's life within the server's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from reticent import __version__
from reticent.server import routes_openai, routes_operator, routes_try
from reticent.server.error_handlers import install_error_handlers
from reticent.server.logs import log_loop_problem
from reticent.server.middleware import AccessLog, HeadAsGet, RequestBody
from reticent.server.readiness import ReadinessCheck
from reticent.server.service import Service

DESCRIPTION = (
    "OpenAI's interface to a language model adapted on private text. Every released token is charged to one privacy "
    "budget, before it leaves; `usage.privacy` says what a request cost, and its key so far. Fields "
    "that would leak, or that cannot be honoured, are refused with status 400 and the reason."
)


def create_app(service: Service, drain_seconds: float = 30.0) -> FastAPI:
    """The ASGI application over a service; its lifespan starts the engine's thread and drains it.

    Args:
        service: all parts of the server, not yet started.
        drain_seconds: seconds for answers in progress once the server stops.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(log_loop_problem)
        service.batcher.start()
        watching = asyncio.create_task(service.key_watch.run())
        try:
            yield
        finally:
            await asyncio.to_thread(service.batcher.close, drain_seconds)
            watching.cancel()
            service.tokenising.close()

    # No interactive documentation: its pages load scripts from elsewhere.
    app = FastAPI(
        title="Reticent",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # A page elsewhere can make a browser post text without a content type, and without asking first.
        strict_content_type=True,
    )
    app.state.service = service
    app.state.readiness = ReadinessCheck(service)
    app.include_router(routes_openai.router)
    app.include_router(routes_operator.router)
    app.include_router(routes_try.router)
    install_error_handlers(app)
    limits, connections = service.settings.limits, service.settings.connections
    app.add_middleware(RequestBody, max_bytes=limits.max_body_bytes, seconds=connections.body_seconds)
    app.add_middleware(AccessLog, metrics=service.metrics, addresses=connections.addresses)
    app.add_middleware(HeadAsGet)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without the statuses that FastAPI adds and this server never sends."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            document.get("components", {}).get("schemas", {}).pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema
