"""The commands of README and the tutorial, run as pasted and in order, in a folder that holds what a fresh clone would.

Every line of a code block that begins like a command is run by bash, unchanged. `reticent` there is this environment's
command, with the options of `SMALLER` put behind the pasted ones (the last one counts), so that sizes alone differ:
each pasted option is still read and checked, and each file must be where the commands before it have put it. A command
without options there runs at its own size. `ELSEWHERE` says which are not run here, and why. README's Python runs as it
stands.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from server.waiting import eventually
from tiny_models import save_tiny_model

pytest.importorskip("faker")

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
COMMAND = re.compile(r"(make|reticent) ")
MAX_LINES = 150

SMALLER = {
    "demo": ["--letters", "24", "--worlds", "2", "--max-tokens", "2"],
    "worlds build": ["--worlds", "4", "--adapt-layers", "top:1", "--max-tokens", "32", "--model", "TINY"],
    "generate": ["--max-tokens", "8"],
    "plan": [],
    "evaluate": ["--limit", "6", "--max-tokens", "32", "--draws", "2", "--sessions", "4", "--queries", "4"],
    "canaries plant": [],
    "adapt": ["--max-tokens", "48", "--epochs", "1", "--model", "TINY"],
    "audit": ["--candidates", "4", "--bootstrap", "100"],
    "keys create": [],
    "serve": ["--port", "PORT"],
    "benchmark": ["--list"],
}
"""By command, the options that keep it small; TINY and PORT are a random model's folder and a free port."""

ELSEWHERE = {
    "make test": "runs this test",
    "make experiments SIZE=local": "takes hours; tests/experiments runs every script in its smallest setting",
}


def pasted(text):
    """Each command of the code blocks, in order, without comments, with continued lines joined, and what it printed."""
    for block in re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        if COMMAND.match(lines[0].removeprefix("$ ")):
            told = [line for line in lines if lines[0].startswith("$ ") and not line.startswith("$ ")]
            for line in lines:
                if COMMAND.match(line.removeprefix("$ ")):
                    yield re.sub(r"\s+# .*", "", line.removeprefix("$ ")), told


COMMANDS = [*pasted(README), *pasted(TUTORIAL)]


def named(command):
    """The words of a command that `SMALLER` and `ELSEWHERE` know it by."""
    if command.startswith("make"):
        return command
    words = command.split()[1:]
    return next(name for name in (" ".join(words[:2]), words[0]) if name in SMALLER)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A folder with what the commands need of a clone, its environment in place and up to date."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("Makefile", "requirements.lock", "requirements-model.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    save_tiny_model(folder / "tiny", "llama")
    (folder / "sizes.json").write_text(json.dumps(SMALLER).replace("TINY", str(folder / "tiny")))
    launcher = folder / ".venv" / "bin" / "reticent"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nfrom reticent.cli.main import main\n"
        "words, sizes = sys.argv[1:], json.load(open('sizes.json'))\n"
        "smaller = next(sizes[name] for name in (' '.join(words[:2]), words[0]) if name in sizes)\n"
        "sys.exit(main(words + [os.environ.get('PORT') if word == 'PORT' else word for word in smaller]))\n"
    )
    launcher.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    return folder


def environment(clone):
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    commands = os.pathsep.join([str(clone / ".venv" / "bin"), os.environ["PATH"]])
    return os.environ | {
        "PATH": commands, "PYTHONPATH": paths, "XDG_CONFIG_HOME": str(clone / "config"), "COLUMNS": "80"
    }  # fmt: skip


def run_as_pasted(command, clone):
    process = subprocess.run(
        ["bash", "-c", command], cwd=clone, env=environment(clone), capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


def serve_as_pasted(command, clone):
    """Start the server, ask it with the key that was made before, and stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, key = f"http://127.0.0.1:{port}", re.search(r"rtc-\S+", (clone / "key").read_text())[0]
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=clone,
        env=environment(clone) | {"PORT": str(port)},
        stderr=subprocess.PIPE,
    )

    def is_ready():
        assert process.poll() is None, process.stderr.read()
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/readyz").status_code == 200 or None
        return None

    try:
        eventually(is_ready, 120)
        ask = {"model": "run", "prompt": "Dear Dr", "max_tokens": 3}
        answer = httpx.post(
            f"{url}/v1/completions", json=ask, headers={"Authorization": f"Bearer {key}"}, timeout=60
        ).json()
        assert 1 <= answer["usage"]["completion_tokens"] <= 3, answer
        assert httpx.get(f"{url}/").status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    return json.dumps(answer)


def labels(lines):
    """What stands first in each line of a printed table."""
    return [re.split(r"\s{2,}", line)[0] for line in lines]


@pytest.mark.timeout(1800)  # ten processes that each import torch: minutes on a machine that others use
def test_commands_run_as_pasted_and_in_order(clone):
    said = {}
    for command, told in COMMANDS:
        if command in ELSEWHERE:
            run_as_pasted(command.replace("make", "make --dry-run"), clone)
            continue
        name = named(command)
        said[name] = serve_as_pasted(command, clone) if name == "serve" else run_as_pasted(command, clone)
        if name == "keys create":
            (clone / "key").write_text(said[name])
        if told:
            printed = said[name].splitlines()
            assert printed[: len(told)] == told, command
    for made in (
        "demo-run/held_out.jsonl",
        "run/ledger.sqlite",
        "evaluation/report.html",
        "audit/report.html",
        "audit-3",
    ):
        assert (clone / made).exists(), made
    # The block behind `generate` shows what it prints.
    block = re.search(r"^```\n(tokens released.*?)^```$", README, re.MULTILINE | re.DOTALL)[1]
    printed = labels(said["generate"].splitlines())
    assert [label for label in labels(block.splitlines()) if label not in printed] == []
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    process = subprocess.run(
        [sys.executable, "-c", example],
        cwd=clone, env=environment(clone), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert re.search(r"\S.* Bounds\(half_success=0\.5", process.stdout, re.DOTALL), process.stdout


def test_commands_are_found_and_a_missing_file_is_noticed(clone):
    found = [command for command, _ in COMMANDS]
    assert found[:2] == ["make demo", "make test"]
    assert len(found) == len(re.findall(r"^(?:\$ )?(?:make|reticent) ", README + TUTORIAL, re.MULTILINE))
    assert {named(command) for command in found if command not in ELSEWHERE} - {"make demo"} == SMALLER.keys() - {
        "demo"
    }
    with pytest.raises(AssertionError, match=r"nowhere\.jsonl"):
        run_as_pasted("reticent canaries plant nowhere.jsonl --out elsewhere", clone)


def test_readme_stays_short():
    assert len(README.splitlines()) < MAX_LINES
