"""Every command's help: it opens, names what the registries hold, and shows each default in the form a user types."""

import re

import pytest
from typer.main import get_command

from reticent.auditing.attacks.registry import ATTACKS, parse_attacks
from reticent.auditing.canaries.planting import CanaryKind
from reticent.cli import canaries, evaluate
from reticent.cli import main as cli
from reticent.errors import InvalidValueError
from reticent.evaluation.run_evaluation import Study


def commands(group, words=()):
    """The words of every command, and the command."""
    for name, command in group.commands.items():
        found = (*words, name)
        if hasattr(command, "commands"):
            yield from commands(command, found)
        else:
            yield found, command


DECODERS = {"<greedy|gumbel>", "<list[greedy|gumbel]>"}
"""One decoder for a deployment; one or both for an evaluation."""
COMMANDS = dict(commands(get_command(cli.app)))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_says_what_it_is(words):
    command = COMMANDS[words]
    assert command.help
    unexplained = [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]
    assert not [name for name in unexplained if name != "help"]


def test_options_of_one_name_take_one_type(capsys):
    types = {}
    for words in COMMANDS:
        assert cli.main([*words, "--help"]) == 0
        for name, kind in re.findall(r"^  --([a-z-]+) (<.+?>)", capsys.readouterr().out, re.MULTILINE):
            types.setdefault(name, set()).add(kind)
    assert {"limit", "text-key", "unit-key", "seed", "out", "device", "dtype", "model"} <= types.keys()
    assert {name: kinds for name, kinds in types.items() if len(kinds) > 1} == {"decoder": DECODERS}


def test_names_in_help_are_those_of_the_registries():
    assert canaries.KINDS.split(", ") == list(CanaryKind)
    assert evaluate._STUDIES.split(", ") == list(Study)


@pytest.mark.parametrize("words", [("generate",), ("serve",)])
def test_the_step_budget_is_shown_as_it_is_typed(words, capsys):
    assert cli.main([*words, "--help"]) == 0
    assert "[default: (2^-32)]" in " ".join(capsys.readouterr().out.split())


def test_summaries_in_the_overview_are_whole(capsys):
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    cut = [line for line in overview.splitlines() if line.startswith("  ") and line.endswith("...")]
    assert cut == []


def test_an_unknown_attack_is_answered_with_all_there_are():
    with pytest.raises(InvalidValueError, match="there is no attack rimia") as refusal:
        parse_attacks("lira,rimia")
    assert all(name in str(refusal.value) for name in ATTACKS)
