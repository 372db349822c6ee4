"""A small corpus and the build of a small run over it, shared by the tests and the crash test's driver."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.build import BuildRequest
from reticent.worlds.manifest import FULL_NAME, WORLDS_NAME

NUM_RECORDS = 10
NUM_WORLDS = 4


class Silent:
    """Progress that nobody sees."""

    def note(self, line: str) -> None:
        pass

    def begin(self, what: str, num_tokens: int) -> None:
        pass

    def advance(self, num_tokens: int) -> None:
        pass


class Recording(Silent):
    """Remembers what a build says."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.expected: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self._phase = ""

    def note(self, line: str) -> None:
        self.notes.append(line)

    def begin(self, what: str, num_tokens: int) -> None:
        self._phase = what
        self.expected[what], self.done[what] = num_tokens, 0

    def advance(self, num_tokens: int) -> None:
        self.done[self._phase] += num_tokens


def write_corpus(path: Path, seed: int = 0) -> Path:
    """Ten records of random words, no two alike."""
    generator = np.random.default_rng(seed)
    with path.open("w") as file:
        for _ in range(NUM_RECORDS):
            words = ["".join(chr(97 + c) for c in generator.integers(0, 26, 4)) for _ in range(6)]
            file.write(json.dumps({"text": " ".join(words)}) + "\n")
    return path


def small_request(corpus: Path, model: Path, out: Path, **overrides: Any) -> BuildRequest:
    """Four worlds in groups of two; with as many steps as a kill needs to find its moment."""
    settings: dict[str, Any] = {
        "num_worlds": NUM_WORLDS,
        "lora": LoraSettings(rank=2, num_top_layers=2),
        "training": TrainingSettings(batch_size=2, max_tokens=32, learning_rate=1e-2, worlds_at_once=2),
    }
    return BuildRequest(corpus=corpus, model=str(model), out=out, **(settings | overrides))


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    return {
        f"{name}:{key}": tensor
        for name in (WORLDS_NAME, FULL_NAME)
        for key, tensor in safetensors.torch.load_file(run / name).items()
    }


def assert_same_bits(run: Path, other: Path) -> None:
    ours, theirs = tensors_of(run), tensors_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
