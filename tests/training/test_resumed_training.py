"""Training all worlds together, stopped and resumed: the same bits, saved when due, and tokens counted once."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from small_trainings import ATTENTION_TOP2, NUM_WORLDS, TRAINING, encoded, make_trainer, trained, world_schedule

from reticent.training.checkpoint import TrainingCheckpoint


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 4, 11])
def test_stopped_after_any_step_training_resumes_to_the_same_bits(stop_after: int, tmp_path: Path) -> None:
    check_resuming(stop_after, tmp_path)


def test_compiled_training_resumes_to_the_same_bits_though_other_lengths_come_first(
    compiled_calls: Counter[str], tmp_path: Path
) -> None:
    check_resuming(4, tmp_path, fuse=True)
    assert set(compiled_calls) == {"_rms_norm", "_gated_silu", "_split_heads"}


def check_resuming(stop_after: int, tmp_path: Path, *, fuse: bool = False) -> None:
    trainer, schedule = make_trainer("llama", ATTENTION_TOP2, tmp_path), world_schedule()
    assert stop_after < schedule.num_steps
    whole = trained(trainer, schedule, slice(0, 2), tmp_path, fuse=fuse)
    steps = 0

    def count_and_stop(_: int) -> None:
        nonlocal steps
        steps += 1
        if steps == stop_after:
            raise StoppedError

    path = tmp_path / "group.checkpoint"
    with pytest.raises(StoppedError):
        trainer.train(
            schedule, slice(0, 2), TrainingCheckpoint(path, seconds_between_saves=0), count_and_stop, fuse=fuse
        )
    # As a new process would, compile for what comes now.
    torch.compiler.reset()
    resumed = trainer.train(schedule, slice(0, 2), TrainingCheckpoint(path), lambda _: None, fuse=fuse)
    for name in whole.adapters.down:
        assert torch.equal(resumed.adapters.down[name], whole.adapters.down[name])
        assert torch.equal(resumed.adapters.up[name], whole.adapters.up[name])
    np.testing.assert_array_equal(resumed.last_epoch_loss, whole.last_epoch_loss)


def test_checkpoints_are_saved_no_more_often_than_asked(tmp_path: Path) -> None:
    trainer, schedule = make_trainer("llama", ATTENTION_TOP2, tmp_path), world_schedule()
    now = 0.0
    path, seen = tmp_path / "group.checkpoint", []
    checkpoint = TrainingCheckpoint(path, seconds_between_saves=2.5, clock=lambda: now)

    def second_passes(_: int) -> None:
        nonlocal now
        seen.append(path.stat().st_mtime_ns if path.exists() else None)
        now += 1.0

    trainer.train(schedule, slice(0, 1), checkpoint, second_passes)
    # The clock stands at 0, 1, 2, 3 … when a step could be saved.
    assert seen[:3] == [None] * 3
    assert seen[3] is not None
    assert seen[3] == seen[5]
    assert seen[5] < seen[6]


def test_tokens_are_counted_as_they_are_trained_on(tmp_path: Path) -> None:
    texts, schedule = encoded(), world_schedule()
    counts: list[int] = []
    make_trainer("llama", ATTENTION_TOP2, tmp_path, texts).train(
        schedule, slice(0, NUM_WORLDS), TrainingCheckpoint(tmp_path / "none"), counts.append
    )
    assert len(counts) == schedule.num_steps
    assert sum(counts) == TRAINING.epochs * int((schedule.members.sum(1) * (texts.lengths - 1)).sum())


def test_a_resumed_build_counts_the_tokens_of_the_steps_it_skips(tmp_path: Path) -> None:
    texts, schedule = encoded(), world_schedule()
    trainer = make_trainer("llama", ATTENTION_TOP2, tmp_path, texts)
    path, worlds = tmp_path / "checkpoint", slice(0, NUM_WORLDS)

    def stop_after_three_steps(counts: list[int], tokens: int) -> None:
        counts.append(tokens)
        if len(counts) == 3:
            raise KeyboardInterrupt

    first: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        trainer.train(schedule, worlds, TrainingCheckpoint(path, 0.0), lambda n: stop_after_three_steps(first, n))
    second: list[int] = []
    trainer.train(schedule, worlds, TrainingCheckpoint(path, 0.0), second.append)
    assert second[0] == sum(first)
    assert sum(second) == TRAINING.epochs * int((schedule.members.sum(1) * (texts.lengths - 1)).sum())
