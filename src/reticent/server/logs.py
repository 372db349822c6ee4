"""Structured logs: one JSON object a line, on standard error.

Contract: no prompt, answer, token or key is logged, unless the operator asked for texts with `--log-texts`; nothing
that is secret reaches a logger at all.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

logger = logging.getLogger("reticent.server")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """A log record as one JSON object; what was passed as `extra` becomes fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False, default=str)


def configure_logging() -> None:
    """Send this server's and uvicorn's logs to standard error as JSON. uvicorn's access log is replaced by ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("reticent", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(logging.INFO)
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate = [], False
