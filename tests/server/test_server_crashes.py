"""The command as a process: kill -9 under load, restart, SIGTERM, two servers, loopback."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from reticent.cli import main as cli
from reticent.cli.deployment import run_id
from reticent.ledger.database import Database
from reticent.ledger.reading import LedgerReader
from reticent.ledger.secret import Keyring

ASK = {"model": "run", "prompt": "abc"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def deployment(served_run, tmp_path):
    """A copy of the run with a ledger of its own, and an environment with a keyring of its own."""
    run = tmp_path / "run"
    run.mkdir()
    for path in served_run.iterdir():
        if path.is_file():
            (run / path.name).hardlink_to(path)
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path / "config"), "OMP_NUM_THREADS": "1"}
    environment.pop("RETICENT_KEY", None)
    return run, environment


@pytest.fixture
def serve(deployment):
    """A function that starts `reticent serve` on the deployment, in a process of its own."""
    _, environment = deployment
    script = Path(__file__).with_name("launch_commands.py")
    with subprocess.Popen(
        [sys.executable, script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        errors = []
        reader = threading.Thread(target=lambda: errors.extend(launcher.stderr), daemon=True)
        reader.start()
        yield lambda *options: Serving(launcher, errors, deployment[0], options)
        launcher.stdin.close()
        launcher.kill()
        reader.join(10)


class Serving:
    def __init__(self, launcher, errors, run, options):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.errors = errors
        self._launcher = launcher
        launcher.stdin.write(json.dumps(["serve", str(run), "--port", str(self.port), *options]) + "\n")
        launcher.stdin.flush()
        self._process = int(launcher.stdout.readline())
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
        os.kill(self._process, number)
        return int(self._launcher.stdout.readline())


def read_ledger(run, environment, database_url=None):
    keyring = Keyring.of_user(environment)
    with LedgerReader(run, run_id(run), keyring, Database.of_run(run, database_url)) as reader:
        reader.verify()
        return reader.state.tokens_released, list(reader.releases())


def stream_until_broken(url, received, lock):
    """Ask for streams and count the characters of each answer as they arrive, until the server is gone."""
    with contextlib.suppress(httpx.TransportError), httpx.Client(timeout=30) as client:
        while True:
            with client.stream(
                "POST", f"{url}/v1/completions", json=ASK | {"max_tokens": 60, "stream": True}
            ) as answer:
                for line in answer.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    with lock:
                        text = "".join(choice["text"] for choice in chunk["choices"])
                        received[chunk["id"]] = received.get(chunk["id"], 0) + len(text)


def test_kill_at_random_moments_under_load_loses_no_charge(database_url, deployment, serve):
    """One token is at most one character here, so an answer of n characters must have at least n charged tokens."""
    run, environment = deployment
    options = () if database_url is None else ("--database-url", database_url)
    received, lock = {}, threading.Lock()
    charged_before = 0
    for round_number in range(int(os.environ.get("RETICENT_CRASH_ROUNDS", 2 if options else 4))):
        server = serve(*options)
        threads = [threading.Thread(target=stream_until_broken, args=(server.url, received, lock)) for _ in range(4)]
        for thread in threads:
            thread.start()
        shown_before = sum(received.values())
        deadline = time.monotonic() + 60
        while sum(received.values()) == shown_before:
            assert time.monotonic() < deadline, "no token came"
            time.sleep(0.01)
        time.sleep(random.Random(round_number).uniform(0.0, 0.6))
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
        for thread in threads:
            thread.join(30)
        charged, releases = read_ledger(run, environment, database_url)
        by_answer = {}
        for release in releases:
            identifier = str(release["request"]).rsplit("-", 1)[0]
            by_answer[identifier] = by_answer.get(identifier, 0) + 1
        assert len(releases) == charged > charged_before
        for identifier, characters in received.items():
            assert by_answer.get(identifier, 0) >= characters, identifier
        charged_before = charged
    assert sum(received.values()) > 0


def test_sigterm_drains_and_a_second_server_is_refused(deployment, serve, monkeypatch, capsys):
    run, environment = deployment
    server = serve("--host", "0.0.0.0")
    monkeypatch.setenv("XDG_CONFIG_HOME", environment["XDG_CONFIG_HOME"])
    assert cli.main(["serve", str(run), "--port", "0"]) == 2
    assert "another process is using the deployment" in capsys.readouterr().err
    answers = []

    def ask():
        answers.append(httpx.post(f"{server.url}/v1/completions", json=ASK | {"max_tokens": 80, "n": 4}, timeout=60))

    thread = threading.Thread(target=ask)
    thread.start()
    while not answers and "reticent_answers_active 0.0" in httpx.get(f"{server.url}/metrics").text:
        time.sleep(0.01)
    assert server.end(signal.SIGTERM) == 0
    thread.join(60)
    [answer] = answers
    assert answer.status_code == 200
    charged, _ = read_ledger(run, environment)
    assert charged == answer.json()["usage"]["privacy"]["tokens_charged"]
    text = "".join(server.errors)
    assert "has no API key" in text.replace("\n", " ")
    events = [json.loads(line)["event"] for line in server.errors if line.startswith("{")]
    assert {"serving", "request", "stopped"} <= set(events)
    assert "Traceback" not in text
