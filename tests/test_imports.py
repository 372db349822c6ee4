"""Who may import whom, no cycles, nothing undeclared, and no file or function that outgrows one room.

Each check is a function of sources, so that it can be shown to flag what it should before it passes the package.
"""

import ast
import sys
import tomllib
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE = "reticent"
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 80

LEVEL_ONE = ("errors", "_validate", "randomness", "protocols")
NUMERIC = ("numpy", "scipy")
FILES_AND_CLOCKS = ("datetime", "io", "os", "pathlib", "shutil", "tempfile", "time")
PROCESSES_AND_CHANCE = ("asyncio", "importlib", "random", "socket", "subprocess")
IMPURE = FILES_AND_CLOCKS + PROCESSES_AND_CHANCE
ABOVE = ("decoding", "ledger", "audit", "evaluation", "reports", "server", "cli", "scaleout", "demo")


@dataclass(frozen=True)
class Rule:
    """What the modules under `parts` may import; `None` means anything that no other rule forbids."""

    parts: tuple[str, ...]
    inside: tuple[str, ...] | None = None
    never_inside: tuple[str, ...] = ()
    outside: tuple[str, ...] | None = None
    pure: bool = False


RULES = (
    Rule(LEVEL_ONE, inside=LEVEL_ONE, outside=NUMERIC),
    Rule(("pac",), inside=(*LEVEL_ONE, "pac"), outside=NUMERIC, pure=True),
    Rule(("worlds.assignment", "baselines.rdp"), inside=LEVEL_ONE, outside=NUMERIC, pure=True),
    Rule(("baselines.controls", "baselines.nonprivate"), inside=(*LEVEL_ONE, "baselines"), outside=NUMERIC, pure=True),
    Rule(("audit.metrics",), inside=(*LEVEL_ONE, "audit.metrics"), outside=NUMERIC, pure=True),
    Rule(("audit.attacks",), inside=(*LEVEL_ONE, "audit.attacks"), outside=NUMERIC, pure=True),
    Rule(("_vocabulary",), inside=(), outside=("torch",)),
    Rule(("token_signals",), inside=("protocols", "_vocabulary"), outside=("numpy", "torch")),
    Rule(("_files", "_records"), inside=(*LEVEL_ONE, "_files"), outside=()),
    Rule(
        ("corpus", "corpus_formats", "deduplication"),
        inside=(*LEVEL_ONE, "_files", "corpus", "corpus_formats", "deduplication"),
        outside=(*NUMERIC, "pyarrow", "datasketch"),
    ),
    Rule(("models",), inside=(*LEVEL_ONE, "_files", "models")),
    Rule(("ensemble", "adaptation", "worlds"), never_inside=ABOVE),
    Rule(("decoding",), inside=(*LEVEL_ONE, "pac", "decoding"), outside=NUMERIC),
    Rule(
        ("ledger",),
        inside=(*LEVEL_ONE, "_files", "pac", "ledger"),
        outside=(*NUMERIC, "cryptography", "sqlalchemy"),
    ),
    Rule(("audit",), never_inside=("ensemble", "server")),
)
IMPORTED_ONLY_BY = {"cli": ("cli",), "server": ("server", "cli"), "scaleout": ("scaleout",), "demo": ("demo", "cli")}
OUTSIDE_ONLY_IN = {
    "faker": ("demo",),
    **dict.fromkeys(("fastapi", "prometheus_client", "starlette", "uvicorn"), ("server",)),
}


def under(name, parts):
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def imports_of(module, source, modules):
    """Every name imported anywhere in a module, absolute; an imported submodule is named itself, not its package."""
    is_package = any(other.startswith(f"{module}.") for other in modules)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.split(".")[: (1 if is_package else 0) - node.level or None]
                origin = ".".join([*parents, *origin.split(".")] if origin else parents)
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                yield full if full in modules else origin


def split_imports(module, source, modules):
    """The imports inside the package (without its name), and those from outside it."""
    names = set(imports_of(module, source, modules))
    inside = {name.removeprefix(PACKAGE).lstrip(".") for name in names if under(name, (PACKAGE,))}
    return inside - {""}, {name for name in names if not under(name, (PACKAGE,))}


def layering_violations(sources):
    for module, source in sources.items():
        part = module.removeprefix(PACKAGE).lstrip(".")
        inside, outside = split_imports(module, source, sources)
        third_party = {name for name in outside if name.split(".")[0] not in sys.stdlib_module_names}
        for rule in RULES:
            if not under(part, rule.parts):
                continue
            for name in inside:
                if (rule.inside is not None and not under(name, rule.inside)) or under(name, rule.never_inside):
                    yield f"{part} imports {name}"
            if rule.outside is not None:
                yield from (f"{part} imports {name}" for name in third_party if not under(name, rule.outside))
            if rule.pure:
                yield from (f"{part} imports {name}" for name in outside if under(name, IMPURE))
        for target, importers in IMPORTED_ONLY_BY.items():
            if not under(part, importers):
                yield from (f"{part} imports {name}" for name in inside if under(name, (target,)))
        for target, importers in OUTSIDE_ONLY_IN.items():
            if not under(part, importers):
                yield from (f"{part} imports {name}" for name in outside if under(name, (target,)))


def cycle(sources):
    """A cycle of imports as a list of modules, or None; imports inside functions and for types count."""
    graph = {}
    for module, source in sources.items():
        inside, _ = split_imports(module, source, sources)
        graph[module] = {f"{PACKAGE}.{name}" for name in inside}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def undeclared_imports(sources, declared):
    distributions = packages_distributions()
    for module, source in sources.items():
        _, outside = split_imports(module, source, sources)
        for top in {name.split(".")[0] for name in outside} - set(sys.stdlib_module_names):
            if not {canonicalize_name(name) for name in distributions.get(top, [top])} & declared:
                yield f"{module} imports {top}"


def oversized(sources):
    for module, source in sources.items():
        if len(source.splitlines()) >= MAX_FILE_LINES:
            yield module
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if node.end_lineno - first + 1 >= MAX_FUNCTION_LINES:
                    yield f"{module}.{node.name}"


@pytest.fixture(scope="module")
def sources():
    found = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    assert {"reticent", "reticent.errors", "reticent.pac", "reticent.worlds.assignment"} <= set(found)
    return found


@pytest.fixture(scope="module")
def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + extras["demo"] + extras["dp"] + extras["server"] + extras["postgresql"]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def test_modules_import_only_what_their_level_allows(sources):
    assert sorted(set(layering_violations(sources))) == []


def test_the_package_has_no_import_cycle(sources):
    assert cycle(sources) is None


def test_third_party_imports_are_declared(sources, declared):
    assert sorted(undeclared_imports(sources, declared)) == []


def test_files_and_functions_stay_small(sources):
    assert sorted(oversized(sources)) == []


def example(module, source):
    """A package of empty modules, one of them with the given source."""
    names = (
        "_validate", "corpus", "models", "pac.accounting", "pac.bounds", "worlds.assignment", "worlds.collection",
        "ledger.store", "decoding.votes", "ensemble.engine", "audit.runner", "server.app", "cli.main", "cli.output",
        "demo.letters",
    )  # fmt: skip
    return dict.fromkeys((f"{PACKAGE}.{name}" for name in names), "") | {f"{PACKAGE}.{module}": source}


@pytest.mark.parametrize(
    ("module", "source", "violation"),
    [
        ("errors", "from reticent.pac import bounds", "errors imports pac.bounds"),
        ("_validate", "import torch", "_validate imports torch"),
        ("pac.bounds", "import torch.nn", "pac.bounds imports torch.nn"),
        ("pac.bounds", "def f():\n    import time", "pac.bounds imports time"),
        ("pac.bounds", "from os import path", "pac.bounds imports os"),
        ("pac.bounds", "from reticent import models", "pac.bounds imports models"),
        ("pac.bounds", "from .. import models", "pac.bounds imports models"),
        ("pac", "from ..cli import main", "pac imports cli.main"),
        ("worlds.assignment", "from pathlib import Path", "worlds.assignment imports pathlib"),
        ("worlds.assignment", "from .collection import open_run", "worlds.assignment imports worlds.collection"),
        ("audit.attacks.loss", "from reticent.audit import runner", "audit.attacks.loss imports audit.runner"),
        ("corpus", "import transformers", "corpus imports transformers"),
        (
            "ensemble.engine",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from reticent.ledger import store",
            "ensemble.engine imports ledger.store",
        ),
        ("adaptation.trainer", "import reticent.demo", "adaptation.trainer imports demo"),
        ("decoding.votes", "import torch", "decoding.votes imports torch"),
        ("decoding.votes", "from reticent.ensemble import engine", "decoding.votes imports ensemble.engine"),
        ("ledger.store", "from reticent.decoding import votes", "ledger.store imports decoding.votes"),
        ("ledger.store", "import transformers", "ledger.store imports transformers"),
        ("audit.runner", "from reticent.ensemble.engine import X", "audit.runner imports ensemble.engine"),
        ("evaluation.utility", "from reticent.cli.main import main", "evaluation.utility imports cli.main"),
        ("scaleout.train", "from reticent.server import app", "scaleout.train imports server.app"),
        ("reports.render", "from reticent.demo import letters", "reports.render imports demo.letters"),
        ("demo.guided", "from reticent.cli import main", "demo.guided imports cli.main"),
        ("models", "from faker import Faker", "models imports faker"),
    ],
)
def test_forbidden_import_is_flagged(module, source, violation):
    assert set(layering_violations(example(module, source))) == {violation}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "pac.bounds",
            "import math\nimport numpy as np\nfrom scipy.special import entr\nfrom reticent import _validate",
        ),
        ("decoding.decoder", "from reticent.pac.posterior import Posterior\nfrom reticent.protocols import Ensemble"),
        ("ledger.store", "import os\nfrom cryptography.fernet import Fernet\nfrom reticent.pac import accounting"),
        ("ensemble.engine", "import torch\nfrom reticent.models import BaseModel"),
        ("worlds.collection", "from reticent import corpus, models\nfrom reticent.worlds import assignment"),
        ("cli.demo", "from reticent.demo import letters\nfrom reticent.cli import output"),
    ],
)
def test_allowed_import_is_not_flagged(module, source):
    assert list(layering_violations(example(module, source))) == []


def test_cycle_is_flagged_even_if_one_import_hides_in_a_function():
    modules = {
        f"{PACKAGE}.a": "from reticent import b",
        f"{PACKAGE}.b": "def f():\n    from reticent.c import x",
        f"{PACKAGE}.c": "import reticent.a",
    }
    assert set(cycle(modules) or ()) == set(modules)
    modules[f"{PACKAGE}.c"] = "import math"
    assert cycle(modules) is None


def test_undeclared_import_is_flagged(declared):
    modules = {f"{PACKAGE}.a": "import json, numpy, hypothesis\nfrom pandas import DataFrame"}
    assert sorted(undeclared_imports(modules, declared)) == [
        f"{PACKAGE}.a imports hypothesis",
        f"{PACKAGE}.a imports pandas",
    ]


def test_oversized_file_and_function_are_flagged():
    body = "    x = 1\n"
    modules = {
        "long_file": "x = 1\n" * MAX_FILE_LINES,
        "short_file": "x = 1\n" * (MAX_FILE_LINES - 1),
        "long": "@d\ndef f():\n" + body * (MAX_FUNCTION_LINES - 2),
        "short": "@d\ndef f():\n" + body * (MAX_FUNCTION_LINES - 3),
    }
    assert list(oversized(modules)) == ["long_file", "long.f"]
