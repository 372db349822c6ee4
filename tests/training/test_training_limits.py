"""Training all worlds together: no pass grows with a unit, and no world goes on from broken weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from small_trainings import (
    ATTENTION_TOP2,
    NUM_RECORDS,
    NUM_WORLDS,
    TRAINING,
    assert_adapters_close,
    make_trainer,
    trained,
    world_schedule,
)

from reticent.errors import TrainingError
from reticent.training import multiworld, settings
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.multiworld import MultiWorldTrainer
from reticent.training.settings import LARGEST_SEED, LoraSettings, TrainingSettings, records_that_fit, worlds_that_fit
from reticent.training.single_settings import SingleTrainingSettings


def one_large_unit() -> NDArray[np.bool_]:
    """Worlds 0 and 1 hold the unit that has all records but four; the others share those."""
    members = np.zeros((NUM_RECORDS, NUM_WORLDS), dtype=np.bool_)
    members[4:, :2] = True
    members[:4, 1:] = True
    return members


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Worlds, records and positions of every pass; 32 tokens are about what a pass should hold."""
    monkeypatch.setattr(settings, "_TOKENS_AT_ONCE", 32)
    seen: list[tuple[int, int, int]] = []
    accumulate = MultiWorldTrainer._accumulate_part

    def spy(self: Any, records_GB: NDArray[np.int64], *arguments: Any) -> None:
        seen.append((*records_GB.shape, int(self._num_targets(records_GB).max())))
        accumulate(self, records_GB, *arguments)

    monkeypatch.setattr(MultiWorldTrainer, "_accumulate_part", spy)
    return seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_in_parts_is_the_whole_step(
    dtype: str, passes: list[tuple[int, int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = TRAINING.model_copy(update={"dtype": dtype})
    schedule = world_schedule(one_large_unit())
    trainer = make_trainer("llama", ATTENTION_TOP2, tmp_path, training=training)
    monkeypatch.setattr(multiworld, "records_that_fit", lambda *_: 1)
    parts = trained(trainer, schedule, slice(0, NUM_WORLDS), tmp_path)
    assert {num_records for _, num_records, _ in passes} == {1}
    monkeypatch.setattr(multiworld, "records_that_fit", lambda *_: 10**6)
    whole = trained(trainer, schedule, slice(0, NUM_WORLDS), tmp_path)
    np.testing.assert_allclose(parts.last_epoch_loss, whole.last_epoch_loss, rtol=1e-6 if dtype == "float32" else 2e-2)
    if dtype == "float32":
        assert_adapters_close(parts.adapters, whole.adapters, atol=2e-5)


def test_a_pass_holds_no_more_however_many_records_a_unit_has(
    passes: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    training = TRAINING.model_copy(update={"batch_size": 1})
    schedule = world_schedule(one_large_unit())
    trained(make_trainer("llama", ATTENTION_TOP2, tmp_path, training=training), schedule, slice(0, 4), tmp_path)
    assert len(passes) > schedule.num_steps
    for num_worlds, num_records, num_positions in passes:
        tokens = num_worlds * num_records * num_positions
        assert tokens <= max(2 * num_worlds * num_positions, 2 * 32)


def test_a_step_in_parts_resumes_to_the_same_bits(passes: list[tuple[int, int, int]], tmp_path: Path) -> None:
    training = TRAINING.model_copy(update={"batch_size": 1})
    schedule = world_schedule(one_large_unit())
    trainer = make_trainer("llama", ATTENTION_TOP2, tmp_path, training=training)
    whole = trained(trainer, schedule, slice(0, 4), tmp_path)
    assert len(passes) > schedule.num_steps
    checkpoint = tmp_path / "checkpoint"

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train(schedule, slice(0, 4), TrainingCheckpoint(checkpoint, 0.0), stop)
    resumed = trainer.train(schedule, slice(0, 4), TrainingCheckpoint(checkpoint), lambda _: None)
    for path in whole.adapters.down:
        assert torch.equal(resumed.adapters.down[path], whole.adapters.down[path])
        assert torch.equal(resumed.adapters.up[path], whole.adapters.up[path])
    np.testing.assert_array_equal(resumed.last_epoch_loss, whole.last_epoch_loss)


def test_ordinary_steps_are_one_pass() -> None:
    for batch_size, max_tokens in ((8, 256), (2, 24), (1, 4096), (64, 256)):
        num_worlds = worlds_that_fit(batch_size, max_tokens)
        # A step takes up to half as many more records than asked where they do not divide evenly.
        assert records_that_fit(num_worlds, max_tokens - 1, batch_size) >= 1.5 * batch_size
    assert records_that_fit(2, 255, 8) == 16
    assert records_that_fit(2, 16, 8) == 256


class Poisoned:
    """Spoils the loss, or the gradient alone, of one world in one step."""

    def __init__(self, where: str, row: int, step: int) -> None:
        self._where, self._row, self._steps_left = where, row, step
        self._accumulate = MultiWorldTrainer._accumulate

    def __call__(self, trainer: Any, records_GB: NDArray[np.int64], adapters: Any, totals: torch.Tensor) -> int:
        num_tokens = self._accumulate(trainer, records_GB, adapters, totals)
        if self._steps_left == 0:
            if self._where == "loss":
                totals[0, self._row] = float("nan")
            else:
                next(iter(adapters.up.values())).grad[self._row, 0, 0] = float("inf")
        self._steps_left -= 1
        return num_tokens


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_world_whose_loss_or_gradient_is_not_finite_stops_training_before_its_step(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, schedule = make_trainer("llama", ATTENTION_TOP2, tmp_path), world_schedule()
    poisoned = Poisoned(where, row=1, step=3)
    monkeypatch.setattr(MultiWorldTrainer, "_accumulate", lambda *arguments: poisoned(*arguments))
    checkpoint, done = tmp_path / "checkpoint", []
    with pytest.raises(
        TrainingError, match=rf"not finite for world 3 in step 4 of {schedule.num_steps} at learning rate 0.003"
    ):
        trainer.train(schedule, slice(2, 4), TrainingCheckpoint(checkpoint, 0.0), done.append)
    assert len(done) == 3
    # What was saved before is whole.
    assert all(tensor.isfinite().all() for tensor in safetensors.torch.load_file(checkpoint).values())


def test_training_that_diverges_by_itself_stops(tmp_path: Path) -> None:
    lora = LoraSettings(rank=2, alpha=1e38, num_top_layers=2)
    half = make_trainer("llama", lora, tmp_path, training=TRAINING.model_copy(update={"dtype": "bfloat16"}))
    with pytest.raises(TrainingError, match=r"lower --learning-rate or --alpha, or with --dtype float32$"):
        trained(half, world_schedule(), slice(0, 2), tmp_path)
    full = world_schedule(np.ones((NUM_RECORDS, 1), dtype=np.bool_))
    with pytest.raises(TrainingError, match=r"the adapter on all records.*--alpha$"):
        trained(make_trainer("llama", lora, tmp_path), full, slice(0, 1), tmp_path)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0.0])
def test_alpha_is_a_positive_finite_number(value: float) -> None:
    with pytest.raises(ValidationError, match="alpha"):
        LoraSettings(alpha=value)


@pytest.mark.parametrize("kind", [TrainingSettings, SingleTrainingSettings])
def test_seeds_are_as_large_as_every_generator_takes(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="seed"):
        kind(seed=LARGEST_SEED + 1)
    assert kind(seed=LARGEST_SEED).seed == LARGEST_SEED
    if kind is TrainingSettings:
        trainer = make_trainer("llama", ATTENTION_TOP2, tmp_path, training=kind(seed=LARGEST_SEED))
        assert trainer.initial_adapters(1).num_adapters == 1
