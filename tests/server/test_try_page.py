"""The page to try in a real browser: what it shows and keeps, how it stops and refuses, and that all can use it."""

import inspect
import json
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import pytest
from headless import CHROMIUM, browser
from missing import skip_without
from server.waiting import eventually

from reticent.ledger.api_keys import Scope
from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED, WORLD_QUESTION
from reticent.server import errors
from reticent.server.settings import OnExhausted

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
NATS = 2.0**-32
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}


@pytest.fixture
def chromium():
    if not CHROMIUM.exists():
        skip_without("Chromium", "apt-get install chromium")
    with browser() as page:
        yield page


def element(name):
    return f"document.getElementById({name!r})"


def text_of(page, name):
    return page.evaluate(f"{element(name)}.textContent")


def is_shown(page, name):
    return page.evaluate(f"{element(name)}.offsetParent !== null")


def open_page(page, server, key=None, width=1100, height=900, dark=False):
    page.open(f"{server.url}/try", width, height, dark)
    if key is not None:
        page.wait_for(f"!{element('entry')}.hidden")
        enter_key(page, key)
    page.wait_for(f"!{element('page')}.hidden")


def enter_key(page, key):
    page.evaluate(f"{element('key')}.value = {key!r}; {element('entry')}.requestSubmit()")


def ask(page, prompt="Dear Dr", tokens=40):
    page.evaluate(f"{element('prompt')}.value = {prompt!r}; {element('length')}.value = {tokens}")
    page.evaluate(f"{element('ask')}.requestSubmit()")


def wait_for_end(page):
    page.wait_for(f"{element('write')}.offsetParent !== null && {element('answer')}.ariaBusy === 'false'")


def write(page, **options):
    ask(page, **options)
    wait_for_end(page)


def press(page, key, modifiers=0):
    place = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
    typed = {"text": "\r"} if key == "Enter" else {"text": " "} if key == "Space" else {}
    page.call("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **place, **typed)
    page.call("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **place)


def at_most(chance):
    """A chance in percent with two decimals, rounded up in exact arithmetic."""
    percent = (Decimal(chance) * 100).quantize(Decimal("0.01"), ROUND_CEILING)
    return f"right at most {percent}\N{NO-BREAK SPACE}%"


def refusal_on(page):
    page.wait_for(f"!{element('refusal')}.hidden")
    return text_of(page, "refusal-heading"), text_of(page, "refusal-text")


def test_ward_writes_and_sees_its_own_cost_and_the_promise(live, chromium, caplog):
    caplog.set_level("INFO", logger="reticent.server")
    server = live(total_budget=500 * NATS, log_texts=True)
    operator = server.openai(server.key("operations", Scope.GENERATE, Scope.ADMIN))
    others = operator.completions.create(model="tiny", prompt="abc", max_tokens=20).usage.privacy["tokens_charged"]
    key = server.key("ward 3", total_tokens=1000)
    open_page(chromium, server, key)
    write(chromium, prompt="a <b>bold</b> start")
    prompt = text_of(chromium, "given")
    assert prompt == "a <b>bold</b> start"
    logged = eventually(lambda: [one for one in caplog.records if getattr(one, "prompts", None) == [prompt]] or None)
    assert [text_of(chromium, "answer")] == logged[0].answers
    charged = server.ledger.curator.state.tokens_released - others
    assert text_of(chromium, "answer-tokens") == text_of(chromium, "total-tokens") == str(charged)
    assert float(text_of(chromium, "answer-nats").removesuffix(" nats")) == pytest.approx(charged * NATS, rel=1e-3)
    share = text_of(chromium, "answer-share").removesuffix("\N{NO-BREAK SPACE}%")
    assert float(share) == pytest.approx(charged / 5, rel=0.05)
    assert text_of(chromium, "total-left") == f"{1000 - charged} tokens"
    assert text_of(chromium, "totals-title") == "What all answers with your key cost"
    with server.http(key) as http:
        assert text_of(chromium, "half-bound") == at_most(http.get("/try/data").json()["half_at_cap"])
    text = chromium.evaluate("document.body.innerText")
    for expected in (HALF_QUESTION, NOT_BOUNDED[1:], "No bound follows from one key alone", "ward 3", "tiny"):
        assert expected in text, expected
    assert WORLD_QUESTION not in text
    before = charged
    write(chromium, tokens=10)
    charged = server.ledger.curator.state.tokens_released - others
    assert text_of(chromium, "answer-tokens") == str(charged - before)
    assert text_of(chromium, "total-tokens") == str(charged)


def test_operator_sees_what_all_answers_tell(live, chromium):
    server = live(total_budget=500 * NATS)
    server.openai(server.key("ward 3")).completions.create(model="tiny", prompt="abc", max_tokens=20)
    open_page(chromium, server, server.key("operations", Scope.GENERATE, Scope.ADMIN))
    before = server.ledger.curator.state.tokens_released
    write(chromium)
    curator = server.ledger.curator
    assert text_of(chromium, "total-tokens") == str(curator.state.tokens_released)
    assert text_of(chromium, "answer-tokens") == str(curator.state.tokens_released - before)
    assert text_of(chromium, "totals-title") == "What all answers to everyone cost"
    assert text_of(chromium, "half-bound") == at_most(curator.half_success)
    assert text_of(chromium, "world-bound") == at_most(curator.world_success)
    assert not is_shown(chromium, "no-bound")


def test_server_without_keys_or_cap_says_so(live, chromium):
    server = live()
    open_page(chromium, server)
    assert not is_shown(chromium, "forget")
    assert "NO CAP" in text_of(chromium, "cap-note")
    write(chromium)
    assert text_of(chromium, "answer-tokens") == str(server.ledger.curator.state.tokens_released)
    assert text_of(chromium, "total-left") == "no cap"
    assert not is_shown(chromium, "share")


def test_key_is_kept_in_the_page_alone_and_no_one_else_is_asked(live, chromium):
    server = live()
    key = server.key("ward 3")
    open_page(chromium, server, key)
    write(chromium)
    assert key not in chromium.evaluate("document.documentElement.outerHTML")
    assert chromium.evaluate("document.getElementById('key').value") == ""
    kept = chromium.evaluate("[localStorage.length, sessionStorage.length, document.cookie, location.href]")
    assert kept == [0, 0, "", f"{server.url}/try"]
    assert chromium.evaluate("indexedDB.databases().then((found) => found.length)") == 0
    assert all(url.startswith(server.url) and key not in url for url in chromium.requested)
    assert [line for line in chromium.problems if "401" not in line] == []
    chromium.evaluate(f"{element('forget')}.click()")
    chromium.wait_for(f"document.readyState === 'complete' && !{element('entry')}.hidden && {element('page')}.hidden")
    assert chromium.evaluate(f"{element('prompt')}.value + {element('answer')}.textContent") == ""


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_stop_ends_the_answer_and_shows_its_cost(live, chromium, halt_engine, by_keyboard):
    server = live()
    go_on = halt_engine(server)
    open_page(chromium, server)
    ask(chromium, tokens=60)
    chromium.wait_for(f"{element('answer')}.textContent !== '' && document.activeElement.id === 'stop'")
    if by_keyboard:
        press(chromium, "Escape")
    else:
        chromium.evaluate(f"{element('stop')}.click()")
    chromium.wait_for(f"performance.getEntriesByName('{server.url}/try/stop').length > 0")
    go_on.set()
    wait_for_end(chromium)
    released = server.ledger.curator.state.tokens_released
    assert 0 < released < 60
    assert text_of(chromium, "answer-tokens") == text_of(chromium, "total-tokens") == str(released)
    assert text_of(chromium, "progress").startswith("Stopped by you after")
    assert not is_shown(chromium, "refusal")
    assert chromium.evaluate("document.activeElement.id") == "write"
    write(chromium, tokens=5)
    assert text_of(chromium, "answer-tokens") == "5"


def test_chat_is_offered_where_the_model_has_a_template(live, chromium):
    server = live()
    open_page(chromium, server)
    chromium.evaluate(f"{element('mode-chat')}.click()")
    assert text_of(chromium, "prompt-label") == "Message"
    write(chromium, prompt="good morning")
    assert any(url.endswith("/v1/chat/completions") for url in chromium.requested)
    assert text_of(chromium, "answer-tokens") == str(server.ledger.curator.state.tokens_released)
    assert text_of(chromium, "given") == ""


def test_no_chat_without_a_template(live, chromium):
    open_page(chromium, live(chat_template=None))
    assert not is_shown(chromium, "mode")


def test_text_of_the_public_model_is_marked_and_costs_nothing(live, chromium, halt_engine):
    server = live(total_budget=6 * NATS, on_exhausted=OnExhausted.PUBLIC)
    halt_engine(server).set()
    open_page(chromium, server)
    write(chromium, tokens=30)
    assert text_of(chromium, "answer-tokens") == "6"
    assert text_of(chromium, "answer-unit") == "tokens, and 24 of the public model, not charged"
    parts = chromium.evaluate(f"[...{element('answer')}.children].map((part) => part.className)")
    assert parts == ["", "public"]
    assert is_shown(chromium, "public-note")


def test_budget_spent_in_the_middle_and_before(live, chromium, halt_engine):
    server = live(total_budget=6 * NATS)
    halt_engine(server).set()
    open_page(chromium, server)
    write(chromium, tokens=30)
    heading, text = refusal_on(chromium)
    assert (heading, text_of(chromium, "answer-tokens")) == ("Nothing more may be written", "6")
    assert "waiting does not help" in text
    assert text_of(chromium, "progress") == "Not finished."
    assert text_of(chromium, "answer") != ""
    write(chromium, tokens=30)
    assert refusal_on(chromium)[0] == "Nothing more may be written"
    assert text_of(chromium, "progress") == "Nothing was written."
    open_page(chromium, server)
    assert refusal_on(chromium) == ("Nothing can be written now", "The privacy budget of this deployment is spent.")


def test_quota_and_rate_of_a_key(live, chromium):
    server = live()
    open_page(chromium, server, server.key("small", total_tokens=3))
    write(chromium, tokens=30)
    heading, text = refusal_on(chromium)
    assert heading == "Nothing more may be written"
    assert "quota of tokens" in text
    open_page(chromium, server, server.key("slow", tokens_per_minute=40))
    write(chromium, tokens=40)
    write(chromium, tokens=40)
    heading, text = refusal_on(chromium)
    assert heading == "Too much at once"
    assert "Worth another try in" in text


def test_keys_that_are_wrong_lack_the_scope_or_end(live, chromium, halt_engine):
    server = live()
    admin, ward = server.key("metrics alone", Scope.ADMIN), server.key("ward 3")
    chromium.open(f"{server.url}/try", 1100, 900)
    chromium.wait_for(f"!{element('entry')}.hidden")
    for key, reason in (("rtc-nobody-x", "not valid"), (admin, "no scope 'generate'")):
        enter_key(chromium, key)
        chromium.wait_for(f"{element('entry-reason')}.textContent.includes({reason!r})")
        assert chromium.evaluate("document.activeElement.id") == "key"
        assert is_shown(chromium, "entry")
        assert not is_shown(chromium, "page")
    enter_key(chromium, ward)
    chromium.wait_for(f"!{element('page')}.hidden")
    go_on = halt_engine(server)
    ask(chromium, tokens=60)
    chromium.wait_for(f"{element('answer')}.textContent !== ''")
    server.keys.revoke(ward.split("-")[1])
    eventually(lambda: all(job.cancelled for job in server.service.batcher._active) or None)
    go_on.set()
    wait_for_end(chromium)
    assert refusal_on(chromium)[0] == "The key is not accepted"
    assert is_shown(chromium, "entry")
    assert text_of(chromium, "answer") != ""


def test_stopping_server_says_so_before_and_in_an_answer(live, chromium, halt_engine):
    server = live()
    go_on = halt_engine(server)
    open_page(chromium, server)
    ask(chromium, tokens=60)
    chromium.wait_for(f"{element('answer')}.textContent !== ''")
    server.service.batcher.begin_closing(0)
    go_on.set()
    wait_for_end(chromium)
    assert refusal_on(chromium)[0] == "The server is stopping"
    assert text_of(chromium, "progress") == "Not finished."
    write(chromium)
    assert refusal_on(chromium)[0] == "The server is stopping"
    assert text_of(chromium, "progress") == "Nothing was written."


def test_no_connection_and_a_proxy_of_its_own_words(live, chromium):
    server = live()
    open_page(chromium, server)
    fail = "window.fetch = () => Promise.{}"
    chromium.evaluate(fail.format("reject(new TypeError('network'))"))
    write(chromium)
    assert refusal_on(chromium)[0] == "No connection"
    chromium.evaluate(fail.format("resolve(new Response('<h1>Bad Gateway</h1>', {status: 502}))"))
    write(chromium)
    assert refusal_on(chromium) == (
        "The server cannot be reached",
        "Something between this page and the server answered with status 502.",
    )


def test_answer_that_breaks_off_keeps_its_text(live, chromium):
    server = live()
    open_page(chromium, server)
    chunk = {"choices": [{"text": "half a word", "reticent": {"source": "private"}, "finish_reason": None}]}
    stream = json.dumps(f"data: {json.dumps(chunk)}\n\ndata: {{")
    for after in ("stream.close()", "stream.error(new TypeError('network'))"):
        chromium.evaluate(
            "window.original ??= window.fetch; window.fetch = (path, options) => path !== '/v1/completions' ? "
            "window.original(path, options) : Promise.resolve(new Response(new ReadableStream({async start(stream) {"
            f"stream.enqueue(new TextEncoder().encode({stream})); await new Promise((go) => setTimeout(go, 50));"
            f"{after}"
            "}})))"
        )
        write(chromium)
        assert refusal_on(chromium)[0] == "The answer broke off"
        assert text_of(chromium, "answer") == "half a word"
        assert text_of(chromium, "answer-tokens") == "\N{EN DASH}"


def test_every_error_of_the_server_has_a_heading(live, chromium):
    chromium.open(f"{live().url}/try", 1100, 900)
    makers = [
        make for _, make in inspect.getmembers(errors, inspect.isfunction)
        if inspect.signature(make).return_annotation is errors.ApiError and make is not errors.client_left
    ]  # fmt: skip
    assert len(makers) > 10
    for make in makers:
        arguments = [10.0] * len(inspect.signature(make).parameters)
        error = make(*arguments)
        for status in (error.status, 0):  # 0: in an event of a stream
            detail = json.dumps(error.body["error"])
            found = chromium.evaluate(
                f"import('/dashboard/refusals.js').then((all) => all.refusalOf({detail}, {status}).heading)"
            )
            if error.body["error"]["code"] or status:
                assert (found == "This was refused") == (error.status == 400), make.__name__


def test_keyboard_alone_is_enough(live, chromium):
    server = live()
    key = server.key("ward 3")
    chromium.open(f"{server.url}/try", 1100, 900)
    chromium.wait_for("document.activeElement.id === 'key'")
    chromium.call("Input.insertText", text=key)
    press(chromium, "Enter")
    chromium.wait_for("document.activeElement.id === 'prompt'")
    chromium.call("Input.insertText", text="Dear Dr")
    reached = []
    for _ in range(3):
        press(chromium, "Tab")
        reached.append(chromium.evaluate("document.activeElement.id"))
    assert reached[:2] == ["length", "write"]
    chromium.evaluate(f"{element('prompt')}.focus()")
    press(chromium, "Enter", modifiers=2)
    chromium.wait_for(f"{element('progress')}.textContent.startsWith('Finished')")
    assert chromium.evaluate("document.activeElement.id") == "write"
    press(chromium, "Space")
    chromium.wait_for(f"Number({element('total-tokens')}.textContent) > Number({element('answer-tokens')}.textContent)")


def test_screen_reader_finds_names_headings_and_live_regions(live, chromium):
    server = live()
    open_page(chromium, server, server.key("ward 3"))
    write(chromium)
    nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored") and "role" in node
    }
    for expected in (
        ("navigation", "Pages"), ("main", ""), ("form", "Write"), ("textbox", "Beginning of the text"),
        ("spinbutton", "At most"), ("button", "Write"), ("button", "Forget the key"), ("link", "Dashboard"),
        ("heading", "Reticent"), ("heading", "Write"), ("heading", "Answer"), ("heading", "What this answer cost"),
        ("region", "Answer"), ("group", "What shall the model do?"), ("radio", "answer a message"),
    ):  # fmt: skip
        assert expected in named, expected
    assert [role for role, name in named if role in ("button", "link", "textbox", "radio") and not name] == []
    levels = chromium.evaluate(
        "[...document.querySelectorAll('h1, h2, h3')].filter((one) => one.offsetParent).map((one) => one.tagName)"
    )
    assert levels[0] == "H1"
    assert set(levels[1:]) == {"H2"}
    live_regions = "[...document.querySelectorAll('[aria-live], [role=status], [role=alert]')].map((one) => one.id)"
    assert set(chromium.evaluate(live_regions)) == {"answer", "progress", "refusal"}
    assert chromium.evaluate("document.documentElement.lang") == "en"


def test_page_fits_a_phone_and_follows_dark_mode(live, chromium, halt_engine):
    server = live(total_budget=500 * NATS)
    halt_engine(server).set()
    key = server.key("ward 3", total_tokens=1000)
    ARTIFACTS.mkdir(exist_ok=True)
    papers = {}
    for name, width, height, dark in (
        ("", 1100, 900, False), ("-phone", 360, 740, False),
        ("-dark", 1100, 900, True), ("-phone-dark", 360, 740, True),
    ):  # fmt: skip
        open_page(chromium, server, key, width, height, dark)
        write(chromium, prompt="a" * 45)
        assert text_of(chromium, "answer") != ""
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width
        (ARTIFACTS / f"try{name}.png").write_bytes(chromium.screenshot())
        papers[name] = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
    assert papers[""] == papers["-phone"] != papers["-dark"] == papers["-phone-dark"]


def test_pages_link_to_each_other_and_are_locked_to_their_own_origin(live):
    with live().http() as http:
        page, dashboard = http.get("/try"), http.get("/")
        assert 'href="/try"' in dashboard.text
        assert 'href="/"' in page.text
        for name in ("try.js", "try.css", "refusals.js", "elements.js"):
            script = http.get(f"/dashboard/{name}")
            assert script.status_code == 200
            assert "http://" not in script.text.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in script.text
        for response in (page, http.get("/dashboard/try.js")):
            assert response.headers["content-security-policy"] == dashboard.headers["content-security-policy"]
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "https://" not in page.text + dashboard.text
        assert "style=" not in page.text
        assert "onclick" not in page.text
        assert http.head("/try").status_code == 200
