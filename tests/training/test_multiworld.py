"""All worlds trained together against each world trained alone, by PEFT on the plain `transformers` model."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from small_trainings import (
    ATTENTION_TOP2,
    NUM_RECORDS,
    NUM_WORLDS,
    TRAINING,
    assert_adapters_close,
    differs,
    encoded,
    make_trainer,
    random_texts,
    trained,
    world_schedule,
)
from tiny_models import FAMILIES, build_tiny_model
from torch.nn import functional

from reticent.errors import StorageError
from reticent.layers.adapters import StackedAdapters
from reticent.layers.forward import batched_decoder
from reticent.text.tokenise import EncodedTexts
from reticent.training import schedule as schedule_module
from reticent.training import trunk as trunk_module
from reticent.training.schedule import Schedule
from reticent.training.settings import LoraSettings, TrainingSettings
from reticent.training.trunk import FrozenTrunk
from reticent.worlds.assignment import membership_matrix

# Larger than the trainer's own, so that few steps see both the rise and the fall.
WARMUP_SHARE = 0.25

# How far, as a share of their norm, adapters trained in bfloat16 may lie from those trained in float32.
HALF_PRECISION = 0.2


@pytest.fixture(autouse=True)
def _longer_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "_WARMUP_SHARE", WARMUP_SHARE)


class OneWorldAlone:
    """One world's adapter by PEFT, torch's optimiser and clipping, one record at a time."""

    def __init__(self, family: str, initial: StackedAdapters, learning_rate: float) -> None:
        config = LoraConfig(
            r=initial.rank,
            lora_alpha=int(initial.alpha),
            lora_dropout=0.0,
            target_modules=list(initial.down),
            fan_in_fan_out=family == "gpt2",
        )
        self.model = get_peft_model(build_tiny_model(family), config)
        self.factors = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for path, down in initial.down.items():
                self.factors[f"base_model.model.{path}.lora_A.default.weight"].copy_(down[0])
        self.optimiser = torch.optim.AdamW(self.factors.values(), lr=learning_rate, weight_decay=0.0)
        self.peak = learning_rate

    def train(self, texts: EncodedTexts, schedule: Schedule, world: int) -> float:
        """Train to the last step; returns the mean loss of the last epoch, nats a token."""
        warmup = max(1, round(WARMUP_SHARE * schedule.num_steps))
        summed, counted = 0.0, 0
        for step in range(schedule.num_steps):
            if step == schedule.num_steps - schedule.steps_per_epoch:
                summed, counted = 0.0, 0
            records = [r for r in schedule.batch(step, slice(world, world + 1))[0] if r >= 0]
            spans = [slice(texts.offsets[r], texts.offsets[r + 1]) for r in records]
            losses = torch.cat([self._losses(texts.tokens[span], texts.is_scored[span]) for span in spans])
            rising = (step + 1) / warmup
            falling = (schedule.num_steps - step) / max(1, schedule.num_steps - warmup)
            self.optimiser.param_groups[0]["lr"] = self.peak * (rising if step < warmup else falling)
            self.optimiser.zero_grad()
            losses.mean().backward()
            torch.nn.utils.clip_grad_norm_(self.factors.values(), 1.0)
            self.optimiser.step()
            summed, counted = summed + losses.sum().item(), counted + len(losses)
        return summed / counted

    def _losses(self, tokens: NDArray[np.int64], is_scored: NDArray[np.bool_]) -> torch.Tensor:
        """Of the scored tokens: all others have the label that is left out."""
        ids = torch.from_numpy(tokens)[None]
        labels = torch.from_numpy(np.where(is_scored, tokens, -100))
        logits = self.model(input_ids=ids).logits[0, :-1]
        losses = functional.cross_entropy(logits, labels[1:], reduction="none", ignore_index=-100)
        return losses[labels[1:] != -100]

    def factor(self, path: str, kind: str) -> torch.Tensor:
        return self.factors[f"base_model.model.{path}.{kind}.default.weight"].detach()


CASES = [
    pytest.param("attention", 3, None, id="attention-odd-rank"),
    pytest.param("all-linear", 2, None, id="all-linear"),
    pytest.param("all-linear", 1, 2, id="all-linear-rank1-top2"),
    pytest.param("attention", 4, 1, id="attention-top1"),
]


@pytest.mark.parametrize(("target", "rank", "top"), CASES)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_training_together_equals_training_each_world_alone(
    family: str, target: str, rank: int, top: int | None, tmp_path: Path
) -> None:
    check_against_worlds_alone(
        family, LoraSettings(rank=rank, alpha=2 * rank, target_modules=(target,), num_top_layers=top), tmp_path
    )


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("llama", "gpt2")])
def test_training_together_equals_training_alone_in_the_other_families(family: str, tmp_path: Path) -> None:
    check_against_worlds_alone(family, LoraSettings(rank=2, target_modules=("all-linear",), num_top_layers=2), tmp_path)


# What each family has of it; GPT-J has a layer norm and no gate, Qwen3 normalises heads between splitting and rotating.
COMPILED = {
    "llama": {"_rms_norm", "_gated_silu", "_split_heads"},
    "qwen3": {"_rms_norm", "_gated_silu"},
    "gptj": {"_split_heads"},
}


@pytest.mark.parametrize("family", COMPILED)
def test_compiled_training_together_equals_training_alone(
    family: str, compiled_calls: Counter[str], tmp_path: Path
) -> None:
    check_against_worlds_alone(family, LoraSettings(rank=2, num_top_layers=2), tmp_path, fuse=True)
    assert set(compiled_calls) == COMPILED[family]
    # Two blocks, in every step.
    assert compiled_calls["_split_heads"] == 2 * world_schedule().num_steps * ("_split_heads" in COMPILED[family])


def test_nothing_is_compiled_unless_asked(compiled_calls: Counter[str], tmp_path: Path) -> None:
    trained(make_trainer("llama", ATTENTION_TOP2, tmp_path), world_schedule(), slice(0, 1), tmp_path)
    assert not compiled_calls


@pytest.mark.parametrize("family", COMPILED)
def test_compiled_training_in_half_precision_is_as_near_to_exact_as_without(
    family: str, compiled_calls: Counter[str], tmp_path: Path
) -> None:
    half = TRAINING.model_copy(update={"dtype": "bfloat16"})
    ours = trained(
        make_trainer(family, ATTENTION_TOP2, tmp_path, training=half),
        world_schedule(),
        slice(0, 2),
        tmp_path,
        fuse=True,
    )
    exact = trained(make_trainer(family, ATTENTION_TOP2, tmp_path), world_schedule(), slice(0, 2), tmp_path)
    assert set(compiled_calls) == COMPILED[family]
    # Losses to the eight bits of the type; adapters, which sum up the rounding of all steps, as without compiling.
    np.testing.assert_allclose(ours.last_epoch_loss, exact.last_epoch_loss, rtol=2.0**-8)
    for path, up in exact.adapters.up.items():
        assert (ours.adapters.up[path].float() - up).norm() < HALF_PRECISION * up.norm()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_training_together_on_answers_alone_equals_training_each_world_alone(family: str, tmp_path: Path) -> None:
    """The first letters of each text are given; one text has a single letter to learn."""
    sequences = encoded().sequences
    masks = [np.arange(len(ids)) >= max(1, len(ids) // 2) for ids in sequences]
    masks[3] = np.arange(len(sequences[3])) == 2
    texts = EncodedTexts.of(sequences, masks, 0)
    check_against_worlds_alone(family, LoraSettings(rank=2, num_top_layers=2), tmp_path, texts)


def check_against_worlds_alone(
    family: str, lora: LoraSettings, folder: Path, texts: EncodedTexts | None = None, *, fuse: bool = False
) -> None:
    texts, schedule = texts or encoded(), world_schedule()
    trainer = make_trainer(family, lora, folder, texts)
    initial = trainer.initial_adapters(1)
    together = trained(trainer, schedule, slice(0, NUM_WORLDS), folder, fuse=fuse)
    moved = 0.0
    for world in range(NUM_WORLDS):
        alone = OneWorldAlone(family, initial, TRAINING.learning_rate)
        loss = alone.train(texts, schedule, world)
        assert together.last_epoch_loss[world] == pytest.approx(loss, rel=1e-5)
        for path in initial.down:
            down, up = together.adapters.down[path][world], together.adapters.up[path][world]
            torch.testing.assert_close(down, alone.factor(path, "lora_A"), rtol=1e-3, atol=2e-5)
            torch.testing.assert_close(up, alone.factor(path, "lora_B"), rtol=1e-3, atol=2e-5)
            moved = max(moved, float((up - initial.up[path][0]).abs().max()))
    # A hundred times the tolerance, or agreement above would show nothing.
    assert moved > 2e-3


@pytest.mark.parametrize("size", [1, 3])
def test_how_worlds_are_grouped_does_not_matter(size: int, tmp_path: Path) -> None:
    trainer, schedule = make_trainer("llama", ATTENTION_TOP2, tmp_path), world_schedule()
    whole = trained(trainer, schedule, slice(0, NUM_WORLDS), tmp_path)
    for start in range(0, NUM_WORLDS, size):
        part = trained(trainer, schedule, slice(start, min(start + size, NUM_WORLDS)), tmp_path)
        for row in range(part.adapters.num_adapters):
            assert_adapters_close(part.adapters.one(row), whole.adapters.one(start + row))
            assert part.last_epoch_loss[row] == pytest.approx(whole.last_epoch_loss[start + row], rel=1e-6)


def test_a_world_does_not_feel_the_records_of_another(tmp_path: Path) -> None:
    trainer = make_trainer("llama", ATTENTION_TOP2, tmp_path)
    members = membership_matrix(NUM_RECORDS, NUM_WORLDS, 0)
    changed = members.copy()
    changed[:, 2] = ~members[:, 2]
    before, after = (
        trained(trainer, world_schedule(m), slice(0, NUM_WORLDS), tmp_path).adapters for m in (members, changed)
    )
    for world in (0, 1, 3):
        assert_adapters_close(after.one(world), before.one(world))
    assert differs(after.one(2), before.one(2)) > 1e-3


def test_a_world_does_not_feel_the_text_of_a_record_it_does_not_hold(tmp_path: Path) -> None:
    schedule = world_schedule()
    texts = random_texts()
    texts[0] = "something else"
    before, after = (
        trained(make_trainer("llama", ATTENTION_TOP2, tmp_path, e), schedule, slice(0, NUM_WORLDS), tmp_path).adapters
        for e in (encoded(), encoded(texts))
    )
    for world in range(NUM_WORLDS):
        if schedule.members[0, world]:
            assert differs(after.one(world), before.one(world)) > 1e-3
        else:
            assert_adapters_close(after.one(world), before.one(world))


def test_worlds_start_alike_and_as_public_as_the_seed(tmp_path: Path) -> None:
    trainer = make_trainer("llama", LoraSettings(rank=7, target_modules=("all-linear",)), tmp_path)
    initial, again = trainer.initial_adapters(NUM_WORLDS), trainer.initial_adapters(NUM_WORLDS)
    other = make_trainer(
        "llama", LoraSettings(rank=7, target_modules=("all-linear",)), tmp_path, training=TrainingSettings(seed=6)
    ).initial_adapters(1)
    for path, down in initial.down.items():
        assert torch.equal(down, again.down[path])
        assert torch.equal(down, down[:1].expand_as(down))
        assert not torch.equal(down[0], other.down[path][0])
        assert not initial.up[path].any()
        # Uniform in ±1/√I has standard deviation 1/√(3 I).
        assert float(down[0].abs().max()) <= down.shape[2] ** -0.5
        assert float(down[0].std()) == pytest.approx((3 * down.shape[2]) ** -0.5, rel=0.15)


def test_operations_are_four_for_each_weight_from_the_lowest_adapted_block_up(tmp_path: Path) -> None:
    model = build_tiny_model("llama")
    block = sum(p.numel() for p in model.model.layers[0].parameters() if p.ndim == 2)
    head, num_layers = model.lm_head.weight.numel(), len(model.model.layers)
    whole = make_trainer("llama", LoraSettings(rank=2), tmp_path)
    assert whole.flop_per_token == 4 * (num_layers * block + head)
    assert make_trainer("llama", ATTENTION_TOP2, tmp_path).flop_per_token == 4 * (2 * block + head)


def test_adapters_come_in_the_type_of_the_base(tmp_path: Path) -> None:
    training = TRAINING.model_copy(update={"dtype": "bfloat16"})
    lower = trained(
        make_trainer("llama", ATTENTION_TOP2, tmp_path, training=training), world_schedule(), slice(0, 2), tmp_path
    ).adapters
    exact = trained(make_trainer("llama", ATTENTION_TOP2, tmp_path), world_schedule(), slice(0, 2), tmp_path).adapters
    for path, up in exact.up.items():
        assert lower.up[path].dtype == torch.bfloat16
        assert (lower.up[path].float() - up).norm() < HALF_PRECISION * up.norm()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_blocks", [0, 1, 2])
def test_gathered_states_are_the_models_own(
    family: str, num_blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Room for about three records at once, so that several chunks are computed.
    monkeypatch.setattr(trunk_module, "_TOKENS_AT_ONCE", 70)
    model, texts = build_tiny_model(family), encoded()
    trunk = FrozenTrunk(batched_decoder(model), texts, num_blocks, tmp_path / "scratch")
    done: list[int] = []
    trunk.compute(done.append)
    assert sum(done) == (len(texts.tokens) if num_blocks else 0)
    records = np.array([[3, 0, -1], [9, 3, 13]])
    gathered = trunk.gather(records, 20).view(2, 3, 20, -1)
    assert torch.isfinite(gathered).all()
    for place in np.argwhere(records >= 0):
        record = records[tuple(place)]
        tokens = texts.tokens[texts.offsets[record] : texts.offsets[record + 1]][:20]
        expected = model(input_ids=torch.from_numpy(tokens)[None], output_hidden_states=True).hidden_states[num_blocks]
        ours = gathered[tuple(place)][: len(tokens)]
        torch.testing.assert_close(ours, expected[0], rtol=1e-4, atol=1e-4)


def test_a_disk_too_small_for_the_states_is_said_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    trunk = FrozenTrunk(batched_decoder(build_tiny_model("llama")), encoded(), 1, tmp_path / "scratch")
    with pytest.raises(StorageError, match="No space left on device"):
        trunk.compute(lambda _: None)
    assert not list(tmp_path.iterdir())


def test_where_space_cannot_be_reserved_the_states_are_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, records = encoded(), np.array([[3, 0, 9]])
    trunks = [FrozenTrunk(batched_decoder(build_tiny_model("llama")), texts, 1, tmp_path / "scratch") for _ in "ab"]
    trunks[0].compute(lambda _: None)
    # As on macOS.
    monkeypatch.delattr("os.posix_fallocate")
    trunks[1].compute(lambda _: None)
    assert torch.equal(trunks[0].gather(records, 4), trunks[1].gather(records, 4))
