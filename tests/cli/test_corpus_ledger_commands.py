"""`ledger` and `state` for a corpus deployment: ρ, (ε, δ), success and what is left, and nothing of places."""

import json

import numpy as np
import pytest

from reticent.api.deployments import run_id
from reticent.cli.main import main
from reticent.dp import bounds
from reticent.dp.curator import CorpusBallot
from reticent.dp.relations import Relation
from reticent.dp.release import Aggregate, CorpusSettings
from reticent.ledger.corpus_store import CorpusLedger
from reticent.ledger.keys import Keyring
from reticent.models.base import BaseModelRecord
from reticent.randomness import SystemNoise
from reticent.training.settings import LoraSettings
from reticent.worlds.assignment import Assignment
from reticent.worlds.manifest import MANIFEST_NAME, SCHEMA_VERSION, WORLDS_NAME, Manifest
from reticent.worlds.places import PLACES_NAME

SETTINGS = CorpusSettings(0.5, 2.0, 1.0, 3, 64, Relation.REPLACEMENT)
CHARGE = SETTINGS.charge_units
PLACES = 5


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("RETICENT_KEY", "RETICENT_DATABASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    base = BaseModelRecord(name="base", class_name="LlamaForCausalLM", content_hash="0" * 64, tokenizer_hash="0" * 64)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        created="2026-01-01",
        num_worlds=SETTINGS.num_worlds,
        base=base,
        lora=LoraSettings(),
        assignment=Assignment.PLACES,
        places=PLACES,
        unit_records=1,
        files={WORLDS_NAME: "0" * 64, PLACES_NAME: "0" * 64},
    )
    (folder / MANIFEST_NAME).write_text(manifest.model_dump_json())
    return folder


def deploy(run_dir, tokens=4, **options):
    aggregate = Aggregate(np.arange(3), np.log([0.5, 0.3, 0.2]), np.array([5, 0, -5]))
    keyring, noise = Keyring.of_user(), SystemNoise()
    with CorpusLedger.open(run_dir, run_id(run_dir), SETTINGS, keyring, bits=noise, **options) as ledger:
        ledger.curator.release_many([CorpusBallot(aggregate, "r", step, "k1") for step in range(tokens)])


def printed_json(capsys, *arguments):
    assert main(list(map(str, arguments))) == 0
    return json.loads(capsys.readouterr().out)


def test_show_tells_rho_epsilon_success_and_what_is_left(run_dir, capsys):
    deploy(run_dir, total_rho=0.5)
    shown = printed_json(capsys, "ledger", "show", run_dir, "--json", "--delta", "1e-5")
    rho = 4 * CHARGE / 2**64
    at_cap = shown.pop("at_cap")
    in_blocks = shown.pop("in_blocks")
    [usage] = shown.pop("usage")
    assert shown == {
        "guarantee": "corpus",
        "tokens": 4,
        "rho": rho,
        "epsilon": bounds.epsilon(rho, 1e-5),
        "delta": 1e-5,
        "membership_success": bounds.membership_success(rho),
        "relation": "replacement",
        "clip": 0.5,
        "gain": 2.0,
        "temperature": 1.0,
        "w": 1.0,
        "candidates": 3,
        "worlds": 64,
        "rho_per_token": CHARGE / 2**64,
        "rho_cap": 0.5,
        "rho_left": (2**63 - 4 * CHARGE) / 2**64,
        "tokens_left": 2**63 // CHARGE - 4,
    }
    assert at_cap["membership_success"] == pytest.approx(bounds.membership_success(0.5), rel=1e-3)
    assert at_cap["epsilon"] <= bounds.epsilon(0.5, 1e-5)
    assert in_blocks["membership_success"] > 0.5
    assert (usage["key"], usage["tokens"]) == ("k1", 4)


def test_people_read_the_same_in_both_commands(run_dir, capsys):
    deploy(run_dir, total_rho=0.5)
    for command in (("ledger", "show"), ("state", "show")):
        assert main([*command, str(run_dir)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        for part in (
            "guarantee corpus",
            "Is a unit in the corpus? right at most",
            "one unit more or less, or other texts of one unit (replacement)",
            "epsilon at delta 1e-06",
            f"{2**63 // CHARGE - 4:,} tokens",
            "once the cap is spent",
        ):
            assert part in text
        assert "nats" not in text


def test_without_a_cap_nothing_is_left_or_said_of_it(run_dir, capsys):
    deploy(run_dir, tokens=0)
    shown = printed_json(capsys, "state", "show", run_dir, "--json")
    assert (shown["tokens"], shown["rho"], shown["epsilon"], shown["membership_success"]) == (0, 0.0, 0.0, 0.5)
    assert (shown["rho_cap"], shown["rho_left"], shown["tokens_left"], shown["at_cap"]) == (None, None, None, None)
    assert main(["ledger", "show", str(run_dir)]) == 0
    assert "no limit" in capsys.readouterr().out


def test_delta_is_held_against_the_places_of_the_run(run_dir, capsys):
    deploy(run_dir)
    assert main(["ledger", "show", str(run_dir), "--delta", repr(1 / (64 * PLACES))]) == 2
    assert "1/320" in capsys.readouterr().err
    assert main(["ledger", "show", str(run_dir), "--delta", repr(0.99 / (64 * PLACES))]) == 0


def test_verify_and_export_speak_of_rho(run_dir, capsys):
    deploy(run_dir)
    assert printed_json(capsys, "ledger", "verify", run_dir, "--json") == {
        "releases": 4,
        "rho_charged": 4 * CHARGE / 2**64,
        "intact": True,
    }
    assert main(["ledger", "verify", str(run_dir)]) == 0
    assert "intact: 4 releases, rho " in capsys.readouterr().out
    assert main(["ledger", "export", str(run_dir)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["step"], line["key"], line["rho"], line["coin_key"]) for line in lines] == [
        (step, "k1", CHARGE / 2**64, None) for step in range(4)
    ]


def test_a_reset_says_how_many_tokens_it_gives_up(run_dir, capsys):
    deploy(run_dir)
    assert main(["state", "reset", str(run_dir), "--void-guarantee", "--yes"]) == 0
    assert "So far 4 tokens were released" in capsys.readouterr().err
    assert main(["ledger", "show", str(run_dir)]) == 2
