"""Rewrite the map of the package in `docs/architecture.md`: every room, what it may import, and each of its modules.

    python scripts/house_map.py

Descriptions are the first lines of docstrings, and the rooms are those of `tests/test_imports.py`, so that the map is
never written by hand. `make format` runs this; a test refuses a map that is out of date.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "reticent"
RULES = ROOT / "tests" / "test_imports.py"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- map: written by scripts/house_map.py -->", "<!-- end of the map -->"


def read_rooms() -> dict[str, tuple[str, ...]]:
    """Each room and the rooms that it may import, as `tests/test_imports.py` states them."""
    for node in ast.parse(RULES.read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "ROOMS":
            assert node.value is not None
            rooms: dict[str, tuple[str, ...]] = ast.literal_eval(node.value)
            return rooms
    raise SystemExit(f"{RULES} has no table ROOMS")


def summary(path: Path) -> str:
    """The first line of a module's docstring, as the cell of a table."""
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.split("\n")[0].replace("|", "\\|")


def modules_of(folder: Path) -> list[Path]:
    """The modules and packages under a folder, those of the folder itself first, without its own `__init__`."""
    found = [path for path in folder.rglob("*.py") if path != folder / "__init__.py"]
    return sorted(found, key=lambda path: (path.parent != folder, path.parent, path.name != "__init__.py", path.name))


def table(paths: list[Path], folder: Path) -> list[str]:
    """Rows of a module's name beneath `folder` and its summary; a package is named as a folder."""
    rows = ["| module | is |", "|---|---|"]
    for path in paths:
        name = path.relative_to(folder).as_posix()
        rows.append(f"| `{name.removesuffix('__init__.py') or name}` | {summary(path)} |")
    return rows


def render() -> str:
    """The map as Markdown, without its marks."""
    rooms = read_rooms()
    lines = ["| room | is | may import |", "|---|---|---|"]
    for room, allowed in rooms.items():
        others = ", ".join(f"`{name}`" for name in allowed) or "no other"
        lines.append(f"| [`{room}`](#{room}) | {summary(PACKAGE / room / '__init__.py')} | {others} |")
    lines += ["", "### Shared by all", "", *table(sorted(PACKAGE.glob("*.py")), PACKAGE)]
    for room in rooms:
        lines += ["", f"### {room}", "", *table(modules_of(PACKAGE / room), PACKAGE / room)]
    return "\n".join(lines)


def rewrite(page: str) -> str:
    """A page with the present map between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} lacks the marks {BEGIN} and {END}")
    return f"{before}{begin}\n\n{render()}\n\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewrite(PAGE.read_text("utf-8")), "utf-8")
