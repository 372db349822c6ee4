"""Isolated training: each world as training alone leaves it, and bit for bit blind to every other world."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from small_trainings import (
    ATTENTION_TOP2,
    TRAINING,
    assert_adapters_close,
    differs,
    encoded,
    make_trainer,
    trained,
)
from tiny_models import build_tiny_model

from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder
from reticent.text.tokenise import EncodedTexts
from reticent.training.isolated import IsolatedTrainer, SlotSchedule, SlottedTexts
from reticent.training.settings import LoraSettings, TrainingSettings

NUM_WORLDS, SLOTS = 4, 5
ALL_BLOCKS = LoraSettings(rank=2)


def placed(changes: dict[int, int] | None = None) -> np.ndarray:
    """The record in each slot: 14 records over 20 slots, world 2 with one alone; some slots changed."""
    slots = np.full((NUM_WORLDS, SLOTS), -1)
    slots[0], slots[1, :4], slots[2, 3], slots[3, 1:] = range(5), range(5, 9), 9, range(10, 14)
    flat = slots.reshape(-1)
    for slot, record in (changes or {}).items():
        flat[slot] = record
    return flat


class Poisoned(IsolatedTrainer):
    """Begins one world from given numbers."""

    poison: tuple[int, float] | None = None

    def initial_adapters(self, num_worlds: int) -> StackedAdapters:
        start = super().initial_adapters(num_worlds)
        if self.poison is not None:
            world, number = self.poison
            for tensor in start.down.values():
                tensor[world] = number
            self.poison = None
        return start


def train_isolated(
    folder: Path,
    record_of_slot: np.ndarray,
    texts: EncodedTexts | None = None,
    lora: LoraSettings = ATTENTION_TOP2,
    training: TrainingSettings = TRAINING,
    poison: tuple[int, float] | None = None,
) -> StackedAdapters:
    decoder = batched_decoder(build_tiny_model("llama", dtype=getattr(torch, training.dtype)))
    slotted = SlottedTexts.of(texts or encoded(), record_of_slot, training.max_tokens)
    trainer = Poisoned(decoder, slotted, lora, training, folder / "trunk.scratch")
    trainer.trunk.compute(lambda _: None)
    trainer.poison = poison
    schedule = schedule_of(record_of_slot, training)
    return trained(trainer, schedule, slice(0, NUM_WORLDS), folder).adapters


def schedule_of(record_of_slot: np.ndarray, training: TrainingSettings = TRAINING) -> SlotSchedule:
    filled = (record_of_slot >= 0).reshape(NUM_WORLDS, SLOTS)
    return SlotSchedule(filled, training.batch_size, training.epochs, training.seed)


@pytest.fixture(params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def test_every_step_has_the_shape_that_public_numbers_give_it() -> None:
    crowded, sparse = (schedule_of(placed(changes)) for changes in (None, dict.fromkeys(range(1, 18), -1)))
    for schedule in (crowded, sparse):
        assert (schedule.steps_per_epoch, schedule.num_steps, schedule.texts_a_step) == (2, 6, 3)
        assert {schedule.batch(step, slice(0, 4)).shape for step in range(6)} == {(4, 3)}
    for epoch in range(3):
        taken = np.concatenate([crowded.batch(2 * epoch + half, slice(0, 4)) for half in (0, 1)], axis=1)
        assert [sorted(row[row >= 0]) for row in taken] == [
            [0, 1, 2, 3, 4], [5, 6, 7, 8], [13], [16, 17, 18, 19]
        ]  # fmt: skip


def test_a_worlds_order_follows_from_its_own_texts_number_and_seed() -> None:
    one, other = schedule_of(placed()), schedule_of(placed({0: -1, 1: -1, 15: 3, 9: 2}))
    assert all(np.array_equal(one.batch(step, slice(2, 3)), other.batch(step, slice(2, 3))) for step in range(6))
    full = SlotSchedule(np.ones((6, 40), dtype=bool), 40, 1, 0)
    orders = [tuple(row % 40) for row in full.batch(0, slice(0, 6))]
    assert len(set(orders)) == 6


@pytest.mark.parametrize("lora", [ATTENTION_TOP2, ALL_BLOCKS], ids=["top", "all"])
def test_padding_and_empty_slots_change_no_adapter(tmp_path: Path, lora: LoraSettings) -> None:
    """The trainer that PEFT vouches for, on the same texts without padding, ends in the same adapters."""
    slots = placed()
    ours = train_isolated(tmp_path, slots, lora=lora)

    class SameSteps:
        num_worlds, num_steps, steps_per_epoch = NUM_WORLDS, 6, 2

        def batch(self, step: int, worlds: slice) -> np.ndarray:
            chosen = schedule_of(slots).batch(step, worlds)
            return np.where(chosen < 0, -1, slots[chosen])

    # World 2 holds one text and so has steps without any, which this trainer cannot take: it is left out.
    theirs = make_trainer("llama", lora, tmp_path)
    for world in (0, 1, 3):
        alone = trained(theirs, SameSteps(), slice(world, world + 1), tmp_path).adapters
        assert_adapters_close(ours.one(world), alone, atol=2e-5)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("world", "dtype"), [(0, "bfloat16"), (1, "float32"), (3, "bfloat16")])
def test_nothing_in_one_world_moves_a_bit_of_another(tmp_path: Path, world: int, dtype: str) -> None:
    training = TRAINING.model_copy(update={"dtype": dtype})
    first = world * SLOTS
    plain = train_isolated(tmp_path, placed(), training=training)
    emptied = {first + slot: -1 for slot in range(SLOTS)}
    changed = {
        "emptied": train_isolated(tmp_path, placed(emptied), training=training),
        "other texts": train_isolated(tmp_path, placed({first + 1: 12, first + 2: 13}), training=training),
        "huge": train_isolated(tmp_path, placed(), training=training, poison=(world, 1e30)),
        "NaN": train_isolated(tmp_path, placed(), training=training, poison=(world, float("nan"))),
        "infinite": train_isolated(tmp_path, placed(), training=training, poison=(world, float("inf"))),
    }
    for what, adapters in changed.items():
        for name in ("down", "up"):
            for path, tensor in getattr(plain, name).items():
                found = getattr(adapters, name)[path]
                others = [other for other in range(NUM_WORLDS) if other != world]
                assert torch.equal(found[others], tensor[others]), (what, name, path)
                assert found.isfinite().all(), what
        assert differs(adapters.one(world), plain.one(world)) > 0


def test_a_world_that_is_empty_or_not_finite_is_the_base(tmp_path: Path) -> None:
    emptied = train_isolated(tmp_path, placed(dict.fromkeys(range(SLOTS), -1)))
    broken = train_isolated(tmp_path, placed(), poison=(1, float("nan")))
    for path in emptied.up:
        assert not emptied.up[path][0].any()
        assert not broken.up[path][1].any()
        assert emptied.up[path][1].any()
        assert torch.equal(broken.down[path][1], emptied.down[path][0])


def test_who_trains_in_one_group_is_no_matter_of_texts(tmp_path: Path) -> None:
    """A longer text in another world changes no shape: the padded width is public."""
    short = encoded(["ab" * 3] * 14)
    texts = [short.tokens[short.offsets[i] : short.offsets[i + 1]] for i in range(14)]
    texts[0] = np.tile(texts[0], 3)
    longer = EncodedTexts.of(texts, None, 0)
    one, other = (train_isolated(tmp_path, placed(), texts) for texts in (short, longer))
    for path in one.up:
        assert torch.equal(one.up[path][1:], other.up[path][1:])
        assert not torch.equal(one.up[path][0], other.up[path][0])
