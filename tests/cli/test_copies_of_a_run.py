"""Two commands on copies of one run, as `cp -r` makes them: the second is refused, and an old copy is reset alone."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from built_runs import write_manifest

from reticent.api.deployments import run_id
from reticent.cli.main import main
from reticent.ledger.keys import Keyring
from reticent.ledger.store import Ledger
from reticent.randomness import SystemNoise

COMMAND = "import sys; from reticent.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for variable in ("RETICENT_KEY", "RETICENT_DATABASE_URL"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def run_dir(tmp_path, environment, tiny_llama_folder):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"letter {n} says {'abcdefgh'[n] * 9}"}) + "\n" for n in range(8)))
    options = ("--worlds", "4", "--rank", "2", "--adapt-layers", "top:1", "--max-tokens", "32")
    build = ["worlds", "build", str(corpus), "--model", str(tiny_llama_folder), "--out", str(tmp_path / "run")]
    assert main([*build, *options]) == 0
    return tmp_path / "run"


def generate(run):
    return main(["generate", str(run), "--prompt", "letter", "--max-tokens", "2", "--candidates", "20", "--json"])


def test_while_one_copy_is_served_no_other_is_served_or_released_from(run_dir, tmp_path, capsys):
    assert generate(run_dir) == 0
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    marks = [path.read_bytes() for path in (tmp_path / "config").rglob("*.mark")]
    serve = [sys.executable, "-c", COMMAND, "serve", str(run_dir), "--port", "0", "--candidates", "20"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as first:
        try:
            # The server is up once it logs, in JSON; its deployment's lock is then held.
            while not (line := first.stderr.readline()).startswith("{"):
                assert line, "the server ended"
            capsys.readouterr()
            assert generate(copy) == 2
            assert "another process is using the deployment from a copy" in " ".join(capsys.readouterr().err.split())
            second = [*serve[:4], str(copy), *serve[5:]]
            ended = subprocess.run(second, capture_output=True, text=True, timeout=120, check=False)
            assert ended.returncode == 2
            assert "another process is using the deployment from a copy" in " ".join(ended.stderr.split())
        finally:
            first.send_signal(signal.SIGTERM)
            first.stderr.read()
    assert [path.read_bytes() for path in (tmp_path / "config").rglob("*.mark")] == marks
    assert generate(copy) == 0
    capsys.readouterr()
    assert generate(run_dir) == 2
    assert "deletes this copy alone" in " ".join(capsys.readouterr().err.split())


def test_a_reset_says_whether_a_copy_goes_alone_and_where_keys_are_kept(environment, tmp_path, capsys):
    run, copy = tmp_path / "run", tmp_path / "copy"
    run.mkdir()
    write_manifest(run)
    Ledger.open(run, run_id(run), 8, Keyring.of_user(), noise=SystemNoise()).close()
    shutil.copytree(run, copy)
    keys = sorted((tmp_path / "config").rglob("*.key"))
    reset = ["state", "reset", "--void-guarantee", "--yes"]
    assert main([*reset, str(copy)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "is a copy" in said
    assert "no key and no mark was touched" in said
    assert sorted((tmp_path / "config").rglob("*.key")) == keys
    Ledger.open(run, run_id(run), 8, Keyring.of_user(), noise=SystemNoise()).close()
    assert main([*reset, str(run)]) == 0
    said = "".join(capsys.readouterr().err.split())
    for kept in (tmp_path / "config").rglob("*.reset-*"):
        assert str(kept) in said
    assert len(list((tmp_path / "config").rglob("*.reset-*"))) == 2
