"""Connections: how many there may be, how long a request's head may take, and how long an unread answer is kept.

Contract. No client holds a connection without use: a request's head arrives within its deadline, as does its body
(`middleware.RequestBody`), an idle connection is closed, and one that does not read its answer is cut. There are never
more connections than the limit and a fixed number beside it, which answer 503 and serve probes. The limit leaves
enough descriptors for the ledger.
"""

import asyncio
import json
import logging
import resource
import socket
from collections.abc import Callable
from typing import ClassVar, Final, Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from reticent.errors import InvalidValueError
from reticent.server.errors import ApiError, head_too_slow, malformed_request
from reticent.server.request_trace import make_identifier
from reticent.server.settings import ClientAddresses, ConnectionLimits

logger = logging.getLogger("reticent.server")

OVER_LIMIT: Final = "over_limit"
"""Key in a request's state, true where its connection is one too many."""

_BESIDE_LIMIT: Final = 32
_OWN_DESCRIPTORS: Final = 128
_FEWEST_CONNECTIONS: Final = 8
_BACKLOG: Final = 512


class ConnectionObserver(Protocol):
    """A counter of connections. Called on the event loop."""

    def count_connection(self, change: int) -> None:
        """Count a connection that was opened (1) or closed (-1)."""
        ...

    def count_refusal(self, reason: str) -> None:
        """Count a connection that was refused or cut."""
        ...


def make_protocol(
    limits: ConnectionLimits, observer: ConnectionObserver, addresses: ClientAddresses
) -> type[H11Protocol]:
    """HTTP/1.1 for uvicorn, with these limits."""

    class Guarded(GuardedConnection):
        _limits = limits
        _observer = observer
        _names_clients = addresses is not ClientAddresses.NEVER

    return Guarded


class GuardedConnection(H11Protocol):
    """One connection under deadlines; made by uvicorn."""

    _limits: ClassVar[ConnectionLimits]
    _observer: ClassVar[ConnectionObserver]
    _names_clients: ClassVar[bool]

    _head_deadline: "_Deadline"
    _write_deadline: "_Deadline"
    _is_silent = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there is room."""
        self._head_deadline = _Deadline(self.loop, self._limits.head_seconds, self._end_slow_head)
        self._write_deadline = _Deadline(self.loop, self._limits.write_seconds, self._cut)
        super().connection_made(transport)
        self._observer.count_connection(1)
        surplus = len(self.connections) - self._limits.max_connections
        if surplus > _BESIDE_LIMIT:
            self._note("too_many_connections")
            transport.abort()
            return
        if surplus > 0:
            self.app_state = self.app_state | {OVER_LIMIT: True}
        self._head_deadline.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget all deadlines."""
        self._observer.count_connection(-1)
        self._head_deadline.stop()
        self._write_deadline.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what the client sent; a head that is not whole yet has a deadline from its first byte on."""
        self._is_silent = False
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._head_deadline.start()
        else:
            self._head_deadline.stop()

    def on_response_complete(self) -> None:
        """Go on to the next request, or close."""
        super().on_response_complete()
        self._await_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._await_reader()

    def pause_writing(self) -> None:
        """Start waiting for a client that reads more slowly than it is answered."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Go on writing."""
        self._write_deadline.stop()
        super().resume_writing()
        self._await_reader()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, in OpenAI's shape."""
        self._refuse(malformed_request())

    def _end_slow_head(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_silent:
            self._note("no_request")
            self.transport.close()
        else:
            self._refuse(head_too_slow(self._limits.head_seconds))

    def _await_reader(self) -> None:
        """Start the deadline of a client that leaves an answer unread, where one is being written or left over."""
        if self.flow.write_paused or (self.transport.is_closing() and self.transport.get_write_buffer_size()):
            self._write_deadline.start()

    def _cut(self) -> None:
        self._note("answer_unread")
        self.transport.abort()

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, where no answer has begun, and close."""
        request_id = make_identifier("req")
        self._note(error.reason, request_id)
        if self.cycle is not None and not self.cycle.response_complete:
            # The application must not answer as well.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body).encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                "x-request-id": request_id,
                **{name.lower(): value for name, value in error.headers.items()},
            }
            head = h11.Response(
                status_code=error.status,
                reason=STATUS_PHRASES[error.status],
                headers=[(name.encode(), value.encode()) for name, value in headers.items()],
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._await_reader()

    def _note(self, reason: str, request_id: str | None = None) -> None:
        self._observer.count_refusal(reason)
        fields: dict[str, str] = {"refusal": reason}
        if request_id is not None:
            fields["request_id"] = request_id
        if self._names_clients and self.client is not None:
            fields["client"] = self.client[0]
        logger.warning("connection refused", extra=fields)


class _Deadline:
    """A moment after which something is done, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, act: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._act = act
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Run from now on; of no effect while it runs."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._act)

    def stop(self) -> None:
        """Stop; it can be started again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ListeningServer(uvicorn.Server):
    """uvicorn, accepting one connection at a time.

    asyncio accepts as many connections in a row as its backlog says, also where each of them fails for want of a
    descriptor, and starts as many timers to try again. With a backlog of one there is one try a second. The kernel's
    queue of connections gets its length afterwards.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of a host; with port 0, to one free port.

    Raises:
        InvalidValueError: the host has no address, or the port cannot be had.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((address[0], port, *address[2:]))
            port = listening.getsockname()[1]
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise InvalidValueError(
            f"the server cannot bind to {host} port {port} ({error.strerror}); "
            "choose another --port or --host, or end the process that has it"
        ) from None
    return sockets


def raise_connection_limit(wanted: int) -> int:
    """Raise the soft limit on descriptors as far as `wanted` connections need it; return how many there may be.

    Raises:
        InvalidValueError: there is no room for connections at all.
    """
    beside = _OWN_DESCRIPTORS + _BESIDE_LIMIT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + beside:
        soft = wanted + beside if hard == resource.RLIM_INFINITY else min(hard, wanted + beside)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    permitted = wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - beside)
    if permitted < min(wanted, _FEWEST_CONNECTIONS):
        raise InvalidValueError(
            f"this process may open {soft} files, too few for a server; allow at least "
            f"{beside + _FEWEST_CONNECTIONS} (`ulimit -n`, or LimitNOFILE= in a unit)"
        )
    return permitted
