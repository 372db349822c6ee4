"""The page to try is opened once the server answers, and never in a bare terminal."""

import http.server
import threading

from reticent.demo import browser


class Handler(http.server.BaseHTTPRequestHandler):
    """Not ready at first, then ready."""

    statuses = iter((503, 200))

    def do_GET(self):
        self.send_response(next(self.statuses))
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_the_page_is_opened_once_the_server_is_ready(monkeypatch):
    opened = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(browser.webbrowser, "open", opened.append)
    monkeypatch.setattr(browser, "_SECONDS_BETWEEN", 0.01)
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    thread = browser.open_when_ready(f"{address}/readyz", f"{address}/try")
    thread.join(timeout=60)
    server.shutdown()
    server.server_close()
    assert opened == [f"{address}/try"]
    assert list(Handler.statuses) == []


def test_nothing_is_opened_without_a_screen(monkeypatch):
    monkeypatch.setattr(browser.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(browser.webbrowser, "open", lambda page: 1 / 0)
    assert browser.open_when_ready("http://127.0.0.1:9/readyz", "http://127.0.0.1:9/try") is None
