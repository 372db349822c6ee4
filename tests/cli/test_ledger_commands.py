import json

import numpy as np
import pytest
from built_runs import write_manifest
from sqlalchemy import create_engine, text

from reticent.api.deployments import run_id
from reticent.cli.main import main
from reticent.ledger.keys import Keyring
from reticent.ledger.store import Ledger
from reticent.pac.bounds import attack_success
from reticent.pac.charging import Charging
from reticent.pac.curator import Ballot
from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED
from reticent.randomness import SystemNoise


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("RETICENT_KEY", "RETICENT_DATABASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    write_manifest(folder)
    return folder


def deploy(run_dir, url=None, **options):
    """Three tokens for one key and one without, on two days."""
    votes = np.arange(8) % 2
    identity, keyring = run_id(run_dir), Keyring.of_user()
    with Ledger.open(run_dir, identity, 8, keyring, database_url=url, noise=SystemNoise(), **options) as ledger:
        for now, key in ((86_399.9, "k1"), (86_400.0, "k1"), (86_401.5, "k1"), (86_402.0, None)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("reticent.ledger.store.time.time", lambda now=now: now)
                ledger.curator.release_many([Ballot(votes, Charging(2.0**-10), "réq", 7, bytes(16), key)])


def alter(run_dir, statement):
    engine = create_engine(f"sqlite:///{run_dir}/ledger.sqlite")
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def printed_json(capsys, *arguments):
    assert main(list(map(str, arguments))) == 0
    return json.loads(capsys.readouterr().out)


def test_show_tells_spent_left_bounds_and_use_by_key_and_day(run_dir, capsys):
    deploy(run_dir, total_budget=0.5)
    shown = printed_json(capsys, "ledger", "show", run_dir, "--json")
    assert shown == {
        "charging": "fixed",
        "tokens": 4,
        "dissenting_steps": 4,
        "nats_charged": 2.0**-8,
        "nats_cap": 0.5,
        "nats_left": 0.5 - 2.0**-8,
        "half_success": attack_success(2.0**-8, 0.5),
        "world_success": attack_success(2.0**-8, 1 / 8),
        "worlds": 8,
        "nats_by_rule": {"fixed": 2.0**-8, "dissent": 2.0**-8},
        "usage": [
            {"key": "k1", "day": "1970-01-01", "tokens": 1},
            {"key": None, "day": "1970-01-02", "tokens": 1},
            {"key": "k1", "day": "1970-01-02", "tokens": 2},
        ],
    }
    assert main(["ledger", "show", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("1970-01-02", "k1", "0.496094 nats", "4", HALF_QUESTION, NOT_BOUNDED))


def test_show_without_a_cap_or_a_release(run_dir, capsys):
    with Ledger.open(run_dir, run_id(run_dir), 8, Keyring.of_user(), noise=SystemNoise()):
        pass
    shown = printed_json(capsys, "ledger", "show", run_dir, "--json")
    assert (shown["nats_cap"], shown["nats_left"], shown["usage"], shown["tokens"]) == (None, None, [], 0)
    assert main(["ledger", "show", str(run_dir)]) == 0
    assert "no limit" in capsys.readouterr().out


def test_verify_passes_an_intact_ledger_and_fails_an_altered_one_with_the_finding(run_dir, capsys):
    deploy(run_dir)
    assert main(["ledger", "verify", str(run_dir)]) == 0
    assert "intact: 4 releases, 0.00390625 nats (2^-8)" in capsys.readouterr().out
    verified = printed_json(capsys, "ledger", "verify", run_dir, "--json")
    assert verified == {"releases": 4, "nats_charged": 2.0**-8, "intact": True}
    for statement, finding in (
        ("UPDATE releases SET step = 8 WHERE number = 2", "error: release 2 does not fit its digest"),
        ("DELETE FROM releases WHERE number > 1", "error: the ledger ends with release 1, but 4 were made"),
    ):
        alter(run_dir, statement)
        assert main(["ledger", "verify", str(run_dir)]) == 2
        captured = capsys.readouterr()
        assert finding in captured.err
        assert captured.out == ""
        alter(run_dir, "UPDATE releases SET step = 7")


def test_export_is_one_object_a_line_without_secrets_active_tokens_or_digests(run_dir, capsys):
    deploy(run_dir)
    assert main(["ledger", "export", str(run_dir)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {
        "release": 1,
        "time": "1970-01-01T23:59:59Z",
        "request": "réq",
        "step": 7,
        "coin_key": "00" * 16,
        "key": "k1",
        "nats": 2.0**-10,
    }
    assert [line["release"] for line in lines] == [1, 2, 3, 4]
    assert lines[3]["key"] is None


def test_the_database_can_be_named_by_option_or_environment(run_dir, tmp_path, capsys, monkeypatch):
    url = f"sqlite:///{tmp_path}/elsewhere.sqlite"
    deploy(run_dir, url)
    assert printed_json(capsys, "ledger", "verify", run_dir, "--database-url", url, "--json")["releases"] == 4
    assert main(["ledger", "verify", str(run_dir)]) == 2
    assert "there is no ledger at" in capsys.readouterr().err
    monkeypatch.setenv("RETICENT_DATABASE_URL", url)
    for command in ("show", "verify"):
        assert main(["ledger", command, str(run_dir)]) == 0
    assert main(["state", "show", str(run_dir)]) == 0
    assert main(["state", "reset", str(run_dir), "--void-guarantee", "--yes"]) == 0
    assert not (tmp_path / "elsewhere.sqlite").exists()


def test_a_ledger_in_postgresql(run_dir, postgresql_url, capsys):
    deploy(run_dir, postgresql_url, total_budget=1.0)
    shown = printed_json(capsys, "ledger", "show", run_dir, "--json", "--database-url", postgresql_url)
    assert (shown["tokens"], shown["nats_left"]) == (4, 1.0 - 2.0**-8)
    assert [use["tokens"] for use in shown["usage"]] == [1, 2, 1]
    assert main(["ledger", "export", str(run_dir), "--database-url", postgresql_url]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_folder_without_a_run_or_a_ledger_is_one_line_and_code_2(run_dir, tmp_path, capsys, command):
    for folder in (run_dir, tmp_path / "nowhere"):
        assert main(["ledger", command, str(folder)]) == 2
        assert "error: " in capsys.readouterr().err
        assert not (folder / "ledger.sqlite").exists()
