import json

import numpy as np
import pytest
import typer
from built_runs import write_manifest

from reticent.api.deployments import run_id
from reticent.cli.main import main
from reticent.ledger.keys import Keyring
from reticent.ledger.store import Ledger
from reticent.pac.charging import Charging
from reticent.pac.wording import HALF_QUESTION, NOT_BOUNDED
from reticent.randomness import SystemNoise


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("RETICENT_KEY", raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    write_manifest(folder)
    return folder


def deploy(run_dir, tokens=3, **options):
    with Ledger.open(run_dir, run_id(run_dir), 8, Keyring.of_user(), noise=SystemNoise(), **options) as ledger:
        for step in range(tokens):
            votes = np.arange(8) % 2 if step else np.zeros(8, np.int64)
            ledger.curator.release(votes, Charging(2.0**-10), request="r", step=step)


def has_state(run_dir):
    return (run_dir / "ledger.sqlite").exists()


def test_show_tells_what_was_spent_and_nothing_of_the_secret(run_dir, capsys):
    deploy(run_dir, total_budget=0.5)
    assert main(["state", "show", str(run_dir), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {
        "charging",
        "tokens",
        "dissenting_steps",
        "nats_charged",
        "nats_cap",
        "nats_left",
        "half_success",
        "world_success",
        "worlds",
    }
    assert (shown["tokens"], shown["dissenting_steps"], shown["worlds"]) == (3, 2, 8)
    assert shown["nats_charged"] == 3 * 2.0**-10
    assert (shown["nats_cap"], shown["nats_left"]) == (0.5, 0.5 - 3 * 2.0**-10)
    assert 0.5 < shown["half_success"] < 0.54
    assert 1 / 8 < shown["world_success"] < 0.2


def test_show_without_a_cap_and_for_people(run_dir, capsys):
    deploy(run_dir, tokens=0)
    assert main(["state", "show", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nats_cap"] is None
    assert main(["state", "show", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert "none" in text
    assert all(part in text for part in ("50.00 %", HALF_QUESTION, NOT_BOUNDED))


@pytest.mark.parametrize("command", [["show"], ["reset", "--void-guarantee", "--yes"]])
def test_a_folder_without_a_run_or_a_deployment_is_one_line_and_code_2(run_dir, tmp_path, capsys, command):
    for folder in (run_dir, tmp_path / "nowhere"):
        assert main(["state", command[0], str(folder), *command[1:]]) == 2
        assert "error: " in capsys.readouterr().err
        assert not (folder / "deployment.lock").exists()


def test_reset_says_what_it_voids_and_does_it_only_when_told(run_dir, capsys, monkeypatch):
    deploy(run_dir)
    assert main(["state", "reset", str(run_dir)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "3 tokens were released" in said
    assert "no single bound will cover what was released so far together with what is released after" in said
    assert "nothing was deleted; add --void-guarantee" in said
    assert has_state(run_dir)

    monkeypatch.setattr("typer.confirm", refuse)
    assert main(["state", "reset", str(run_dir), "--void-guarantee"]) == 1
    assert has_state(run_dir)

    assert main(["state", "reset", str(run_dir), "--void-guarantee", "--yes"]) == 0
    assert not has_state(run_dir)
    deploy(run_dir)


def refuse(question, *, abort, err):
    assert abort
    assert err
    raise typer.Abort


def test_a_state_that_cannot_be_opened_can_still_be_reset(run_dir, capsys):
    deploy(run_dir)
    (run_dir / "ledger.sqlite").write_bytes(b"damaged")
    assert main(["state", "show", str(run_dir)]) == 2
    assert main(["state", "reset", str(run_dir), "--void-guarantee", "--yes"]) == 0
    assert "an unknown number of tokens" in capsys.readouterr().err
    deploy(run_dir)


@pytest.mark.parametrize("command", ["state", "ledger"])
def test_no_bound_is_shown_for_a_run_that_does_not_say_who_is_in_which_world(run_dir, capsys, command):
    write_manifest(run_dir, membership=False)
    deploy(run_dir)
    assert main([command, "show", str(run_dir), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tokens"], shown["half_success"], shown["world_success"]) == (3, None, None)
    assert main([command, "show", str(run_dir)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "no prior is known" in text
    assert "right at most" not in text
