"""The package itself: names that load when they are used, at no cost before, and examples that are run."""

import ast
import doctest
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_models import build_tiny_model, byte_tokenizer, save_tiny_model

import reticent
from reticent.auditing.targets import targets
from reticent.cli import main as cli
from reticent.models.base import resolve_base_model
from reticent.worlds import build

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "peft", "pydantic", "scipy", "sklearn", "pyarrow", "sqlalchemy", "matplotlib", "rich"}
EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src").rglob("*.py")
    if ">>> " in path.read_text("utf-8")
)


def loaded_by(code):
    """The top-level modules that a fresh interpreter has loaded after some code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded_by("import reticent") & (HEAVY | {"numpy", "typer"})


def test_planning_loads_no_framework():
    assert not loaded_by("import reticent; reticent.plan(tokens=10, step_budget='2^-8')") & HEAVY


def test_help_loads_nothing_heavy():
    assert not loaded_by("from reticent.cli.main import main; main(['--help'])") & (HEAVY - {"rich"})


@pytest.mark.parametrize("name", reticent.__all__)
def test_every_public_name_loads_and_has_a_docstring(name):
    assert getattr(reticent, name).__doc__
    assert name in dir(reticent)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        reticent.nonsense  # noqa: B018


def test_names_for_type_checkers_and_for_use_are_the_same():
    tree = ast.parse((ROOT / "src/reticent/__init__.py").read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert typed == reticent._MODULES
    assert sorted(typed) == reticent.__all__


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_in_docstrings_are_true(module):
    failed, tried = doctest.testmod(import_module(module))
    assert (failed, tried > 0) == (0, True)


def test_examples_of_the_page_are_true():
    failed, tried = doctest.testfile(str(ROOT / "docs/python.md"), module_relative=False)
    assert failed == 0
    assert tried


def test_the_page_names_every_public_name():
    page = (ROOT / "docs/python.md").read_text()
    code = "\n".join(re.findall(r"`([^`\n]+)`", page) + re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert [name for name in reticent.__all__ if not re.search(rf"\b{name}\b", code)] == []


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src/reticent/py.typed").is_file()


@pytest.fixture
def letters(tmp_path, monkeypatch):
    """A folder with what the page's examples read, in which they run; the packaged model is a tiny one."""
    texts = [f"Dear Dr {name}, thank you for seeing {name}." for name in ("Ash", "Birch", "Cedar", "Elm", "Fir", "Oak")]
    rows = [{"text": text, "patient": str(number)} for number, text in enumerate(texts)]
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_tiny_model(tmp_path / "base", "llama", layers=2)
    for module in (build, targets):
        monkeypatch.setattr(module, "resolve_base_model", lambda _: resolve_base_model(str(tmp_path / "base")))
    monkeypatch.chdir(tmp_path)
    options = ["--technique", "lora", "--heldout-count", "3", "--max-tokens", "32", "--out", "adapted"]
    assert cli.main(["adapt", "letters.jsonl", "--model", "base", *options]) == 0
    return texts


def test_what_the_page_shows_runs(letters, capsys):
    page = (ROOT / "docs/python.md").read_text()
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if ">>>" not in block]
    datasets = SimpleNamespace(load_from_disk=lambda _: [{"body": text} for text in letters])
    names = {"reticent": reticent, "datasets": datasets, "members": letters[:3], "nonmembers": letters[3:]}
    names |= {"model": build_tiny_model("llama"), "tokenizer": byte_tokenizer()}
    for block in blocks:
        exec(block, names)
    assert {path.name for path in Path("audit").iterdir()} >= {"report.html", "report.json", "scores.parquet"}
    assert "Bounds(half_success=0.5" in capsys.readouterr().out
