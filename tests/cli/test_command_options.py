"""Commands of one options object take what the fields of its class say, and nothing else."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from reticent.cli.command_options import split_names, takes_options


@dataclass(frozen=True)
class Options:
    name: Annotated[str, typer.Argument(help="A name.")]
    count: Annotated[int, typer.Option(help="A number.")] = 3
    words: Annotated[list[str] | None, typer.Option("--word", help="Words.")] = None


@pytest.fixture
def received():
    return []


@pytest.fixture
def invoke(received):
    app = typer.Typer()

    @app.command()
    @takes_options(Options)
    def act(options: Options) -> None:
        """Do something."""
        received.append(options)

    return lambda *words: CliRunner().invoke(app, words)


def test_fields_are_arguments_and_options_with_their_defaults(invoke, received):
    assert invoke("x").exit_code == invoke("y", "--count", "5", "--word", "a", "--word", "b").exit_code == 0
    assert received == [Options("x"), Options("y", 5, ["a", "b"])]
    assert "Do something." in invoke("--help").output


@pytest.mark.parametrize("words", [(), ("x", "--count", "many"), ("x", "--options", "y"), ("x", "--nope")])
def test_what_no_field_says_is_refused(invoke, received, words):
    assert invoke(*words).exit_code == 2
    assert received == []


def test_names_of_a_list_are_split_at_commas():
    assert split_names(" a, b ,,c") == ("a", "b", "c")
    assert split_names("") == ()
