"""A few worlds in training over a tiny model, shared by the tests of training them together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_models import build_tiny_model, byte_tokenizer

from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder
from reticent.text.tokenise import EncodedTexts, encode_texts
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.multiworld import MultiWorldTrainer, TrainedWorlds
from reticent.training.schedule import Schedule, make_schedule
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.worlds.assignment import membership_matrix

NUM_WORLDS = 4
NUM_RECORDS = 14
TRAINING = TrainingSettings(epochs=3, batch_size=2, learning_rate=3e-3, max_tokens=24, seed=5)


def random_texts(seed: int = 0) -> list[str]:
    """Texts of 3 to 30 letters, so that some are cut."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 31, NUM_RECORDS)
    return ["".join(chr(97 + letter) for letter in generator.integers(0, 26, length)) for length in lengths]


def encoded(texts: Sequence[str] | None = None) -> EncodedTexts:
    return encode_texts(byte_tokenizer(), random_texts() if texts is None else texts, TRAINING.max_tokens)


def make_trainer(
    family: str, lora: LoraSettings, folder: Path, texts: EncodedTexts | None = None, training: Any = TRAINING
) -> MultiWorldTrainer:
    decoder = batched_decoder(build_tiny_model(family, dtype=getattr(torch, training.dtype)))
    trainer = MultiWorldTrainer(decoder, texts or encoded(), lora, training, folder / "trunk.scratch")
    trainer.trunk.compute(lambda _: None)
    return trainer


def world_schedule(members: NDArray[np.bool_] | None = None) -> Schedule:
    members = membership_matrix(NUM_RECORDS, NUM_WORLDS, 0) if members is None else members
    return make_schedule(members, TRAINING.batch_size, TRAINING.epochs, TRAINING.seed)


def trained(
    trainer: MultiWorldTrainer, schedule: Schedule, worlds: slice, folder: Path, *, fuse: bool = False
) -> TrainedWorlds:
    # Never saved: where compiling takes long, the next training in the folder would begin from it.
    never = TrainingCheckpoint(folder / "none.checkpoint", float("inf"))
    return trainer.train(schedule, worlds, never, lambda _: None, fuse=fuse)


def assert_adapters_close(ours: StackedAdapters, theirs: StackedAdapters, atol: float = 2e-6) -> None:
    assert list(ours.down) == list(theirs.down)
    for path in ours.down:
        torch.testing.assert_close(ours.down[path], theirs.down[path], rtol=1e-4, atol=atol)
        torch.testing.assert_close(ours.up[path], theirs.up[path], rtol=1e-4, atol=atol)


def differs(ours: StackedAdapters, theirs: StackedAdapters) -> float:
    return max(float((ours.up[path] - theirs.up[path]).abs().max()) for path in ours.up)


ATTENTION_TOP2 = LoraSettings(rank=2, num_top_layers=2)
