"""The charging rule of a deployment: chosen once, kept in the ledger, the same at every opening."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from ledger_tools import BUDGET, WORLDS, assert_same, open_ledger, read_ledger, sql

from reticent.errors import DeploymentStateError, InvalidValueError, StorageError
from reticent.ledger.database import Database
from reticent.ledger.usage import UsageTable
from reticent.pac.accounting import charge_units, units_to_nats
from reticent.pac.charging import Charging, ChargingRule
from reticent.pac.curator import Ballot

VERSION_1 = Path(__file__).with_name("version_1")
UNIT = charge_units(BUDGET)
FIXED, DISSENT = ChargingRule.FIXED, ChargingRule.DISSENT


def differs(position):
    return position % 3 == 0


def release(ledger, count, budget=BUDGET):
    """One token in three is a dissenting one; keys k1 and k2 take turns."""
    curator = ledger.curator
    for _ in range(count):
        position = curator.state.tokens_released
        votes = np.arange(WORLDS) % 2 if differs(position) else np.zeros(WORLDS, np.int64)
        charging = Charging(budget, curator.charging_rule)
        curator.release_many([Ballot(votes, charging, "r", position, None, f"k{1 + position % 2}")])


def spent(position, rule):
    return sum(UNIT for each in range(position) if rule is FIXED or differs(each))


@pytest.mark.parametrize("rule", [FIXED, DISSENT])
def test_a_rule_is_kept_over_every_opening_and_another_is_refused(run_dir, keyring, url, rule):
    [other] = {FIXED, DISSENT} - {rule}
    with open_ledger(run_dir, keyring, url, charging_rule=rule, total_budget=1.0) as ledger:
        release(ledger, 5)
        left = ledger.curator.state
    assert (left.charging_rule, left.spent_units) == (rule, spent(5, rule))
    with pytest.raises(
        InvalidValueError, match=rf"charges by the rule {rule}.*Leave the option out, or deploy another"
    ):
        open_ledger(run_dir, keyring, url, charging_rule=other)
    for asked in (None, rule):
        with open_ledger(run_dir, keyring, url, charging_rule=asked) as ledger:
            assert_same(ledger.curator.state, left)
            assert ledger.curator.charging_rule is rule
            release(ledger, 4)
            left = ledger.curator.state
    with read_ledger(run_dir, keyring, url) as reader:
        assert reader.verify().units == reader.state.spent_units == spent(13, rule)
        assert reader.state.charging_rule is rule
        assert reader.units_by_rule() == {FIXED: spent(13, FIXED), DISSENT: spent(13, DISSENT)}


def test_a_new_deployment_charges_every_token_unless_another_rule_is_asked_for(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url) as ledger:
        assert ledger.curator.charging_rule is FIXED


def test_what_others_may_read_is_the_same_whether_worlds_differ_or_not(run_dir, keyring, url):
    """The export, and the counts that a key's holder sees, hold the most that a token could cost."""
    with open_ledger(run_dir, keyring, url, charging_rule=DISSENT) as ledger:
        release(ledger, 6)
        release(ledger, 6, budget=BUDGET / 4)
    usage = UsageTable(Database.of_run(run_dir, url))
    found = {key: (spending.tokens, spending.units) for key, spending in usage.spending_by_key().items()}
    assert found == dict.fromkeys(("k1", "k2"), (6, 3 * UNIT + 3 * UNIT // 4))
    with read_ledger(run_dir, keyring, url) as reader:
        assert [row["nats"] for row in reader.releases()] == [BUDGET] * 6 + [BUDGET / 4] * 6
        assert units_to_nats(reader.state.spent_units) == 2 * BUDGET + 2 * BUDGET / 4


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE deployment SET charging_rule = 'fixed'", "does not open"),
        ("UPDATE deployment SET charging_rule = 'free'", "names no charging rule"),
        ("UPDATE deployment SET charging_rule = NULL", "names no charging rule"),
        ("UPDATE deployment SET schema_version = 1", "does not open"),
        ("UPDATE releases SET reserve_units = charge_units WHERE number = 2", "release 2 does not fit its digest"),
        ("UPDATE releases SET reserve_units = NULL WHERE number = 2", "release 2 does not fit its digest"),
        ("UPDATE releases SET charge_units = reserve_units WHERE number = 2", "release 2 does not fit its digest"),
    ],
)
def test_an_edit_of_the_rule_or_of_what_a_token_could_cost_is_found(run_dir, keyring, url, statement, message):
    with open_ledger(run_dir, keyring, url, charging_rule=DISSENT) as ledger:
        release(ledger, 6)
    sql(run_dir, url, statement)
    with pytest.raises(DeploymentStateError, match=message):
        open_ledger(run_dir, keyring, url)
    with pytest.raises(DeploymentStateError, match=message), read_ledger(run_dir, keyring, url) as reader:
        reader.verify()


def test_a_dropped_column_is_no_traceback(run_dir, keyring):
    with open_ledger(run_dir, keyring, charging_rule=DISSENT) as ledger:
        release(ledger, 2)
    sql(run_dir, None, "ALTER TABLE releases DROP COLUMN reserve_units")
    with pytest.raises(StorageError, match="reserve_units"):
        open_ledger(run_dir, keyring)


@pytest.fixture
def earlier(run_dir, keyring):
    """A ledger that a release before the charging rules wrote: 12 tokens, one in three dissenting, cap 1 nat."""
    with sqlite3.connect(run_dir / "ledger.sqlite") as connection:
        connection.executescript((VERSION_1 / "ledger.sql").read_text())
    connection.close()
    keyring.folder.mkdir(parents=True, mode=0o700)
    for name in VERSION_1.glob("[0-9a-f]*.*"):
        (keyring.folder / name.name).touch(0o600)
        shutil.copyfile(name, keyring.folder / name.name)


@pytest.mark.usefixtures("earlier")
def test_an_earlier_ledger_reads_as_fixed_and_goes_on_as_it_is(run_dir, keyring):
    with read_ledger(run_dir, keyring) as reader:
        assert (reader.header.schema, reader.state.charging_rule) == (1, FIXED)
        assert reader.verify().units == reader.state.spent_units == 12 * UNIT
        assert reader.units_by_rule() == {FIXED: 12 * UNIT, DISSENT: 4 * UNIT}
        assert [row["nats"] for row in reader.releases()] == [BUDGET] * 12
    with pytest.raises(InvalidValueError, match="charges by the rule fixed"):
        open_ledger(run_dir, keyring, charging_rule=DISSENT)
    for asked in (None, FIXED):
        with open_ledger(run_dir, keyring, charging_rule=asked) as ledger:
            release(ledger, 3)
    with read_ledger(run_dir, keyring) as reader:
        assert reader.header.schema == 1
        assert reader.verify().units == 18 * UNIT
    spending = UsageTable(Database.of_run(run_dir, None)).spending_by_key()
    assert {key: each.units for key, each in spending.items()} == {"k1": 9 * UNIT, "k2": 9 * UNIT}


@pytest.mark.usefixtures("earlier")
def test_an_earlier_ledger_cannot_be_edited_into_another_rule(run_dir, keyring):
    sql(
        run_dir,
        None,
        "ALTER TABLE deployment ADD COLUMN charging_rule VARCHAR(16)",
        "UPDATE deployment SET charging_rule = 'dissent'",
    )
    with open_ledger(run_dir, keyring) as ledger:
        assert ledger.curator.charging_rule is FIXED
    sql(run_dir, None, "UPDATE deployment SET schema_version = 2")
    with pytest.raises(DeploymentStateError, match="does not open"):
        open_ledger(run_dir, keyring)


def test_a_state_that_is_read_again_after_a_lost_answer_has_the_rule(run_dir, keyring, url):
    with open_ledger(run_dir, keyring, url, charging_rule=DISSENT) as ledger:
        release(ledger, 2)
        assert ledger.reconcile(ledger.curator.state).charging_rule is DISSENT
