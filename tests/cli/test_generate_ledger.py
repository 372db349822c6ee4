"""`reticent generate` from end to end on a tiny run: what it says it charged is what the ledger holds."""

import json

import pytest

from reticent.cli.main import main


@pytest.fixture
def run_dir(tmp_path, monkeypatch, tiny_llama_folder):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in ("RETICENT_KEY", "RETICENT_DATABASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"letter {n} says {'abcdefgh'[n] * 9}"}) + "\n" for n in range(8)))
    options = (
        "--worlds",
        "4",
        "--rank",
        "2",
        "--adapt-layers",
        "top:1",
        "--max-tokens",
        "32",
        "--learning-rate",
        "0.05",
    )
    build = ["worlds", "build", str(corpus), "--model", str(tiny_llama_folder), "--out", str(tmp_path / "run")]
    assert main([*build, *options]) == 0
    return tmp_path / "run"


@pytest.mark.parametrize("place", ["default", "postgresql"])
def test_every_generated_token_is_in_the_ledger_and_a_second_call_goes_on(run_dir, place, request, capsys):
    where = [] if place == "default" else ["--database-url", request.getfixturevalue("postgresql_url")]

    def said(*arguments):
        capsys.readouterr()
        assert main([arguments[0], *map(str, arguments[1:]), *where]) == 0
        return capsys.readouterr().out

    budget = ("--step-budget", "2^-20", "--max-tokens", "5", "--json", "--candidates", "20")
    first = json.loads(said("generate", run_dir, "--prompt", "letter", "--total-budget", "2^-16", *budget))
    second = json.loads(said("generate", run_dir, "--prompt", "letter", *budget))
    tokens = first["tokens"] + second["tokens"]
    assert 2 <= tokens <= 10
    shown = json.loads(said("ledger", "show", run_dir, "--json"))
    assert shown["tokens"] == tokens
    assert shown["nats_charged"] == first["nats_charged"] + second["nats_charged"] == tokens * 2.0**-20
    assert shown["nats_left"] == 2.0**-16 - tokens * 2.0**-20
    assert (shown["half_success"], shown["world_success"]) == (
        second["half_success"],
        second["world_success"],
    )
    releases = [json.loads(line) for line in said("ledger", "export", run_dir).splitlines()]
    assert [release["coin_key"] for release in releases] == [first["coin_key"]] * first["tokens"] + [
        second["coin_key"]
    ] * second["tokens"]
    assert json.loads(said("ledger", "verify", run_dir, "--json"))["releases"] == tokens
    assert (run_dir / "ledger.sqlite").exists() == (place == "default")

    # The deployment stops exactly at its cap, with what fits.
    assert main(["generate", str(run_dir), "--prompt", "x", "--max-tokens", "40", *budget[:2], *where]) in (0, 2)
    assert json.loads(said("ledger", "show", run_dir, "--json"))["nats_charged"] <= 2.0**-16


def test_a_deployment_without_a_cap_says_so_at_every_start_until_it_has_one(run_dir, capsys):
    ask = ["generate", str(run_dir), "--prompt", "letter", "--max-tokens", "2", "--candidates", "20", "--json"]
    for more, warned in ((), True), ((), True), (("--total-budget", "2^-8"), False), ((), False):
        assert main([*ask, *more]) == 0
        assert ("has NO CAP" in capsys.readouterr().err) == warned
    assert main([*ask, "--total-budget", "1"]) == 2
    assert "never raised" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["generate", "serve"])
@pytest.mark.parametrize(
    "refused", [["--step-budget", "5e-324"], ["--step-budget", "2^20"], ["--candidates", "100000"], ["--drafts", "-1"]]
)
def test_what_is_refused_has_not_drawn_a_deployment(run_dir, tmp_path, capsys, command, refused):
    prompt = ["--prompt", "letter"] if command == "generate" else []
    assert main([command, str(run_dir), *prompt, *refused]) == 2
    assert "error: " in capsys.readouterr().err
    assert not (run_dir / "ledger.sqlite").exists()
    assert not (run_dir / "deployment.lock").exists()
    assert not (tmp_path / "config").exists()


def test_the_charging_rule_is_chosen_at_the_first_use_and_ledger_show_states_what_either_charges(run_dir, capsys):
    ask = ["generate", str(run_dir), "--prompt", "letter", "--max-tokens", "20", "--step-budget", "2^-20", "--json"]

    def said(*arguments):
        assert main(list(map(str, arguments))) == 0
        return capsys.readouterr().out

    first = json.loads(said(*ask, "--charging", "dissent"))
    second = json.loads(said(*ask))
    dissenting, tokens = (first[name] + second[name] for name in ("dissenting_steps", "tokens"))
    assert 0 < dissenting < tokens
    assert (first["charging"], second["charging"]) == ("dissent", "dissent")
    assert second["nats_charged_in_all"] == dissenting * 2.0**-20
    shown = json.loads(said("ledger", "show", run_dir, "--json"))
    assert shown["nats_by_rule"] == {"fixed": tokens * 2.0**-20, "dissent": dissenting * 2.0**-20}
    assert (shown["charging"], shown["nats_charged"]) == ("dissent", dissenting * 2.0**-20)
    assert "the rule fixed would have charged" in said("ledger", "show", run_dir)
    exported = [json.loads(line) for line in said("ledger", "export", run_dir).splitlines()]
    assert [row["nats"] for row in exported] == [2.0**-20] * tokens
    assert main([*ask, "--charging", "fixed"]) == 2
    refusal = " ".join(capsys.readouterr().err.split())
    assert "charges by the rule dissent" in refusal
    assert "deploy another run" in refusal
    assert main([*ask, "--charging", "free"]) == 2
    assert "'fixed', 'dissent'" in capsys.readouterr().err
