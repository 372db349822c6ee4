"""API keys over their life: found by a beginning of their id, changed, expired, and read from an older table."""

import time

import pytest
from ledger_tools import open_ledger, release, sql

from reticent.errors import InvalidValueError
from reticent.ledger import api_keys as module
from reticent.ledger.api_keys import ExpiredKeyError, KeyTable, Scope, authenticate
from reticent.ledger.database import Database

TOMORROW = int(time.time()) + 86_400

# As an earlier release made it.
OLD_TABLE = (
    "CREATE TABLE api_keys (id VARCHAR(32) NOT NULL PRIMARY KEY, name TEXT NOT NULL, salt {binary} NOT NULL, "
    "hash {binary} NOT NULL, scopes TEXT NOT NULL, tokens_per_minute BIGINT, total_tokens BIGINT, "
    "created BIGINT NOT NULL, revoked BIGINT)"
)


@pytest.fixture
def table(run_dir, url):
    return KeyTable(Database.of_run(run_dir, url))


@pytest.fixture
def named_ids(monkeypatch):
    """Ids that the test chooses; secrets stay random."""

    def use(*ids):
        left = list(ids)
        monkeypatch.setattr(module.secrets, "token_hex", lambda _: left.pop(0))

    return use


def test_an_expired_key_is_told_from_a_wrong_one(table):
    key, text = table.create("a", [Scope.GENERATE], expires=TOMORROW)
    keys = table.read()
    assert keys[0].key == key
    assert authenticate(text, keys, TOMORROW - 1) == key
    for now in (TOMORROW, TOMORROW + 1e9, float("nan")):
        with pytest.raises(ExpiredKeyError):
            authenticate(text, keys, now)
    # Only who has the whole key learns that it has expired.
    assert authenticate(text[:-1], keys, TOMORROW + 1) is None
    table.revoke(key.id)
    assert authenticate(text, table.read(), TOMORROW + 1) is None


@pytest.mark.parametrize("expires", [1, int(time.time()) - 1, 2**60], ids=["long-ago", "a-second-ago", "too-far"])
def test_a_key_expires_in_the_future(table, expires):
    with pytest.raises(InvalidValueError, match="only expire in the future"):
        table.create("a", [Scope.GENERATE], expires=expires)
    key, _ = table.create("a", [Scope.GENERATE])
    with pytest.raises(InvalidValueError, match="only expire in the future"):
        table.change(key.id, {"expires": expires})
    assert table.find(key.id).expires is None


def test_a_beginning_that_is_one_keys_own_finds_it(table, named_ids):
    named_ids("aab1", "aab2", "aa", "b777")
    made = {(key := table.create(name, [Scope.GENERATE])[0]).id: key for name in ("one", "two", "three", "four")}
    for text, found in (
        ("b", "b777"),
        ("b777", "b777"),
        ("aab2", "aab2"),
        ("rtc-b777-secret", "b777"),
        ("rtc-b7", "b777"),
    ):
        assert table.find(text) == made[found], text
    # The whole of an id is never ambiguous, though others begin with it.
    assert table.find("aa").name == "three"
    for text in ("aab", "a"):
        with pytest.raises(InvalidValueError, match=r"several keys: .*aab1 \(one\), aab2 \(two\)"):
            table.revoke(text)
    for text in ("", "c", "rtc-", "b7777", "rtc-c-secret"):
        with pytest.raises(InvalidValueError, match="there is no key") as caught:
            table.revoke(text)
        assert "secret" not in str(caught.value)
    assert table.revoke("b").id == "b777"
    assert {stored.key.id for stored in table.read() if stored.key.revoked is not None} == {"b777"}


def test_a_key_changes_in_what_is_said_and_in_nothing_else(table):
    other, _ = table.create("other", [Scope.GENERATE], 5, 6, TOMORROW)
    key, text = table.create("old name", [Scope.GENERATE], 10, 20, TOMORROW)
    changed = table.change(key.id[:-1], {"name": "new name", "total_tokens": None})
    assert authenticate(text, table.read()) == changed
    assert (changed.id, changed.name, changed.scopes, changed.created) == (key.id, "new name", key.scopes, key.created)
    assert (changed.tokens_per_minute, changed.total_tokens, changed.expires) == (10, None, TOMORROW)
    assert table.change(key.id, {"expires": None, "tokens_per_minute": 7}).total_tokens is None
    assert table.find(key.id).expires is None
    assert table.find(other.id) == other
    for wrong in ({}, {"name": ""}, {"total_tokens": 0}, {"tokens_per_minute": -1}):
        with pytest.raises(InvalidValueError):
            table.change(key.id, wrong)
    table.revoke(key.id)
    with pytest.raises(InvalidValueError, match="stays so"):
        table.change(key.id, {"name": "again"})
    assert table.find(key.id).name == "new name"


def test_a_table_of_an_earlier_release_is_read_and_then_completed(table, run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        release(ledger, 1)
        binary = "BLOB" if url is None else "BYTEA"
        key, text = table.create("early", [Scope.GENERATE], 10, 20)
        rows = sql(run_dir, url, "SELECT salt, hash FROM api_keys")
        sql(run_dir, url, "DROP TABLE api_keys", OLD_TABLE.format(binary=binary))
        salt, digest = (bytes(value).hex() for value in rows[0])
        literal = "X'{}'" if url is None else "'\\x{}'"
        hashed = f"{literal.format(salt)}, {literal.format(digest)}"
        values = f"'{key.id}', 'early', {hashed}, 'generate', 10, 20, {key.created}, NULL"
        sql(run_dir, url, f"INSERT INTO api_keys VALUES ({values})")
        assert authenticate(text, table.read(deployed=True)) == key
        assert table.change(key.id, {"expires": TOMORROW}).expires == TOMORROW
        assert table.read()[0].key.expires == TOMORROW
        _, later = table.create("late", [Scope.ADMIN], expires=TOMORROW + 1)
        assert authenticate(later, table.read()).expires == TOMORROW + 1
        assert authenticate(text, table.read()).name == "early"
        # The record of releases is another matter, and goes on.
        release(ledger, 1)
    with open_ledger(run_dir, keyring, url) as ledger:
        assert ledger.curator.state.tokens_released == 2
