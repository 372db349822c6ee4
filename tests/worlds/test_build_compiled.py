"""A build compiles its training if asked to or where it pays, and goes on as it was begun."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import Silent, assert_same_bits

from reticent.cli import main as cli
from reticent.errors import InvalidValueError
from reticent.training import compilation as fusing
from reticent.worlds import build as building
from reticent.worlds.build import BuildRequest, build_run


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each group was asked to be trained compiled; none is. There seems to be a compiler."""
    asked: list[bool] = []
    train = building.MultiWorldTrainer.train

    def spy(self: Any, *arguments: Any, fuse: bool) -> Any:
        asked.append(fuse)
        return train(self, *arguments)

    monkeypatch.setattr(building.MultiWorldTrainer, "train", spy)
    monkeypatch.setattr(fusing, "why_not_compiled", lambda: None)
    return asked


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "why_not_compiled", lambda: "no g++")


def any_length_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusing, "_FLOP_WORTH_COMPILING", 0.0)


@pytest.mark.parametrize(
    ("wanted", "pays", "fuse"), [(True, 0, True), (False, 1, False), (None, 0, False), (None, 1, True)]
)
def test_the_choice_reaches_every_group(
    request_for: BuildRequest,
    fused: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    wanted: bool | None,
    pays: bool,
    fuse: bool,
) -> None:
    if pays:
        any_length_pays(monkeypatch)
    build_run(dataclasses.replace(request_for, compile=wanted), Silent())
    # Two groups of worlds, and the adapter on all records.
    assert fused == [fuse] * 3


@pytest.mark.parametrize("option", ["--compile", "--no-compile"])
def test_the_options_reach_every_group(
    option: str, fused: list[bool], corpus: Path, tiny_llama_folder: Path, tmp_path: Path, capsys: Any
) -> None:
    arguments = ["worlds", "build", corpus, "--model", tiny_llama_folder, "--out", tmp_path / "run", "--worlds", 2]
    assert cli.main([*map(str, arguments), "--max-tokens", "16", option]) == 0
    assert fused == [option == "--compile"] * 2


def test_compiling_without_a_compiler_writes_nothing(
    request_for: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compiler(monkeypatch)
    with pytest.raises(InvalidValueError, match=r"--compile: .*\(no g\+\+\)"):
        build_run(dataclasses.replace(request_for, compile=True), Silent())
    assert not request_for.out.exists()


def stopped(request: BuildRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a build after its first group, as Ctrl-C would."""
    write = building.write_adapters

    def write_and_stop(path: Path, *arguments: Any) -> None:
        write(path, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(building, "write_adapters", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            build_run(request, Silent())


def test_a_build_begun_compiled_goes_on_compiled_where_it_would_now_be_chosen_otherwise(
    request_for: BuildRequest, fused: list[bool], monkeypatch: pytest.MonkeyPatch, finished_run: Path
) -> None:
    with monkeypatch.context() as patch:
        any_length_pays(patch)
        stopped(request_for, patch)
    build_run(request_for, Silent(), resume=True)
    assert fused == [True] * 3
    assert_same_bits(request_for.out, finished_run)


def test_a_build_begun_without_compiling_goes_on_so_though_it_would_now_be_compiled(
    request_for: BuildRequest, fused: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(request_for, monkeypatch)
    any_length_pays(monkeypatch)
    with pytest.raises(InvalidValueError, match="begun with --no-compile"):
        build_run(dataclasses.replace(request_for, compile=True), Silent(), resume=True)
    build_run(request_for, Silent(), resume=True)
    assert fused == [False] * 3


def test_a_build_begun_compiled_does_not_go_on_without_a_compiler_and_loses_nothing(
    request_for: BuildRequest, fused: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(dataclasses.replace(request_for, compile=True), monkeypatch)
    with monkeypatch.context() as patch:
        without_compiler(patch)
        with pytest.raises(InvalidValueError, match=r"begun compiled.*no g\+\+"):
            build_run(request_for, Silent(), resume=True)
    build_run(request_for, Silent(), resume=True)
    assert fused == [True] * 3


def test_a_build_begun_before_choices_were_kept_goes_on(
    request_for: BuildRequest, fused: list[bool], monkeypatch: pytest.MonkeyPatch, finished_run: Path
) -> None:
    stopped(request_for, monkeypatch)
    path = request_for.out / "training" / "request.json"
    kept = json.loads(path.read_text())
    assert kept.pop("compiled") is False
    path.write_text(json.dumps(kept))
    build_run(request_for, Silent(), resume=True)
    assert_same_bits(request_for.out, finished_run)
