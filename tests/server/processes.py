"""`reticent serve` as a process of its own, for tests that kill it, starve it or flood it."""

import contextlib
import json
import os
import signal
import socket
import threading
import time

import httpx


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Serving:
    def __init__(self, launcher, errors, run, options):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.errors = errors
        self._launcher = launcher
        launcher.stdin.write(json.dumps(["serve", str(run), "--port", str(self.port), *options]) + "\n")
        launcher.stdin.flush()
        self.process = int(launcher.stdout.readline())
        self._wait_until_ready()

    def _wait_until_ready(self):
        deadline = time.monotonic() + 60
        while True:
            assert time.monotonic() < deadline, "".join(self.errors)
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return
            time.sleep(0.02)

    def end(self, number):
        """Send a signal and return the exit status; a server that does not end for it is killed, with status -9."""
        os.kill(self.process, number)
        too_late = threading.Timer(120, os.kill, (self.process, signal.SIGKILL))
        too_late.start()
        try:
            return int(self._launcher.stdout.readline())
        finally:
            too_late.cancel()

    def log(self):
        """Its log from its first line on, after the command's own notes; fails where a line is no JSON object."""
        lines = list(self.errors)
        first = next(place for place, line in enumerate(lines) if line.startswith("{"))
        return [json.loads(line) for line in lines[first:]]
