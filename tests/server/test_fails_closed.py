"""A deployment that has had keys never serves without one, and a server without keys serves nobody from elsewhere."""

import contextlib
import os
import sqlite3
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from worlds.small_runs import NUM_WORLDS

from reticent.errors import DeploymentStateError, StorageError
from reticent.ledger.api_keys import KeyTable, Scope
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.store import Ledger
from reticent.randomness import SystemNoise
from reticent.server.auth import KeyDirectory

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
GUARDED = (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/metrics"), ("GET", "/dashboard/data"))


def statuses(server, key=None, **options):
    # The keys may have been read less than a second ago.
    server.service.keys._read_at = -float("inf")
    with server.http(key, **options) as http:
        return [
            http.request(method, path, json=ASK if method == "POST" else None).status_code for method, path in GUARDED
        ]


def change(path, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_ledger_moved_away_closes_every_route_and_no_probe_creates_another(live, tmp_path):
    server = live()
    key = server.key("both", *Scope)
    assert statuses(server, key) == [200] * 4
    aside = tmp_path / "aside"
    aside.mkdir()
    for path in tmp_path.glob("ledger.sqlite*"):
        path.rename(aside / path.name)
    before = sorted(tmp_path.rglob("*"))
    for asking in (None, key):
        assert statuses(server, asking, follow_redirects=False) == [503] * 4
    with server.http() as http:
        assert http.get("/readyz").status_code == 503
        assert http.get("/healthz").status_code == 200
    assert sorted(tmp_path.rglob("*")) == before
    for path in aside.iterdir():
        path.rename(tmp_path / path.name)
    assert statuses(server, key) == [200] * 4
    assert statuses(server) == [401] * 4


@pytest.mark.parametrize("statement", ["DELETE FROM api_keys", "DROP TABLE api_keys"])
def test_keys_that_vanish_close_every_route(live, tmp_path, caplog, statement):
    server = live()
    key = server.key("both", *Scope)
    assert statuses(server, key) == [200] * 4
    change(tmp_path / "ledger.sqlite", statement)
    assert statuses(server) == statuses(server, key) == [503] * 4
    reasons = [record.getMessage() for record in caplog.records if "API keys cannot be read" in record.getMessage()]
    assert len(reasons) == 1, "one line when it begins, not one a request"


def test_a_restart_remembers_that_there_were_keys(live, tmp_path):
    server = live()
    key = server.key("both", *Scope)
    assert statuses(server, key) == [200] * 4
    server.ledger.close()
    change(tmp_path / "ledger.sqlite", "DELETE FROM api_keys")
    with pytest.raises(DeploymentStateError, match="has had API keys, and its ledger holds none"):
        live()


def test_a_file_in_the_ledgers_place_is_no_deployment_without_keys(tmp_path):
    database = Database.of_run(tmp_path)
    table = KeyTable(database)
    table.create("a", [Scope.GENERATE])
    now = [0.0]
    directory = KeyDirectory(table, had_keys=False, clock=lambda: now[0])
    assert len(directory.current()) == 1
    now[0] += 5
    database.delete_file()
    with pytest.raises(StorageError):
        directory.current()
    assert list(tmp_path.iterdir()) == []
    database.create_file()
    with pytest.raises(StorageError, match="table of API keys"):
        directory.current()
    # Another deployment's ledger, which has a table and no keys.
    database.delete_file()
    with Ledger.open(tmp_path, "run", NUM_WORLDS, Keyring(tmp_path / "keys", {}), noise=SystemNoise()):
        assert table.read(deployed=True) == []
        with pytest.raises(DeploymentStateError, match="holds none"):
            directory.current()
        assert KeyDirectory(table, had_keys=False).current() == []


def test_without_keys_nothing_forwarded_is_answered(live):
    server = live()
    forwarded = (
        ("Forwarded", "for=192.0.2.60"), ("X-Forwarded-For", "192.0.2.60"), ("X-Forwarded-Host", "a.example"),
        ("X-Forwarded-Proto", "https"), ("x-forwarded-anything", ""), ("Via", "1.1 proxy"), ("X-Real-IP", "192.0.2.60"),
    )  # fmt: skip
    assert statuses(server) == [200] * 4
    for name, value in forwarded:
        with server.http() as http:
            for method, path in GUARDED:
                response = http.request(method, path, headers={name: value}, json=ASK if method == "POST" else None)
                assert response.status_code == 403, (name, path)
                assert "proxy" in response.json()["error"]["message"]
    released = server.ledger.curator.state.tokens_released
    assert released <= 2, "only the first request cost anything"
    # With a key a proxy is welcome.
    key = server.key("both", *Scope)
    with server.http(key) as http:
        assert http.get("/v1/models", headers=dict(forwarded)).status_code == 200


def test_a_body_without_content_type_is_not_read_as_json(live):
    """A browser sends such a body from any page, without asking this server first."""
    server = live()
    with server.http() as http:
        for headers in ({}, {"Content-Type": "text/plain"}):
            response = http.post("/v1/completions", content=b'{"model": "tiny", "prompt": "a"}', headers=headers)
            assert response.status_code in (400, 415)
            assert set(response.json()) == {"error"}
    assert server.ledger.curator.state.tokens_released == 0


def test_fastapi_versions_that_read_any_body_as_json_are_excluded():
    """0.132.0 is the first that can tell; its default is strict, and `create_app` says so again."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    requirements = {Requirement(text).name: Requirement(text) for text in project["optional-dependencies"]["server"]}
    assert not requirements["fastapi"].specifier.contains("0.131.9")
    assert requirements["fastapi"].specifier.contains("0.132.0")


def test_new_files_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with Ledger.open(tmp_path, "run", NUM_WORLDS, Keyring(tmp_path / "keys", {}), noise=SystemNoise()):
            files = [path for path in tmp_path.rglob("*") if path.is_file()]
            assert len(files) >= 4
            assert {path.name: path.stat().st_mode & 0o777 for path in files} == dict.fromkeys(
                (path.name for path in files), 0o600
            )
    finally:
        os.umask(before)
