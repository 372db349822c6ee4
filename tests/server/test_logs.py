"""The log: one JSON object a line whatever is logged, and repeated trouble counted instead of written."""

import errno
import io
import json
import logging
import subprocess
import sys

from reticent.server.logs import BoundedHandler, JsonFormatter, log_loop_problem
from reticent.server.request_trace import TRACE, RequestTrace

EVERYTHING_THAT_FAILS = """
import logging, sys, threading, warnings
logging.getLogger("early").addHandler(logging.StreamHandler())
from reticent.server.logs import configure_logging
configure_logging()
logging.getLogger("early").error("two\\nlines")
logging.getLogger("reticent.server").info("named", extra={"object": object()})
logging.getLogger("uvicorn.error").error("bad %d arguments", "x")
warnings.warn("old")
class Bad:
    def __del__(self): raise ValueError("gone")
Bad()
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
def deep(n): return deep(n - 1) if n else 1 / 0
deep(900)
"""


def test_everything_that_a_process_can_say_is_json():
    ran = subprocess.run([sys.executable, "-c", EVERYTHING_THAT_FAILS], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    events = [line["event"] for line in lines]
    assert events[:2] == ["two\nlines", "named"]
    assert "could not be logged" in events[2]
    assert events[4:] == ["an object could not be given up", "a thread failed", "the server failed"]
    assert "UserWarning: old" in events[3]
    assert all(len(line.get("traceback", "")) <= 16_000 for line in lines)
    assert "ZeroDivisionError" in lines[-1]["traceback"]


class Log:
    """A logger of its own, its lines, and a clock that stands until it is set."""

    def __init__(self):
        self.now = 0.0
        self.stream = io.StringIO()
        self.handler = BoundedHandler(self.stream, lambda: self.now)
        self.handler.setFormatter(JsonFormatter())
        self.logger = logging.Logger("alone")
        self.logger.addHandler(self.handler)

    @property
    def lines(self):
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def test_trouble_that_repeats_is_counted():
    log = Log()

    def fail(reason):
        log.logger.warning("refused: %s", reason, extra={"refusal": reason})

    for _ in range(1000):
        fail("slow")
    fail("large")
    assert [line["event"] for line in log.lines] == ["refused: slow"] * 10 + ["refused: large"]
    log.now = 10.0
    log.logger.info("something else")
    counted = log.lines[11]
    assert (counted["event"], counted["times"], counted["level"]) == ("repeated", 990, "warning")
    assert counted["repeated_event"] == "refused: %s"
    fail("slow")
    assert log.lines[-1]["event"] == "refused: slow"
    assert len(log.lines) == 14


def test_a_line_written_while_a_request_is_served_has_its_id():
    log = Log()
    token = TRACE.set(RequestTrace("mine"))
    try:
        log.logger.error("in the request")
        log.logger.error("of another", extra={"request_id": "theirs"})
    finally:
        TRACE.reset(token)
    log.logger.error("later")
    assert [line.get("request_id") for line in log.lines] == ["mine", "theirs", None]


def test_counts_are_told_at_the_end_and_what_is_no_trouble_is_always_written():
    log = Log()
    for number in range(100):
        log.logger.info("request %d", number)
        log.logger.error("broken")
    assert len(log.lines) == 110
    log.handler.report()
    log.handler.report()
    assert [line["times"] for line in log.lines if line["event"] == "repeated"] == [90]


def test_want_of_descriptors_is_one_short_line(caplog):
    error = OSError(errno.EMFILE, "Too many open files")
    log_loop_problem(None, {"message": "socket.accept() out of system resource", "exception": error})
    [record] = caplog.records
    assert record.cause == "EMFILE"
    assert not record.exc_info
    log_loop_problem(None, {"message": "another thing", "exception": ValueError("x")})
    assert "another thing" in caplog.records[1].getMessage()
    assert caplog.records[1].exc_info[0] is ValueError
