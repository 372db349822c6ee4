"""The operator's page in a real browser: what it shows, that it asks nobody else, that it fits a phone."""

import time
from pathlib import Path

import pytest
from headless import CHROMIUM, browser
from missing import skip_without
from sqlalchemy import update

from reticent.ledger.api_keys import Scope
from reticent.ledger.schema import releases
from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED, WORLD_QUESTION

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
NATS = 2.0**-32


@pytest.fixture
def chromium():
    if not CHROMIUM.exists():
        skip_without("Chromium", "apt-get install chromium")
    with browser() as page:
        yield page


def spread_over_two_days(database):
    """Date releases back, so that the chart has something to show. The chain is verified at the next start only."""
    now = int(time.time())
    with database.engine(write=True).begin() as connection:
        hours_ago = (releases.c.number * releases.c.number / 7) % 40
        connection.execute(update(releases).values(time=now - 3600 * hours_ago))


def test_page_shows_the_budget_to_admins_only_and_fits_a_phone(live, chromium):
    server = live(total_budget=500 * NATS)  # a share of 500 tokens has one decimal, so there is nothing to round
    admin = server.key("operations", Scope.ADMIN)
    client = server.openai(server.key("ward 3", total_tokens=1000, tokens_per_minute=100_000))
    other = server.openai(server.key("<b>billing</b>", Scope.GENERATE, Scope.ADMIN))
    gone = server.key("trial, spring")
    server.keys.revoke(gone.split("-")[1])
    for asker, times in ((client, 5), (other, 2)):
        for _ in range(times):
            asker.completions.create(model="tiny", prompt="abc", max_tokens=40)
    spread_over_two_days(server.ledger.database)

    chromium.open(server.url, 1100, 900)
    chromium.wait_for("!document.getElementById('entry').hidden")
    assert chromium.evaluate("document.getElementById('page').hidden")
    submit = "document.getElementById('key').value = {!r}; document.getElementById('entry').requestSubmit()"
    chromium.evaluate(submit.format("rtc-nobody-x"))
    chromium.wait_for("document.getElementById('entry-reason').textContent.includes('not valid')")
    chromium.evaluate(submit.format(admin))
    chromium.wait_for("!document.getElementById('page').hidden")
    released = server.ledger.curator.state.tokens_released
    text = chromium.evaluate("document.body.innerText")
    share = f"{100 * released / 500:.1f}\N{NO-BREAK SPACE}%"
    for expected in (
        share, f"{released:,}", f"{500 - released:,}", "2^-32 nats", "ready", "tiny",
        HALF_QUESTION, WORLD_QUESTION, f"Not bounded: {NOT_BOUNDED}.",
        "50.0", "not yet", "ward 3", "<b>billing</b>", "trial, spring",
    ):  # fmt: skip
        assert expected in text, expected
    assert "at the pace of the last day" in text.lower()
    assert chromium.evaluate("document.querySelectorAll('#hours rect').length") == 48
    durations = chromium.evaluate("[...document.querySelectorAll('#durations tr')].map((row) => row.innerText)")
    assert [row.split("\t")[0] for row in durations] == ["start (time in the queue)", "first token", "end"]
    assert all(row.count("\N{NO-BREAK SPACE}") == 2 for row in durations)
    refusals = chromium.evaluate("document.getElementById('refusals').innerText")
    assert {"no api key\t1", "invalid api key\t1"} <= set(refusals.splitlines())
    assert admin not in chromium.evaluate("document.documentElement.outerHTML")

    ARTIFACTS.mkdir(exist_ok=True)
    (ARTIFACTS / "dashboard.png").write_bytes(chromium.screenshot())
    for name, width, height, dark in (("phone", 390, 844, False), ("dark", 1100, 900, True)):
        chromium.open(server.url, width, height, dark)
        chromium.wait_for("!document.getElementById('entry').hidden")
        chromium.evaluate(submit.format(admin))
        chromium.wait_for("!document.getElementById('page').hidden")
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width
        (ARTIFACTS / f"dashboard-{name}.png").write_bytes(chromium.screenshot())
    assert chromium.requested
    assert all(url.startswith(server.url) for url in chromium.requested)
    # The two refusals before a key was given are the only things the browser complains about.
    assert [line for line in chromium.problems if "401" not in line] == []


def test_page_on_a_server_without_keys_needs_none(live, chromium):
    server = live()
    chromium.open(server.url, 390, 844)
    chromium.wait_for("!document.getElementById('page').hidden")
    text = chromium.evaluate("document.body.innerText")
    assert "without a cap" in text
    assert "There is no key" in text


def test_page_is_locked_to_its_own_origin(live):
    with live().http() as http:
        page = http.get("/")
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in page.text
        for name in ("dashboard.js", "dashboard.css", "icon.svg"):
            assert http.get(f"/dashboard/{name}").status_code == 200
        for name in ("__init__.py", "summary.py", "nothing", "..%2fapp.py"):
            assert http.get(f"/dashboard/{name}").status_code == 404
