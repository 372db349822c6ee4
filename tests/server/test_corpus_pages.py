"""The dashboard and the page to try of a corpus deployment, in a real browser."""

import pytest
from headless import CHROMIUM, browser
from missing import skip_without

from reticent.dp.relations import DESCRIPTIONS, Relation
from reticent.dp.wording import MEMBERSHIP_QUESTION, NOT_COVERED
from reticent.ledger.api_keys import Scope


@pytest.fixture
def chromium():
    if not CHROMIUM.exists():
        skip_without("Chromium", "apt-get install chromium")
    with browser() as page:
        yield page


def test_the_dashboard_shows_rho_and_what_it_bounds_and_nothing_of_the_other_guarantee(live_corpus, chromium):
    server = live_corpus(tokens=500)
    server.openai().completions.create(model="tiny", prompt="abc", max_tokens=20)
    chromium.open(server.url, 390, 844)
    chromium.wait_for("!document.getElementById('page').hidden")
    text = chromium.evaluate("document.body.innerText")
    released = server.ledger.curator.state.tokens_released
    for expected in (
        MEMBERSHIP_QUESTION, f"Not covered: {NOT_COVERED}.", DESCRIPTIONS[Relation.ADD_REMOVE],
        "\N{GREEK SMALL LETTER RHO}\N{NO-BREAK SPACE}",
        "ε\N{NO-BREAK SPACE}≤", "at δ = 0.000001", "blocks", f"{500 - released:,}", f"{100 * released / 500:.1f}",
    ):  # fmt: skip
        assert expected in text, expected
    for other in ("Which half", "Which world", "Dissent", "undefined", "NaN"):
        assert other.lower() not in text.lower(), other
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
    assert chromium.problems == []


def test_the_page_to_try_says_what_an_answer_cost_and_what_is_promised(live_corpus, chromium):
    server = live_corpus(tokens=500)
    user, operator = server.key("ward"), server.key("operations", Scope.GENERATE, Scope.ADMIN)
    for key, is_operator in ((user, False), (operator, True)):
        chromium.open(f"{server.url}/try", 390, 844)
        chromium.wait_for("!document.getElementById('entry').hidden")
        chromium.evaluate(
            f"document.getElementById('key').value = {key!r}; document.getElementById('entry').requestSubmit()"
        )
        chromium.wait_for("!document.getElementById('page').hidden")
        chromium.evaluate(
            "document.getElementById('prompt').value = 'abc'; document.getElementById('ask').requestSubmit()"
        )
        chromium.wait_for("document.getElementById('progress').textContent.startsWith('Finished')")
        text = chromium.evaluate("document.body.innerText")
        for expected in (
            MEMBERSHIP_QUESTION,
            "Not covered",
            "in \N{GREEK SMALL LETTER RHO} (a measure of differential privacy)",
            "of the whole budget",
        ):
            assert expected in text, expected
        for other in ("nats", "half of the private texts", "Which world", "undefined", "NaN"):
            assert other not in text, other
        assert ("budget left" in text) == is_operator
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
    assert [line for line in chromium.problems if "401" not in line] == []
