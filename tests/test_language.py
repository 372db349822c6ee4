"""The language of the source: docstrings that say what a thing is, one class for a name, no translated turns."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [path for folder in ("src", "experiments", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
PACKAGE = ROOT / "src" / "reticent"

_QUESTION = re.compile(r"(?:What|How|Whether|Where|Which|Who|Whose|When|Why|Is|Are|Does|Was|Were)\b")
_TURNS = re.compile(r"\b(?:so many|let go|at hand|came true|foresee\w*|to be had|says? of itself|laws?|goe?s? on)\b")
_SHARED_NAMES = {
    "Canary": "the demonstration's letters know their own secrets; only an audit counts what became of them",
}
"""Public classes that two modules define, and the reason."""


def docstrings(source: str) -> Iterator[tuple[str, str]]:
    """Name and docstring of a module and of everything defined in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text


def questions(source: str) -> list[str]:
    """Names of what begins its docstring with a word that opens a question."""
    return [name for name, text in docstrings(source) if _QUESTION.match(text)]


def turns(source: str) -> list[str]:
    """Turns of phrase that are no plain technical English."""
    return [turn.group() for turn in _TURNS.finditer(" ".join(source.split()))]


def public_classes(source: str) -> list[str]:
    """Public classes at the top of a module."""
    classes = (node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return [name for name in classes if not name.startswith("_")]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""How many there are."""', ["module"]),
        ('def f():\n    """Whether it is so."""', ["f"]),
        ('class C:\n    async def g(self):\n        """Is it so?"""', ["g"]),
        ('def f():\n    """True if it is so, however it came about."""', []),
        ('"""Whole texts, and what they hold."""', []),
        ("def f():\n    return 1", []),
    ],
)
def test_the_checks_find_what_they_look_for(source: str, found: list[str]) -> None:
    assert questions(source) == found


def test_turns_are_found_over_a_line_break() -> None:
    assert turns("Guesses that came\n    true let so\n    many go.") == ["came true", "so many"]
    assert turns("Drafts that were accepted, and many more.") == []


def test_no_docstring_begins_like_a_question() -> None:
    found = {str(path.relative_to(ROOT)): questions(path.read_text("utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_no_turns_of_another_language() -> None:
    found = {str(path.relative_to(ROOT)): turns(path.read_text("utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_public_class_has_one_home() -> None:
    homes = defaultdict(set)
    for path in SOURCES:
        for name in public_classes(path.read_text("utf-8")):
            homes[name].add(str(path.relative_to(ROOT)))
    assert public_classes("class A: ...\nclass _B: ...\ndef f():\n    class C: ...") == ["A"]
    assert {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1 and name not in _SHARED_NAMES} == {}
    assert all(len(homes[name]) > 1 for name in _SHARED_NAMES), "a name that is no longer shared"
