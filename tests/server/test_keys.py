"""Keys: hashed, scoped, metered, revoked; and what a server without any does."""

import hashlib
import sqlite3
import threading
import time

import openai
import pytest
from server.conftest import STEP_BUDGET
from server.waiting import eventually
from worlds.small_runs import NUM_WORLDS

from reticent.cli import main as cli
from reticent.errors import InvalidValueError
from reticent.ledger.api_keys import KeyTable, Scope, authenticate
from reticent.ledger.database import Database
from reticent.ledger.keys import Keyring
from reticent.ledger.store import Ledger
from reticent.pac.accounting import charge_units, units_to_nats
from reticent.randomness import SystemNoise
from reticent.server.auth import is_loopback
from reticent.server.metering import Meters
from reticent.server.running import choose_host

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 4}


@pytest.fixture
def table(tmp_path):
    return KeyTable(Database.of_run(tmp_path))


def test_the_database_holds_no_key_only_a_salted_hash(table, tmp_path):
    key, text = table.create("ward", [Scope.GENERATE], 10, 20)
    _, identifier, secret = text.split("-", 2)
    assert identifier == key.id
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        [row] = connection.execute("SELECT salt, hash FROM api_keys").fetchall()
    connection.close()
    assert row[1] == hashlib.sha256(row[0] + secret.encode()).digest()
    for path in tmp_path.iterdir():
        assert secret.encode() not in path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0


def test_only_the_whole_text_of_a_live_key_is_accepted(table):
    key, text = table.create("a", [Scope.ADMIN])
    other, other_text = table.create("b", [Scope.GENERATE])
    keys = table.read()
    assert authenticate(text, keys) == key
    assert authenticate(other_text, keys) == other
    swapped = f"rtc-{key.id}-{other_text.split('-', 2)[2]}"
    for wrong in ("", "rtc", text[:-1], text + "x", swapped, f"rtc-nobody-{text}", text.upper(), "\ud800", f"x{text}"):
        assert authenticate(wrong, keys) is None
    table.revoke(key.id)
    assert authenticate(text, table.read()) is None
    assert authenticate(other_text, table.read()) == other
    with pytest.raises(InvalidValueError, match="no key 'nobody'"):
        table.revoke("nobody")


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "a\nb"}, {"scopes": []}, {"total_tokens": 0}])
def test_impossible_keys_are_refused(table, wrong):
    with pytest.raises(InvalidValueError):
        table.create(**{"name": "a", "scopes": [Scope.GENERATE]} | wrong)


def test_keys_made_before_the_first_use_do_not_stand_in_its_way(table, tmp_path):
    table.create("early", [Scope.GENERATE])
    keyring = Keyring(tmp_path / "keys", {})
    with Ledger.open(tmp_path, "run", NUM_WORLDS, keyring, total_budget=1.0, noise=SystemNoise()) as ledger:
        assert ledger.created
        assert ledger.curator.account.cap_units == 2**64
    assert [stored.key.name for stored in table.read()] == ["early"]


def test_scopes_and_missing_keys(live):
    server = live()
    generate, admin = server.key("g"), server.key("a", Scope.ADMIN)
    routes = (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/metrics"), ("GET", "/dashboard/data"))
    expected = {None: [401] * 4, "rtc-x-y": [401] * 4, generate: [200, 200, 403, 403], admin: [403, 403, 200, 200]}
    for key, statuses in expected.items():
        with server.http(key) as http:
            found = [http.request(method, path, json=ASK if method == "POST" else None) for method, path in routes]
            assert [response.status_code for response in found] == statuses
            for response in found:
                assert key is None or key not in response.text
                if response.status_code == 401:
                    assert response.headers["www-authenticate"] == "Bearer"
            for path in ("/healthz", "/readyz", "/", "/openapi.json"):
                assert http.get(path).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        server.openai("wrong").models.list()


def test_metrics_show_totals_and_no_dissent_by_the_token(live):
    server = live(total_budget=1000 * 2.0**-32)
    with server.http() as http:
        for _ in range(5):
            http.post("/v1/completions", json=ASK)
        released = server.ledger.curator.state.tokens_released
        expected = (
            f'reticent_tokens_released_total{{source="private"}} {float(released)}',
            f"reticent_deployment_tokens {float(released)}",
            "reticent_dissent_ratio NaN",
            'reticent_requests_total{route="/v1/completions",status="200"} 5.0',
            "reticent_step_seconds_count",
        )
        # A step is counted when it ends, which may be after its last token has been read.
        eventually(lambda: all(line in http.get("/metrics").text for line in expected) or None)
    assert server.ledger.curator.state.dissenting_steps > 0


def test_revocation_is_in_force_within_a_second(live):
    server = live()
    text = server.key()
    client = server.openai(text)
    client.completions.create(**ASK)
    server.keys.revoke(text.split("-")[1])
    time.sleep(1.05)
    with pytest.raises(openai.AuthenticationError):
        client.completions.create(**ASK)
    # The last key is gone, but the deployment is not one that never had any.
    with pytest.raises(openai.AuthenticationError):
        server.openai("none").completions.create(**ASK)


def test_total_quota_is_exact_under_concurrency_and_survives_a_restart(live):
    server = live()
    text = server.key(total_tokens=30)
    client = server.openai(text)
    released, refusals, lock = [], [], threading.Lock()

    def ask():
        try:
            answer = client.completions.create(model="tiny", prompt="abc", max_tokens=7, n=2)
        except openai.RateLimitError as error:
            with lock:
                refusals.append(error.code)
            return
        with lock:
            released.append(answer.usage.completion_tokens)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = server.service.usage.tokens_by_key()[text.split("-")[1]]
    assert used == sum(released) <= 30
    assert used == 30 or len(released) == 6
    assert set(refusals) <= {"insufficient_quota"}
    while used < 30:
        used += client.completions.create(**ASK).usage.completion_tokens
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(**ASK)
    assert caught.value.code == "insufficient_quota"
    assert server.openai(server.key("other")).completions.create(**ASK).usage.completion_tokens >= 1
    spending = server.service.usage.spending_by_key()
    assert spending[text.split("-")[1]].units == 30 * charge_units(STEP_BUDGET)
    assert Meters(spending).used()[text.split("-")[1]] == 30


def test_usage_shows_a_key_its_own_spending_and_the_deployments_to_the_operator_alone(live):
    server = live(total_budget=1000 * STEP_BUDGET)
    ward = server.openai(server.key("ward", total_tokens=50))
    operator = server.openai(server.key("operator", Scope.GENERATE, Scope.ADMIN))
    wards = [ward.completions.create(**ASK).usage for _ in range(2)]
    operators = operator.completions.create(**ASK).usage
    written = sum(usage.completion_tokens for usage in wards)
    for usage in (*wards, operators):
        assert usage.privacy["tokens_charged"] == usage.completion_tokens
    assert [usage.privacy["deployment"] for usage in wards] == [None, None]
    nats = units_to_nats(written * charge_units(STEP_BUDGET))
    assert wards[1].privacy["key"] == {"tokens_charged": written, "nats_charged": nats, "tokens_left": 50 - written}
    assert operators.privacy["key"]["tokens_charged"] == operators.completion_tokens
    assert operators.privacy["key"]["tokens_left"] is None
    deployment = operators.privacy["deployment"]
    assert deployment["tokens_charged"] == written + operators.completion_tokens
    assert deployment["nats_charged"] == server.ledger.curator.account.spent_nats
    assert deployment["half_bound"] == server.ledger.curator.half_success
    # The same to the client of a stream.
    stream = ward.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    last = list(stream)[-1].usage
    assert (last.privacy["deployment"], last.privacy["key"]["tokens_left"]) == (
        None,
        50 - written - last.completion_tokens,
    )


def test_rate_quota_reserves_and_tells_when_to_come_back(live):
    server = live()
    text = server.key(tokens_per_minute=60)
    with server.http(text) as http:
        too_large = http.post("/v1/completions", json=ASK | {"max_tokens": 31, "n": 2})
        assert too_large.status_code == 429
        assert "retry-after" not in too_large.headers
        assert http.post("/v1/completions", json=ASK | {"max_tokens": 60, "stop": "e"}).status_code == 200
        used = server.ledger.curator.state.tokens_released
        later = http.post("/v1/completions", json=ASK | {"max_tokens": 60})
        assert later.status_code == 429
        assert 0 < int(later.headers["retry-after"]) <= used + 1
        assert later.json()["error"]["code"] == "rate_limit_exceeded"


def test_without_keys_the_server_keeps_to_loopback_and_says_why(table):
    host, why = choose_host("0.0.0.0", table)
    assert host == "127.0.0.1"
    assert "no API key" in why
    assert "instead of 0.0.0.0" in why
    host, why = choose_host("127.0.0.1", table)
    assert host == "127.0.0.1"
    assert why.startswith("OPEN: ")
    key, _ = table.create("a", [Scope.GENERATE])
    assert choose_host("0.0.0.0", table) == ("0.0.0.0", None)
    table.revoke(key.id)
    host, why = choose_host("0.0.0.0", table)
    assert "revoked" in why


def test_without_keys_foreign_host_names_are_refused(live):
    with live().http() as http:
        for host, status in (
            ("localhost", 200), ("127.0.0.1:80", 200), ("[::1]:80", 200), ("evil.example", 403),
            ("127.0.0.1.evil", 403), ("[", 403), ("", 403),
        ):  # fmt: skip
            assert http.get("/v1/models", headers={"Host": host}).status_code == status, host
    assert is_loopback("127.8.8.8")
    assert not is_loopback("0.0.0.0")


def test_commands_create_list_and_revoke(served_run, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "manifest.json").write_bytes((served_run / "manifest.json").read_bytes())
    made = ["keys", "create", str(run), "--name", "ward 3", "--scope", "generate", "--scope", "admin"]
    assert cli.main([*made, "--total-tokens", "1000"]) == 0
    text = capsys.readouterr().out.strip()
    assert authenticate(text, KeyTable(Database.of_run(run)).read()).total_tokens == 1000
    assert cli.main(["keys", "list", str(run)]) == 0
    listed = capsys.readouterr().out
    assert "ward 3" in listed
    assert text.split("-", 2)[2] not in listed
    assert cli.main(["keys", "revoke", str(run), text.split("-")[1]]) == 0
    assert authenticate(text, KeyTable(Database.of_run(run)).read()) is None
    capsys.readouterr()
    for wrong in ([*made[:-1], "root"], ["keys", "revoke", str(run), "x"], ["keys", "list", str(tmp_path)]):
        assert cli.main(wrong) == 2
        assert capsys.readouterr().err.startswith("error: ")
