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

LEVEL_ONE = ("errors", "_validate", "guarantees", "randomness", "protocols")
SHARED = (*LEVEL_ONE, "_files", "_memory", "_records", "_settings", "_work_folder")
NUMERIC = ("numpy", "scipy")
FILES_AND_CLOCKS = ("datetime", "io", "os", "pathlib", "shutil", "tempfile", "time")
PROCESSES_AND_CHANCE = ("asyncio", "importlib", "random", "socket", "subprocess")
IMPURE = FILES_AND_CLOCKS + PROCESSES_AND_CHANCE

# Each room and the rooms it may import, beside what all share. A pair that is not here is refused.
ROOMS: dict[str, tuple[str, ...]] = {
    "pac": (),
    "dp": (),
    "stats": (),
    "text": (),
    "models": (),
    "layers": ("models",),
    "engine": ("decoding", "dp", "layers", "models", "text"),
    "training": ("layers", "models", "text"),
    "decoding": ("dp", "pac"),
    "ledger": ("dp", "pac"),
    "worlds": ("dp", "engine", "layers", "models", "text", "training"),
    "auditing": ("models", "stats", "text", "training"),
    "benchmark": ("auditing", "models", "stats", "text", "training"),
    "distillation": ("decoding", "engine", "models", "pac", "text", "training"),
    "evaluation": ("auditing", "decoding", "dp", "engine", "layers", "models", "pac", "stats", "text", "worlds"),
    "reports": ("auditing", "benchmark", "dp", "evaluation", "pac", "stats"),
    "server": ("decoding", "dp", "ledger", "models", "pac", "text"),
    "api": (
        "auditing", "decoding", "distillation", "dp", "engine", "evaluation", "layers", "ledger", "models", "pac",
        "reports", "stats", "text", "training", "worlds",
    ),
    "demo": (
        "api", "auditing", "decoding", "dp", "engine", "evaluation", "layers", "pac", "reports", "stats", "text",
        "worlds",
    ),
    "cli": (
        "api", "auditing", "benchmark", "decoding", "demo", "distillation", "dp", "engine", "evaluation", "ledger",
        "models", "pac", "reports", "server", "stats", "text", "training", "worlds",
    ),
}  # fmt: skip


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
    Rule(("_files", "_records"), inside=(*LEVEL_ONE, "_files"), outside=()),
    Rule(("pac",), inside=(*LEVEL_ONE, "pac"), outside=NUMERIC, pure=True),
    Rule(("dp",), inside=(*LEVEL_ONE, "dp"), outside=NUMERIC, pure=True),
    Rule(("stats",), inside=(*LEVEL_ONE, "_settings", "stats"), outside=(*NUMERIC, "pydantic"), pure=True),
    Rule(("worlds.assignment",), inside=LEVEL_ONE, outside=NUMERIC, pure=True),
    Rule(("evaluation.controls",), inside=(*LEVEL_ONE, "evaluation"), outside=NUMERIC, pure=True),
    Rule(("auditing.attacks",), inside=(*LEVEL_ONE, "auditing.attacks", "stats"), outside=NUMERIC, pure=True),
    Rule(("auditing.metrics",), inside=(*LEVEL_ONE, "auditing.metrics", "stats"), outside=NUMERIC, pure=True),
    Rule(
        ("text.corpus", "text.formats", "text.deduplication"),
        inside=(*LEVEL_ONE, "_files", "text"),
        outside=(*NUMERIC, "pyarrow", "datasketch"),
    ),
    Rule(("models.vocabulary_rows",), inside=(), outside=("torch",)),
    Rule(("models.token_signals",), inside=("protocols", "models.vocabulary_rows"), outside=("numpy", "torch")),
    Rule(("decoding",), outside=NUMERIC),
    Rule(("ledger",), outside=(*NUMERIC, "cryptography", "sqlalchemy")),
)
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
        room = part.split(".")[0]
        if part and room not in SHARED:
            allowed = (*SHARED, room, *ROOMS.get(room, ()))
            yield from (f"{part} imports {name}" for name in inside if not under(name, allowed))
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
        "_validate", "text.corpus", "models.base", "pac.accounting", "pac.bounds", "worlds.assignment",
        "worlds.run_directory", "ledger.store", "decoding.votes", "engine.engine", "layers.forward", "auditing.run",
        "server.app", "cli.main", "cli.output", "demo.letters", "training.trainer", "stats.roc",
    )  # fmt: skip
    return dict.fromkeys((f"{PACKAGE}.{name}" for name in names), "") | {f"{PACKAGE}.{module}": source}


def test_every_room_is_in_the_table(sources):
    rooms = {name.removeprefix(f"{PACKAGE}.").split(".")[0] for name in sources if name != PACKAGE}
    assert rooms - set(SHARED) == set(ROOMS)


@pytest.mark.parametrize("importer", sorted(ROOMS))
@pytest.mark.parametrize("target", sorted(ROOMS))
def test_every_pair_of_rooms_is_covered(importer, target):
    modules = {f"{PACKAGE}.{importer}.one": f"from reticent.{target} import two", f"{PACKAGE}.{target}.two": ""}
    flagged = set(layering_violations(modules))
    assert bool(flagged) == (target != importer and target not in ROOMS[importer])


def test_the_table_of_rooms_has_no_cycle():
    TopologicalSorter(ROOMS).prepare()


@pytest.mark.parametrize(
    ("module", "source", "violation"),
    [
        ("errors", "from reticent.pac import bounds", "errors imports pac.bounds"),
        ("_validate", "import torch", "_validate imports torch"),
        ("pac.bounds", "import torch.nn", "pac.bounds imports torch.nn"),
        ("pac.bounds", "def f():\n    import time", "pac.bounds imports time"),
        ("pac.bounds", "from os import path", "pac.bounds imports os"),
        ("pac.bounds", "from reticent.models import base", "pac.bounds imports models.base"),
        ("pac.bounds", "from ..models import base", "pac.bounds imports models.base"),
        ("pac", "from ..cli import main", "pac imports cli.main"),
        ("worlds.assignment", "from pathlib import Path", "worlds.assignment imports pathlib"),
        ("worlds.assignment", "from .run_directory import open_run", "worlds.assignment imports worlds.run_directory"),
        ("auditing.attacks.loss", "from reticent.auditing import run", "auditing.attacks.loss imports auditing.run"),
        ("text.corpus", "import transformers", "text.corpus imports transformers"),
        (
            "engine.engine",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from reticent.ledger import store",
            "engine.engine imports ledger.store",
        ),
        ("engine.engine", "from reticent.training import trainer", "engine.engine imports training.trainer"),
        ("training.trainer", "import reticent.demo", "training.trainer imports demo"),
        ("decoding.votes", "import torch", "decoding.votes imports torch"),
        ("decoding.votes", "from reticent.engine import engine", "decoding.votes imports engine.engine"),
        ("ledger.store", "from reticent.decoding import votes", "ledger.store imports decoding.votes"),
        ("ledger.store", "import transformers", "ledger.store imports transformers"),
        ("auditing.run", "from reticent.engine.engine import X", "auditing.run imports engine.engine"),
        ("evaluation.utility", "from reticent.cli.main import main", "evaluation.utility imports cli.main"),
        ("new_room.train", "from reticent.server import app", "new_room.train imports server.app"),
        ("reports.render", "from reticent.demo import letters", "reports.render imports demo.letters"),
        ("demo.guided", "from reticent.cli import main", "demo.guided imports cli.main"),
        ("models.base", "from faker import Faker", "models.base imports faker"),
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
        ("decoding.generate", "from reticent.pac.posterior import Posterior\nfrom reticent.protocols import Progress"),
        ("ledger.store", "import os\nfrom cryptography.fernet import Fernet\nfrom reticent.pac import accounting"),
        ("engine.engine", "import torch\nfrom reticent.models.base import LanguageModel"),
        ("worlds.run_directory", "from reticent.text import corpus\nfrom reticent.worlds import assignment"),
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
