"""Documents that name parts of the repository, held against what there is.

The map of the package is the one that its script writes, every module and path in running text exists, and nothing
refers to a document that the repository lacks.
"""

import importlib.util
import re
from pathlib import Path

import pytest
import typer

from reticent.cli.main import app
from reticent.models.families import ADAPTABLE_FAMILIES, SUPPORTED_FAMILIES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "reticent"
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
]
FOLDERS = ("src", "docs", "tests", "experiments", "benchmarks", "scripts", "examples", ".ci")
TEXT = {".py", ".md", ".sh", ".toml", ".jinja", ".html", ".js", ".css", ".service", ""}
ROOMS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}

_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?<![\w/.<{*-])(?:[\w.-]+/)*(?:[\w-]+/|[\w-]+\.py)(?![\w/*<{])")
_DOTTED = re.compile(r"(?!.*\.(?:py|jsonl?|html|csv|sqlite|safetensors|npz)$)(?:reticent\.)?[a-z_]+(?:\.[A-Za-z_]\w*)+")
_DOCUMENT = re.compile(r"(?<![\w/.*}-])(?:\w[\w-]*/)*\w[\w-]*\.md\b")
_ELSEWHERE = re.compile(r"\b(?:MECHANISM|DESIGN|STYLE|AUDIT|CORPUS),? (?:§|steps?|sections?)\b")
MADE = {"report.md", "NAME.md", "cpu.md", "performance.md", "notes.md"}
"""Documents that commands and tests write, and that are named where they are written."""
MADE_FOLDERS = {"cache/", "cells/", "signals/", "tables/", "weights/"}
"""Folders that commands write."""


def repository_files():
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "node_modules" not in path.parts and "__pycache__" not in path.parts:
                yield path


@pytest.fixture(scope="module")
def files():
    return sorted(repository_files())


@pytest.fixture(scope="module")
def house_map():
    spec = importlib.util.spec_from_file_location("house_map", ROOT / "scripts" / "house_map.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known_paths(files):
    """Every path of the repository as it may be written: whole, or without the folders it begins with."""
    known = set()
    for path in [*files, *(path for path in ROOT.iterdir() if path.is_file())]:
        parts = path.relative_to(ROOT).parts
        known |= {"/".join(parts[start:]) for start in range(len(parts))}
        for end in range(1, len(parts)):
            known |= {"/".join(parts[start:end]) + "/" for start in range(end)}
    return known


def missing_paths(text, known):
    """Paths to Python files and folders, in code and in diagrams, that do not exist."""
    for block in [*re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL), *_CODE.findall(text)]:
        if not re.search(r"^(?:\$ )?(?:make|reticent|pip|python|podman|sudo|\.venv/)", block, re.MULTILINE):
            yield from (
                path for path in _PATH.findall(block) if path not in known and not path.startswith(tuple(MADE_FOLDERS))
            )


def missing_names(text):
    """Dotted names in code that begin with a room and are neither a module of the package nor defined in one."""
    for code in _CODE.findall(text):
        parts = code.removeprefix("reticent.").split(".")
        if _DOTTED.fullmatch(code) and parts[0] in ROOMS and not is_defined(parts):
            yield code


def is_defined(parts):
    """True if the parts lead to a module, or to one and a name that stands at the beginning of a line or after it."""
    path, rest = PACKAGE, list(parts)
    while rest and ((path / rest[0]).is_dir() or (path / f"{rest[0]}.py").is_file()):
        path = path / rest.pop(0)
    if not rest:
        return True
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return re.search(rf"^(?:class |def |async def )?{rest[0]}\b", source.read_text("utf-8"), re.MULTILINE) is not None


def missing_documents(text, known):
    yield from (name for name in _DOCUMENT.findall(text) if name not in known | MADE)
    yield from _ELSEWHERE.findall(text)


def test_the_map_of_the_package_is_up_to_date(house_map):
    page = house_map.PAGE.read_text("utf-8")
    assert house_map.rewrite(page) == page, "docs/architecture.md: run `python scripts/house_map.py` (or `make format`)"


def test_the_map_names_every_module_once(house_map):
    text = house_map.render()
    for path in PACKAGE.rglob("*.py"):
        room, *rest = path.relative_to(PACKAGE).parts
        name = "/".join(rest) or room
        if name == "__init__.py" and rest:
            assert f"[`{room}`](#{room}) | {house_map.summary(path)} |" in text
        else:
            name = name.removesuffix("__init__.py") or name
            assert text.count(f"| `{name}` | {house_map.summary(path)} |") == 1, path


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_modules_and_paths_in_documents_exist(page, files):
    text = page.read_text("utf-8")
    assert sorted({*missing_paths(text, known_paths(files)), *missing_names(text)}) == []


def test_no_reference_to_a_document_that_is_not_here(files):
    known = known_paths(files)
    wrong = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files
        if path.suffix in TEXT and path != Path(__file__)
        for name in missing_documents(path.read_text("utf-8"), known)
    }
    assert sorted(wrong) == []


def commands_of(group, words=()):
    """Each command beneath a group of `typer`'s, as it is typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*words, name))
        else:
            yield " ".join((*words, name))


def test_the_page_of_commands_has_every_command_and_no_other():
    page = (ROOT / "docs" / "commands.md").read_text("utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    listed = {
        re.match(r"(?:reticent )?([a-z]+(?:-[a-z]+)*(?: [a-z]+)?)", code)[1]
        for cell in cells
        for code in _CODE.findall(cell)
    }
    assert listed == set(commands_of(typer.main.get_command(app)))


def test_the_page_of_base_models_has_every_family():
    rows = re.findall(
        r"^\| ([\w-]+)[^|]*\| (yes|no) \|", (ROOT / "docs" / "models.md").read_text("utf-8"), re.MULTILINE
    )
    families = {name.split()[0] for name in SUPPORTED_FAMILIES}
    assert {name for name, with_worlds in rows if with_worlds == "yes"} == families
    assert {name for name, _ in rows} == families | {name.split()[0] for name in ADAPTABLE_FAMILIES}


def test_what_is_missing_is_noticed(files):
    known = known_paths(files)
    text = "`ensemble/engine.py`, `ensemble/` and `pac/curator.py`; `pac.law`, `pac.curator.Curator`, `pac.curator.Law`"
    assert list(missing_paths(text, known)) == ["ensemble/engine.py", "ensemble/"]
    assert list(missing_names(text)) == ["pac.law", "pac.curator.Law"]
    documents = "see MECHANISM step 3, AUDIT.md, docs/guarantee.md and laws.md"
    assert list(missing_documents(documents, known)) == ["AUDIT.md", "laws.md", "MECHANISM step"]
