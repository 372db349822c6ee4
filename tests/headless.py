"""Chromium without a window, driven over a pipe by the DevTools protocol: no driver, no port, nothing to install."""

import base64
import contextlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = Path("/usr/bin/chromium")


class Browser:
    """One page. Messages are JSON, ended by a NUL; Chromium reads from descriptor 3 and writes to 4."""

    def __init__(self, write, read):
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session = None
        self.problems = []
        self.requested = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._note(reply)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression, seconds=20):
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"not so within {seconds} seconds: {expression}"
            time.sleep(0.05)

    def open(self, url, width, height, dark=False):
        scale = 2 if width < 600 else 1
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def screenshot(self):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def _receive(self):
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(event["params"]["exceptionDetails"]["text"])
            case "Log.entryAdded":
                self.problems.append(event["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requested.append(event["params"]["request"]["url"])


@contextlib.contextmanager
def browser():
    to_chromium, write = os.pipe()
    read, from_chromium = os.pipe()

    def place_descriptors():
        os.dup2(to_chromium, 3, inheritable=True)
        os.dup2(from_chromium, 4, inheritable=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]  # fmt: skip
        process = subprocess.Popen(
            [CHROMIUM, *arguments],
            preexec_fn=place_descriptors,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_chromium)
        os.close(from_chromium)
        try:
            yield Browser(write, read)
        finally:
            process.terminate()
            process.wait(20)
            os.close(write)
            os.close(read)
