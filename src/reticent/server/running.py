"""uvicorn around the application: address, graceful shutdown, logs."""

import logging
import signal
import time
from dataclasses import replace
from types import FrameType
from typing import Final

import uvicorn

from reticent.ledger.api_keys import KeyTable
from reticent.server.app import create_app
from reticent.server.auth import is_loopback
from reticent.server.connections import (
    make_protocol,
    open_sockets,
    raise_connection_limit,
)
from reticent.server.draining import FLUSH_SECONDS, DrainingServer
from reticent.server.logs import configure_logging
from reticent.server.service import Service

LOOPBACK: Final = "127.0.0.1"

logger = logging.getLogger("reticent.server")


def choose_host(host: str, table: KeyTable) -> tuple[str, str | None]:
    """Choose the address to bind to; return it with a warning for the operator about who has access, or None.

    Raises:
        StorageError: the keys cannot be read.
    """
    stored_keys = table.read()
    if any(stored.key.is_live(time.time()) for stored in stored_keys):
        return host, None
    if stored_keys:
        return host, (
            "all API keys of this deployment are revoked or have expired, so every request will be refused. Make a key "
            "with `reticent keys create`; it is in force at once"
        )
    bound_to = host if is_loopback(host) else LOOPBACK
    instead = "" if bound_to == host else f" It is bound to {bound_to} instead of {host}."
    return bound_to, (
        "OPEN: this deployment has no API key. Whoever reaches this server, any user and program of this machine and "
        f"whatever passes requests on to it, may read its metrics and spend its whole budget.{instead} Make a key with "
        "`reticent keys create` and start again"
    )


def serve(service: Service, host: str, port: int) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; answers in progress are then finished within the grace (`draining`).

    Raises:
        InvalidValueError: the address cannot be had, or this process may open too few files.
    """
    drain_seconds = service.settings.drain_seconds
    wanted = service.settings.connections
    limits = replace(wanted, max_connections=raise_connection_limit(wanted.max_connections))
    sockets = open_sockets(host, port)
    log_handler = configure_logging()
    config = uvicorn.Config(
        create_app(service, drain_seconds),
        http=make_protocol(limits, service.metrics, limits.addresses),
        ws="none",
        backlog=1,
        forwarded_allow_ips=list(limits.trusted_proxies),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal it stopped for once more at its end; by then there is nothing left to stop.
        signal.signal(stop_signal, _ignore)
    logger.info(
        "serving",
        extra={
            "host": host,
            "port": sockets[0].getsockname()[1],
            "model": service.settings.model_name,
            "max_connections": limits.max_connections,
        },
    )
    server = DrainingServer(config, service.batcher, drain_seconds)
    server.listen_to_hangup()
    server.run(sockets)
    log_handler.report()
    logger.info("stopped", extra={"tokens_released": service.curator.state.tokens_released})


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
