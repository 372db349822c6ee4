"""Probes that say what is so: the disk, the budget, the keys; and HEAD wherever GET works."""

import asyncio
import threading

import httpx
import pytest
from server.test_limits import wait_until

from reticent.ledger.room import DiskRoom
from reticent.server.readiness import ReadinessCheck
from reticent.server.settings import OnExhausted

NATS = 2.0**-32
ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 30}


def readiness(server):
    with server.http() as http:
        response = http.get("/readyz")
        return response.status_code, response.json()


def test_a_full_disk_is_not_ready_though_nothing_has_failed_yet(live, monkeypatch):
    server = live()
    assert readiness(server) == (200, {"ready": True, "reason": None, "budget_spent": False})
    with monkeypatch.context() as patch:
        patch.setattr(DiskRoom, "is_there", lambda _: False)
        assert readiness(server) == (
            503, {"ready": False, "reason": "the ledger cannot be written", "budget_spent": False}
        )  # fmt: skip
        with server.http() as http:
            assert http.get("/dashboard/data").json()["reason"] == "the ledger cannot be written"
    assert readiness(server)[0] == 200


@pytest.mark.parametrize("on_exhausted", list(OnExhausted))
def test_a_spent_budget_is_said_and_is_ready_where_the_public_model_goes_on(live, on_exhausted):
    server = live(total_budget=3 * NATS, on_exhausted=on_exhausted)
    assert readiness(server)[1]["budget_spent"] is False
    with server.http() as http:
        while server.service.curator.account.can_afford(2**32):
            http.post("/v1/completions", json=ASK)
    if on_exhausted is OnExhausted.PUBLIC:
        assert readiness(server) == (200, {"ready": True, "reason": None, "budget_spent": True})
    else:
        reason = "the privacy budget of this deployment is spent"
        assert readiness(server) == (503, {"ready": False, "reason": reason, "budget_spent": True})


def test_keys_that_cannot_be_read_are_not_ready(live):
    server = live()
    server.key("a")
    engine = server.ledger.database.engine(write=True)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE api_keys")
    engine.dispose()
    server.service.keys._read_at = -float("inf")
    assert readiness(server)[1]["reason"] == "the API keys cannot be read"


def test_many_probes_at_once_cost_one_check(live):
    service = live().service
    gate, calls = threading.Event(), []

    def healthy():
        calls.append(1)
        return gate.wait(60)

    async def probe_together():
        check = ReadinessCheck(service)
        leaving, *others = [asyncio.create_task(check.run()) for _ in range(20)]
        await asyncio.sleep(0)
        leaving.cancel()
        gate.set()
        found = await asyncio.gather(*others)
        return [one.reason for one in found]

    service.deployment.healthy = healthy
    assert asyncio.run(probe_together()) == [None] * 19
    assert calls == [1]


def test_head_is_get_without_a_body(live, caplog):
    caplog.set_level("INFO", logger="reticent.server")
    server = live()
    with server.http() as http:
        for path in ("/health", "/healthz", "/readyz", "/", "/dashboard/dashboard.js", "/metrics", "/v1/models",
                     "/v1/models/tiny", "/openapi.json", "/nowhere", "/v1/completions"):  # fmt: skip
            get, head = http.get(path), http.head(path)
            assert head.status_code == get.status_code, path
            assert head.content == b"", path
            assert head.headers["content-type"] == get.headers["content-type"], path
            assert int(head.headers["content-length"]) > 0, path
        assert http.get("/health").json() == {"status": "ok"}
        # What follows on the same connection is answered as usual.
        assert http.get("/healthz").json() == {"status": "ok"}
    routes = [record.route for record in caplog.records if hasattr(record, "route")]
    assert routes.count("/v1/models") == 2
    assert "/health" not in routes


def test_head_needs_a_key_where_get_does(live):
    server = live()
    server.key("a")
    assert httpx.head(f"{server.url}/metrics").status_code == 401
    assert httpx.head(f"{server.url}/readyz").status_code == 200


def test_a_server_that_stops_is_not_ready(live):
    server = live()
    server.service.batcher.close(0)
    assert wait_until(lambda: not server.service.batcher.is_running)
    assert readiness(server)[0] == 503
    with server.http() as http:
        assert http.get("/healthz").status_code == http.get("/health").status_code == 503
