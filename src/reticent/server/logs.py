"""Structured logs: one JSON object a line, on standard error, bounded whatever happens.

Contract: no prompt, answer, token or key is logged, unless the operator asked for texts with `--log-texts`; nothing
that is secret reaches a logger at all. Every line is one JSON object, also for warnings, other libraries and exceptions
that nobody caught. Warnings and errors that one place in the code repeats are counted rather than written again, so
that trouble cannot fill the disk. A line written while a request is served carries the request's id.
"""

import asyncio
import contextlib
import errno
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from reticent.server.request_trace import TRACE

logger = logging.getLogger("reticent.server")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_MAX_TRACEBACK: Final = 16_000
_REPEATS_WRITTEN: Final = 10
_REPEAT_SECONDS: Final = 10.0
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class JsonFormatter(logging.Formatter):
    """A log record as one JSON object; what was passed as `extra` becomes fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage().rstrip(),
        }
        if (trace := TRACE.get()) is not None:
            entry["request_id"] = trace.id
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info and record.exc_info[0] is not None:
            # The end of a traceback says what went wrong.
            entry["traceback"] = self.formatException(record.exc_info)[-_MAX_TRACEBACK:]
        return json.dumps(entry, ensure_ascii=False, default=str)


@dataclass
class _Repeats:
    """Records of one origin since `started`: how many were written, how many only counted, and the last of those."""

    started: float
    written: int = 0
    counted: int = 0
    last: logging.LogRecord | None = None


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes records, at most ten warnings or errors of one origin in ten seconds.

    Further ones are counted. One line, `"event": "repeated"`, gives their number once the ten seconds are over and
    something is logged, or when the handler is flushed at the end. An origin is a line of code, the kind of exception,
    and the reason of a refusal.

    Args:
        stream: where lines go.
        clock: seconds, monotonic.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._repeats: dict[Hashable, _Repeats] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count one record."""
        now = self._clock()
        self._report(lambda repeats: now - repeats.started >= _REPEAT_SECONDS)
        if record.levelno >= logging.WARNING:
            repeats = self._repeats.setdefault(_origin(record), _Repeats(now))
            if repeats.written >= _REPEATS_WRITTEN:
                repeats.counted, repeats.last = repeats.counted + 1, record
                return
            repeats.written += 1
        super().emit(record)

    def report(self) -> None:
        """Write all numbers that are still due."""
        with self.lock or contextlib.nullcontext():
            self._report(lambda _: True)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name logging calls
        """Say in one line that a record could not be written; a stream that takes nothing is left alone."""
        kind = getattr(sys.exc_info()[0], "__name__", "unknown")
        line = {"level": "error", "event": f"a record could not be logged ({kind})", "logger": record.name}
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(json.dumps(line) + self.terminator)

    def _report(self, is_due: Callable[[_Repeats], bool]) -> None:
        for origin in [origin for origin, repeats in self._repeats.items() if is_due(repeats)]:
            repeats = self._repeats.pop(origin)
            if repeats.last is None:
                continue
            last = repeats.last
            summary = logging.LogRecord(last.name, last.levelno, last.pathname, last.lineno, "repeated", None, None)
            summary.__dict__ |= {"repeated_event": str(last.msg).rstrip(), "times": repeats.counted}
            super().emit(summary)


def _origin(record: logging.LogRecord) -> Hashable:
    kind = record.exc_info[0] if record.exc_info else None
    return record.pathname, record.lineno, kind, getattr(record, "refusal", None)


def configure_logging() -> BoundedHandler:
    """Send every log of this process to standard error as JSON; return the handler, to be asked for its last numbers.

    uvicorn's access log is replaced by ours.
    """
    handler = BoundedHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for known in [*logging.root.manager.loggerDict.values()]:
        if isinstance(known, logging.Logger):
            known.handlers, known.propagate = [], True
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in ("reticent", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").propagate = False
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: logger.critical("the server failed", exc_info=(kind, error, trace))
    threading.excepthook = lambda failed: logger.critical(
        "a thread failed",
        exc_info=failed.exc_value,
        extra={"in_thread": getattr(failed.thread, "name", None)},
    )
    sys.unraisablehook = lambda failed: logger.error("an object could not be given up", exc_info=failed.exc_value)
    return handler


def log_loop_problem(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that reached no other handler; an exception handler for asyncio."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        cause = errno.errorcode[error.errno]
        logger.error("no descriptor or memory is left for further connections; they wait", extra={"cause": cause})
    else:
        logger.error("event loop: %s", context["message"], exc_info=error)
