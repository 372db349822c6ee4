"""Keys as an operator handles them while a server runs: listed, changed, expired, and revoked under running answers."""

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
import time

import openai
import pytest
from rich.console import Console
from server.waiting import eventually
from worlds.small_runs import NUM_WORLDS

from reticent.api.deployments import run_id
from reticent.cli import main as cli
from reticent.cli import output
from reticent.cli.keys import _time
from reticent.errors import DeploymentStateError, InvalidValueError, StorageError
from reticent.ledger.api_keys import ApiKey, KeyTable, Scope, StoredKey
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.store import Ledger
from reticent.ledger.usage import Spending
from reticent.randomness import SystemNoise
from reticent.server import auth, key_watch
from reticent.server.key_watch import KeyWatch
from reticent.server.metering import Meters

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 4}


@pytest.fixture
def run(served_run, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "manifest.json").write_bytes((served_run / "manifest.json").read_bytes())
    return folder


def expire(server, text):
    """Let the time of a key be over, as if the clock had gone on."""
    identifier = text.split("-")[1]
    engine = server.ledger.database.engine(write=True)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE api_keys SET expires = 1 WHERE id = '{identifier}'")
    engine.dispose()


def test_an_expired_key_is_refused_with_its_own_code(live):
    server = live()
    text = server.key(expires=int(time.time()) + 3600)
    client = server.openai(text)
    client.completions.create(**ASK)
    expire(server, text)
    server.service.keys._read_at = -float("inf")
    with pytest.raises(openai.AuthenticationError) as caught:
        client.completions.create(**ASK)
    assert caught.value.code == "expired_api_key"
    server.keys.change(text.split("-")[1], {"expires": None})
    server.service.keys._read_at = -float("inf")
    client.completions.create(**ASK)


class Halted:
    """Holds the engine still before each extension of its answers until the gate is opened."""

    def __init__(self, server):
        self._engine = server.service.batcher._engine
        self.gate = threading.Event()
        server.service.batcher._engine = self

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def extend(self, contexts, tokens, drafts=None):
        assert self.gate.wait(60)
        self._engine.extend(contexts, tokens)


@pytest.mark.parametrize("ended_by", ["revoked", "expired"])
def test_answers_under_way_end_with_their_key_and_others_go_on(live, ended_by):
    server = live()
    text, other = server.key("leaves"), server.key("stays")
    halted = Halted(server)
    results = {}

    def ask(name, key, **options):
        try:
            answer = server.openai(key).completions.create(**ASK | {"max_tokens": 60, "n": 2}, **options)
            results[name] = list(answer) if options else answer
        except openai.APIError as error:
            results[name] = error

    threads = [
        threading.Thread(target=ask, args=("whole", text)),
        threading.Thread(target=ask, args=("stream", text), kwargs={"stream": True}),
        threading.Thread(target=ask, args=("other", other)),
    ]
    for thread in threads:
        thread.start()
    watched = server.service.key_watch._answers
    eventually(lambda: len(watched) == 3 or None)
    if ended_by == "revoked":
        server.keys.revoke(text.split("-")[1])
    else:
        expire(server, text)
    # While the gate is shut no answer can come to its end by itself.
    eventually(lambda: len(watched) == 1 or None)
    halted.gate.set()
    for thread in threads:
        thread.join(60)
    assert isinstance(results["whole"], openai.AuthenticationError)
    assert results["whole"].code == "invalid_api_key"
    assert isinstance(results["stream"], openai.APIError)
    assert results["stream"].code == "invalid_api_key"
    assert results["other"].usage.completion_tokens >= 2
    # Two answers of each request, of which those that ended had one token or two.
    of_ended_key = server.service.usage.tokens_by_key().get(text.split("-")[1], 0)
    assert of_ended_key <= 8
    eventually(lambda: server.service.batcher.num_active == 0 or None)


def test_a_revocation_is_seen_within_a_second():
    assert auth._FRESH_SECONDS + key_watch.CHECK_SECONDS < 1


class UnderWay:
    def __init__(self, key):
        self.key = key
        self.ended = False

    def end_with_key(self):
        self.ended = True


class Directory:
    def __init__(self, *outcomes):
        self._outcomes = list(outcomes)

    async def read(self):
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return [StoredKey(key, bytes(16), bytes(32)) for key in outcome]


def key_of(identifier, **options):
    return ApiKey(**{
        "id": identifier, "name": "n", "scopes": frozenset(Scope), "tokens_per_minute": None, "total_tokens": None,
        "created": 0, "revoked": None,
    } | options)  # fmt: skip


def test_unreadable_keys_end_nothing_and_vanished_ones_everything():
    live_key, meters = key_of("a"), Meters({"a": Spending(5, 5)})
    directory = Directory(
        StorageError("busy"), [live_key, key_of("b")], [key_of("a", total_tokens=5)], DeploymentStateError("gone")
    )
    watch = KeyWatch(directory, meters)
    mine, gone, keyless = UnderWay(live_key), UnderWay(key_of("c")), UnderWay(None)
    for answers in (mine, gone, keyless):
        watch.add(answers)
    asyncio.run(watch.check())
    assert not gone.ended
    asyncio.run(watch.check())
    assert (mine.ended, gone.ended) == (False, True)
    meter = meters.of(live_key)
    assert not meter.is_exhausted
    asyncio.run(watch.check())
    assert meter.is_exhausted, "a lowered quota reaches answers under way"
    asyncio.run(watch.check())
    assert (mine.ended, keyless.ended) == (True, False)
    # Nobody is left to look after, so nothing is read.
    asyncio.run(watch.check())


def test_a_changed_quota_is_in_force_while_the_server_runs(live):
    server = live()
    text = server.key(total_tokens=1)
    client = server.openai(text)
    client.completions.create(**ASK)
    with pytest.raises(openai.RateLimitError):
        client.completions.create(**ASK)
    server.keys.change(text.split("-")[1], {"total_tokens": 100})
    server.service.keys._read_at = -float("inf")
    assert client.completions.create(**ASK).usage.privacy["key"]["tokens_left"] < 100


def columns_of(listed):
    return [line.split() for line in listed.splitlines()]


@pytest.mark.parametrize("columns", ["20", "80"])
def test_list_shows_what_revoke_takes_in_a_pipe_of_any_width(run, columns):
    table = KeyTable(Database.of_run(run))
    names = ["a name that is far longer than many a terminal is wide, or " + "so" * 15, "[red]b[/red]"]
    keys = [table.create(name, list(Scope), 1000, 2_000_000)[0] for name in names]
    command = "import sys; from reticent.cli.main import main; sys.exit(main())"
    listed = subprocess.run(
        [sys.executable, "-c", command, "keys", "list", str(run)],
        env=os.environ | {"COLUMNS": columns}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert {words[0] for words in columns_of(listed)[1:]} == {key.id for key in keys}
    for name in names:
        assert name in listed
    assert "…" not in listed
    for words in columns_of(listed)[1:]:
        assert cli.main(["keys", "revoke", str(run), words[0]]) == 0
    assert all(stored.key.revoked is not None for stored in table.read())


def test_list_shows_whole_ids_in_the_narrowest_terminal(run, monkeypatch):
    table, written = KeyTable(Database.of_run(run)), io.StringIO()
    keys = [table.create(f"a name of some length {number}", list(Scope))[0] for number in range(3)]
    monkeypatch.setattr(output, "console", Console(file=written, force_terminal=True, width=10, color_system=None))
    assert cli.main(["keys", "list", str(run)]) == 0
    words = written.getvalue().split()
    assert {key.id for key in keys} <= set(words)
    assert "…" not in written.getvalue()


def test_set_changes_a_key_by_the_beginning_of_its_id(run, capsys):
    assert cli.main(["keys", "create", str(run), "--name", "ward", "--expires", "90d", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["live"] is True
    begin = [str(run), made["id"][:6]]
    changes = ["--name", "ward 4", "--total-tokens", "70", "--tokens-per-minute", "7", "--expires", "2100-01-31"]
    assert cli.main(["keys", "set", *begin, *changes, "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert (changed["name"], changed["total_tokens"], changed["tokens_per_minute"]) == ("ward 4", 70, 7)
    assert changed["expires"] == "2100-01-31T00:00:00Z"
    assert cli.main(["keys", "set", *begin, "--total-tokens", "any", "--expires", "never"]) == 0
    assert "any tokens in all, 7 a minute, live" in capsys.readouterr().err
    for wrong in (
        [], ["--expires", "yesterday"], ["--expires", "2001-01-01"], ["--total-tokens", "many"],
        ["--total-tokens", "0"], ["--expires", "999999999w"],
    ):  # fmt: skip
        assert cli.main(["keys", "set", *begin, *wrong]) == 2
        assert capsys.readouterr().err.startswith("error: ")
    assert cli.main(["keys", "list", str(run)]) == 0
    assert "ward 4" in capsys.readouterr().out


def test_keys_are_not_made_beside_a_ledger_that_is_elsewhere(run, tmp_path, capsys):
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.sqlite'}"
    keyring = Keyring(tmp_path / "keys", {})
    made = ["keys", "create", str(run), "--name", "ward"]
    with Ledger.open(run, run_id(run), NUM_WORLDS, keyring, database_url=elsewhere, noise=SystemNoise()):
        assert cli.main([*made, "--database-url", elsewhere]) == 0
        capsys.readouterr()
        for command in (made, ["keys", "list", str(run)], ["keys", "revoke", str(run), "a"]):
            assert cli.main(command) == 2
            assert "name that with --database-url" in capsys.readouterr().err
    assert not (run / "ledger.sqlite").exists()
    (tmp_path / "elsewhere.sqlite").rename(tmp_path / "moved.sqlite")
    assert cli.main([*made, "--database-url", elsewhere]) == 2
    assert not (tmp_path / "elsewhere.sqlite").exists()


def test_times_are_read_as_they_are_written():
    now = time.time()
    assert 0 <= _time("2h") - int(now) - 7200 <= 60
    assert _time("2030-01-01") == 1_893_456_000
    assert _time("2030-01-01T01:00") == _time("2030-01-01T02:00+01:00") == 1_893_459_600
    for wrong in ("", "5", "5y", "-5d", "tomorrow", "2030-13-01", "٣d"):
        with pytest.raises(InvalidValueError, match="a time is"):
            _time(wrong)
