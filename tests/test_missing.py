"""A run on a machine that lacks something says so in one line at its end, also where several processes share it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from missing import skip_without, summary_line

TESTS = Path(__file__).parent


def run(*arguments: str) -> list[str]:
    """The lines of a pytest run without PostgreSQL, outside CI."""
    lacking = {name: value for name, value in os.environ.items() if name not in ("CI", "RETICENT_TEST_DATABASE_URL")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=TESTS.parent, env=lacking, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["alone", "shared"])
def test_a_run_without_postgresql_says_what_was_skipped_and_what_brings_it(processes: tuple[str, ...]) -> None:
    lines = run(*processes, "tests/ledger/test_chain.py", "tests/ledger/test_ledger_outages.py")
    told = [line for line in lines if line.startswith("skipped ")]
    assert len(told) == 1, lines
    count = int(told[0].split()[1].rstrip(":"))
    assert count > 0
    verb = "needs" if count == 1 else "need"
    command = "apt-get install postgresql, then scripts/with_postgresql.sh make test"
    assert told[0] == f"skipped {count}: {count} {verb} PostgreSQL ({command})"
    assert "Skipped" not in "".join(lines), "and nothing else"


def test_reasons_are_counted_and_the_most_frequent_comes_first() -> None:
    reasons = ["needs A: get it", "no sweep yet", "needs B", "needs A: get it"]
    assert summary_line(reasons) == "skipped 4: 2 need A (get it); 1 since no sweep yet; 1 needs B"
    assert summary_line([]) is None


def test_in_ci_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs B: apt-get install b"):
        skip_without("B", "apt-get install b")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="needs B: apt-get install b"):
        skip_without("B", "apt-get install b")
