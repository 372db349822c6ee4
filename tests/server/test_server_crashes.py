"""The command as a process: kill -9 under load, restart, SIGTERM, two servers, loopback."""

import contextlib
import json
import os
import random
import signal
import threading
import time

import httpx

from reticent.api.deployments import run_id
from reticent.cli import main as cli
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.reader import LedgerReader

ASK = {"model": "run", "prompt": "abc"}


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
    assert any(line.startswith("OPEN: this deployment has no API key") for line in server.errors)
    events = [json.loads(line)["event"] for line in server.errors if line.startswith("{")]
    assert {"serving", "request", "stopped"} <= set(events)
    assert "Traceback" not in text
