"""`reticent generate` on a run that carries the corpus guarantee: its JSON, its ledger, and what it refuses."""

import json

import pytest

from reticent.cli.main import main
from reticent.dp import bounds
from reticent.dp.accounting import units_to_rho
from reticent.dp.relations import Relation
from reticent.dp.release import CorpusSettings

SETTINGS = CorpusSettings(0.1, 3.0, 1.5, 8, 12, Relation.ADD_REMOVE)
TERMS = ("--clip", "0.1", "--gain", "3", "--temperature", "1.5", "--candidates", "8")


@pytest.fixture(scope="module")
def built(tmp_path_factory, tiny_llama_folder):
    folder = tmp_path_factory.mktemp("corpus")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"letter {n} says {'abcdefgh'[n] * 9}"}) + "\n" for n in range(8)))
    places = ("--guarantee", "corpus", "--worlds", "12", "--places", "1")
    size = ("--rank", "2", "--adapt-layers", "top:1", "--max-tokens", "32", "--epochs", "2")
    build = ["worlds", "build", str(corpus), "--model", str(tiny_llama_folder), "--out", str(folder / "run")]
    assert main([*build, *places, *size]) == 0
    return folder / "run"


@pytest.fixture
def run_dir(built, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("RETICENT_KEY", "RETICENT_DATABASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    run = tmp_path / "run"
    run.mkdir()
    for path in built.iterdir():
        if path.is_file():
            (run / path.name).hardlink_to(path)
    return run


def test_every_token_is_in_the_ledger_and_a_second_call_goes_on(run_dir, capsys):
    def said(*arguments):
        capsys.readouterr()
        assert main([arguments[0], *map(str, arguments[1:])]) == 0
        return capsys.readouterr()

    ask = ("generate", run_dir, "--prompt", "letter", "--max-tokens", "5", "--json")
    opened = said(*ask, *TERMS, "--total-epsilon", "8", "--delta", "1e-3")
    assert "hides whether a privacy unit is in the corpus at all" in opened.err
    assert "chosen now and stay" in opened.err
    first, second = json.loads(opened.out), json.loads(said(*ask, "--delta", "1e-3").out)
    charge = units_to_rho(SETTINGS.charge_units)
    assert (first["guarantee"], first["relation"]) == ("corpus", "add-remove")
    assert first["rho"] == first["tokens"] * charge
    assert (first["clip"], first["gain"], first["temperature"], first["delta"]) == (0.1, 3.0, 1.5, 1e-3)
    tokens = first["tokens"] + second["tokens"]
    assert (second["tokens_in_all"], second["rho_in_all"]) == (tokens, pytest.approx(tokens * charge, rel=1e-12))
    assert second["epsilon"] == bounds.epsilon(second["rho_in_all"], 1e-3)
    assert second["membership_success"] == bounds.membership_success(second["rho_in_all"])
    shown = json.loads(said("ledger", "show", run_dir, "--json").out)
    assert (shown["tokens"], shown["rho"], shown["tokens_left"]) == (
        tokens,
        second["rho_in_all"],
        second["tokens_left"],
    )
    assert shown["rho_cap"] == pytest.approx(bounds.rho_for_epsilon(8.0, 1e-3))
    text = said("generate", run_dir, "--prompt", "letter", "--max-tokens", "2")
    assert "Is a unit in the corpus?" in text.out
    assert "nats" not in text.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed", "3"], "--seed is refused"),
        (["--decoder", "greedy"], "--decoder greedy is refused"),
        (["--decoder", "gumbel"], "--decoder belongs to the other"),
        (["--step-budget", "2^-32"], "--step-budget belongs to the other"),
        (["--temperature", "0"], "temperature"),
        (["--candidates", "100000"], "vocabulary"),
        (["--total-epsilon", "-1"], "total epsilon"),
        (["--total-rho", "nan"], "total rho"),
        (["--delta", "0.09"], "1/12"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--top-p", "0.9"], "--top-p"),
    ],
)
def test_what_the_guarantee_does_not_allow_is_refused_before_a_deployment_is_made(run_dir, capsys, options, words):
    assert main(["generate", str(run_dir), "--prompt", "letter", "--candidates", "8", *options]) == 2
    assert words in capsys.readouterr().err
    assert not (run_dir / "ledger.sqlite").exists()
