"""What a machine lacks for some tests: they are skipped, and one line at the end says how many, why, and what helps.

In CI nothing may be missing: there such a test fails.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest


def skip_without(thing: str, remedy: str) -> NoReturn:
    """Skip the test that needs a thing; `remedy` is the command that brings it."""
    reason = f"needs {thing}: {remedy}"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason)
    pytest.skip(reason)


def summary_line(reasons: Iterable[str]) -> str | None:
    """The reasons for which tests were skipped in one line, the most frequent first; None if there are none."""
    counts = Counter(reasons).most_common()
    if not counts:
        return None
    return f"skipped {sum(count for _, count in counts)}: " + "; ".join(_in_words(*item) for item in counts)


def _in_words(reason: str, count: int) -> str:
    needed = re.fullmatch(r"needs ([^:]+)(?:: (.*))?", reason, re.DOTALL)
    if needed is None:
        return f"{count} since {reason}"
    thing, remedy = needed.groups()
    return f"{count} {'needs' if count == 1 else 'need'} {thing}" + (f" ({remedy})" if remedy else "")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Hook: print the line, whatever pytest's options say on skipped tests."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    # (path, line, reason) of a skipped test; an expected failure has a text instead.
    line = summary_line(where[2].removeprefix("Skipped: ") for where in skipped if isinstance(where, tuple | list))
    if line is not None:
        terminalreporter.write_line(line, yellow=True)
