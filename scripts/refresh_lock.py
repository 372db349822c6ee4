"""Write requirements.lock: exact versions of everything that Reticent and its extras need, as installed here.

Run it through `make lock`, in an environment where pip has just resolved the newest versions that pyproject.toml
allows, all extras included.
"""

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "reticent"
EXTRAS = {"demo", "dev", "docs", "dp", "postgresql", "server"}
BUILD_TOOLS = {"setuptools"}
HEADER = """\
# Exact versions of the dependencies, with all extras, and all that they need. Written by `make lock`,
# which resolves pyproject.toml afresh in an empty environment; edit that file, not this one.
# torch is named without a build tag, so that the index at hand supplies its CPU or CUDA build.
"""


def closure() -> set[str]:
    """Return the canonical names of every distribution needed, following markers and extras from the root."""
    needed: set[tuple[str, str]] = set()
    pending = [(ROOT, extra) for extra in ("", *EXTRAS)] + [(name, "") for name in BUILD_TOOLS]
    while pending:
        name, extra = item = pending.pop()
        if item in needed:
            continue
        needed.add(item)
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                target = canonicalize_name(requirement.name)
                pending += [(target, other) for other in ("", *requirement.extras)]
    return {name for name, _ in needed} - {ROOT}


def main() -> None:
    """Write the lock file named on the command line."""
    pins = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in sorted(closure())]
    Path(sys.argv[1]).write_text(HEADER + "\n".join(pins) + "\n")


if __name__ == "__main__":
    main()
