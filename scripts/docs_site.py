"""A hook of MkDocs: the repository's own pages join those of `docs/`, and each room of the package gets a reference.

Pages keep the links that work when the repository is read as files; they are rewritten for the site, and a link that
leads nowhere stays as it is, so that the strict build reports it.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "reticent"
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FOLDERS = ("experiments", "examples")
SUFFIXES = (".md", ".svg", ".json", ".service", "Containerfile", ".conf", "Caddyfile", ".sql")
REFERENCE = "reference"

_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's pages and the reference pages to the site."""
    paths = [ROOT / name for name in PAGES]
    paths += [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.name.endswith(SUFFIXES)]
    for path in paths:
        if path.is_file():
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for room, modules in rooms().items():
        files.append(File.generated(config, f"{REFERENCE}/{room}.md", content=reference_page(room, modules)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Add the reference to the navigation."""
    from mkdocs.structure.nav import Section

    pages: list[Any] = []
    for room in rooms():
        file = files.get_file_from_path(f"{REFERENCE}/{room}.md")
        if file is not None:
            pages.append(Page(room, file, config))
    section = Section("Reference", pages)
    for page in pages:
        page.parent = section
    nav.items.append(section)
    nav.pages.extend(pages)
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository into links between pages of the site."""
    known = {file.src_uri for file in files}
    own = page.file.src_uri
    folder = posixpath.dirname(own if is_repository_page(own) else f"docs/{own}")

    def rewrite(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith(("mailto:", "/")):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        uri = path.removeprefix("docs/")
        if uri not in known:
            return match[0]
        return f"{match[1]}{posixpath.relpath(uri, posixpath.dirname(own) or '.')}{match[3]}"

    return _LINK.sub(rewrite, markdown)


def is_repository_page(uri: str) -> bool:
    """True if a page of the site lies outside `docs/` in the repository."""
    return uri in PAGES or uri.split("/")[0] in FOLDERS


def rooms() -> dict[str, list[str]]:
    """The public modules of the package by room, each in order; the package itself first."""
    found: dict[str, list[str]] = {"reticent": ["reticent"]}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if any(part.startswith("_") and part != "__init__" for part in parts) or len(parts) == 1:
            continue
        name = ".".join(("reticent", *(parts[:-1] if parts[-1] == "__init__" else parts)))
        found.setdefault(parts[0], []).append(name)
    return found


def reference_page(room: str, modules: list[str]) -> str:
    """A page of reference: one directive a module, after a table of what each module is."""
    lines = [f"# {room}", ""]
    if len(modules) > 1:
        lines += ["| module | is |", "|---|---|"]
        short = [name.removeprefix(f"reticent.{room}.").removeprefix("reticent.") for name in modules]
        lines += [f"| [`{label}`](#{name}) | {summary_of(name)} |" for label, name in zip(short, modules, strict=True)]
    for name in modules:
        lines += ["", f"::: {name}"]
    return "\n".join(lines) + "\n"


def summary_of(module: str) -> str:
    """The first line of a module's docstring."""
    parts = module.split(".")[1:]
    path = PACKAGE.joinpath(*parts)
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].replace("|", "\\|")
