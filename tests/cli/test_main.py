import os
import subprocess
import sys

import pytest
import typer

from reticent import __version__, errors
from reticent.cli import main as cli


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "reticent.cli.main", *arguments], capture_output=True, text=True)


def with_command(monkeypatch, body):
    """The same program with one more command, `act`, that does `body`."""
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command("act")(body)
    app.command("other")(lambda: None)
    monkeypatch.setattr(cli, "app", app)


def test_version_and_help():
    result = run("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"reticent {__version__}\n", "")
    for arguments in ([], ["--help"], ["plan", "--help"], ["state", "--help"]):
        result = run(*arguments)
        assert result.returncode == 0
        assert "Usage: reticent" in result.stdout
        assert result.stderr == ""


@pytest.mark.parametrize("arguments", [["nope"], ["plan", "--nope"], ["plan", "--tokens", "many"], ["state"]])
def test_wrong_usage_is_one_line_and_code_2(capsys, arguments):
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_an_argument_that_is_not_utf_8_is_refused_by_its_number(tmp_path):
    named = os.fsencode(tmp_path / "run") + b"-\xff"
    for arguments in ((b"worlds", b"build", b"x.jsonl", b"--out", named), (b"serve", named), (b"generate", named)):
        command = [os.fsencode(sys.executable), b"-m", b"reticent.cli.main", *arguments]
        result = subprocess.run(command, capture_output=True)
        assert (result.returncode, result.stdout) == (2, b"")
        place = arguments.index(named) + 1
        assert result.stderr.decode() == (
            f"error: argument {place} holds bytes that are not UTF-8; rename the file, or set the terminal to UTF-8\n"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "kind",
    [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ReticentError)],
)
def test_every_error_of_ours_is_one_line_without_traceback(monkeypatch, capsys, kind):
    def act() -> None:
        raise kind("the thing,\n  and the remedy")

    with_command(monkeypatch, act)
    assert cli.main(["act"]) == kind.exit_code
    prefix = "interrupted" if kind is errors.InterruptedRunError else "error"
    assert capsys.readouterr() == ("", f"{prefix}: the thing, and the remedy\n")


def test_a_defect_keeps_its_traceback(monkeypatch):
    def act() -> None:
        raise KeyError("a defect")

    with_command(monkeypatch, act)
    with pytest.raises(KeyError, match="a defect"):
        cli.main(["act"])


def test_ctrl_c_exits_with_130(monkeypatch, capsys):
    def act() -> None:
        raise KeyboardInterrupt

    with_command(monkeypatch, act)
    assert cli.main(["act"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_reader_that_goes_away_is_no_error():
    script = "import sys\nfrom reticent.cli.main import main\nsys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_help_and_plan_never_import_torch():
    script = (
        "import sys\nfrom reticent.cli.main import main\n"
        "main(['--help'])\nmain(['plan', '--tokens', '10', '--step-budget', '2^-32'])\n"
        "heavy = {'torch', 'transformers', 'peft', 'pyarrow'} & set(sys.modules)\nsys.exit(f'{heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
