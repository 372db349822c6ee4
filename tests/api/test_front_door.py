"""The package itself: names that load when they are used, at no cost before, and examples that are run."""

import ast
import doctest
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import reticent

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
    assert not loaded_by("import reticent; reticent.plan(tokens=10, step_budget='2^-8')") & (HEAVY - {"scipy"})


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
