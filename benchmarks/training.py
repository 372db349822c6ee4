"""Rows on training: all worlds together against PEFT, one world at a time.

Both sides see records of T + 1 tokens, so that T positions are computed and scored. Times are per world-token. The
trainer's callback after each step runs the peer's step, so that the two alternate.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import get_peft_model
from torch.nn import functional

from benchmarks import limits, parity
from benchmarks.peers import lora_config
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired, elapsed_ms, median_ms
from benchmarks.workspace import Workspace
from reticent.adaptation.checkpoint import Checkpoint
from reticent.adaptation.multiworld import MultiWorldTrainer, TrainedWorlds
from reticent.adaptation.schedule import Schedule, make_schedule
from reticent.adaptation.settings import LoraSettings, TrainingSettings, worlds_that_fit
from reticent.adaptation.texts import EncodedTexts
from reticent.ensemble.adapters import StackedAdapters

_LEARNING_RATE = 3e-4
_LOSS_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
_SIGN_AGREEMENT = 0.97


class PeftWorld:
    """One world in training by PEFT: LoRA on attention, AdamW, the full vocabulary's cross-entropy."""

    def __init__(self, workspace: Workspace, initial: StackedAdapters, dtype: torch.dtype, *, autocast: bool) -> None:
        base = workspace.base.load(dtype)
        self.model: Any = get_peft_model(base, lora_config(initial), autocast_adapter_dtype=autocast).train()
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for path, down in initial.down.items():
                self.parameters[_peft_name(path, "A")].copy_(down[0])
        self._optimiser = torch.optim.AdamW(self.parameters.values(), lr=_LEARNING_RATE, weight_decay=0.0, fused=True)

    def step(self, texts_BT: torch.Tensor) -> float:
        """Train on a batch of records and return its mean loss in nats a token."""
        logits = self.model(input_ids=texts_BT[:, :-1], use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), texts_BT[:, 1:].flatten())
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return loss.item()


def _peft_name(path: str, side: str) -> str:
    return f"base_model.model.{path}.lora_{side}.default.weight"


@dataclass(frozen=True)
class Corpus:
    """Random records of equal length, and how the trainer takes them: every world all of them, a batch a step."""

    texts: EncodedTexts
    schedule: Schedule
    records: torch.Tensor

    def batch(self, step: int) -> torch.Tensor:
        """The records that every world takes in a step, [B, T + 1]."""
        return self.records[torch.from_numpy(self.schedule.batch(step, slice(0, 1))[0])]


def make_corpus(workspace: Workspace, num_worlds: int, num_steps: int) -> Corpus:
    """Records for so many steps."""
    sizes = workspace.sizes
    count, length = sizes.batch * num_steps, sizes.text_tokens + 1
    generator = torch.Generator().manual_seed(workspace.seed)
    records = torch.randint(workspace.architecture.vocab_size, (count, length), generator=generator)
    texts = EncodedTexts(records.flatten().numpy(), np.arange(0, count * length + 1, length), 0)
    members = np.ones((count, num_worlds), dtype=np.bool_)
    return Corpus(texts, make_schedule(members, sizes.batch, 1, workspace.seed), records)


def make_trainer(workspace: Workspace, texts: EncodedTexts, top: int | None) -> MultiWorldTrainer:
    """Reticent's trainer with the sizes of the row."""
    lora = LoraSettings(
        rank=workspace.sizes.rank,
        alpha=2.0 * workspace.sizes.rank,
        num_top_layers=None if top is None else workspace.top(top),
    )
    training = TrainingSettings(
        batch_size=workspace.sizes.batch, learning_rate=_LEARNING_RATE, max_tokens=workspace.sizes.text_tokens + 1
    )
    return MultiWorldTrainer(workspace.decoder, texts, lora, training, workspace.scratch / "trunk.scratch")


def train(workspace: Workspace, top: int | None, peer_dtype: torch.dtype | None = None) -> Measured:
    """World-tokens a second together, over those of PEFT one world at a time at full depth."""
    sizes = workspace.sizes
    num_worlds = min(sizes.num_worlds, worlds_that_fit(sizes.batch, sizes.text_tokens))
    corpus = make_corpus(workspace, num_worlds, sizes.pairs + 1)
    trainer = make_trainer(workspace, corpus.texts, top)
    trunk_ms = elapsed_ms(lambda: trainer.trunk.compute(lambda _: None))
    full_depth = make_trainer(workspace, corpus.texts, None).initial_adapters(1)
    _check(workspace, top)
    peer, peer_words = _peer(workspace, full_depth, peer_dtype, corpus)
    times = _alternating(workspace, trainer, corpus, peer, num_worlds)
    tokens = sizes.batch * sizes.text_tokens
    # A record's trunk is computed once for the m/2 worlds that hold it.
    held_by = sizes.num_worlds / 2
    trunk_share = trunk_ms / (corpus.records.shape[0] * sizes.text_tokens) / held_by
    ours = tuple(t / (num_worlds * tokens) + trunk_share for t in times.denominator_ms)
    per_token = Paired(tuple(t / tokens for t in times.numerator_ms), ours)
    depth = len(workspace.architecture.layers) if top is None else workspace.top(top)
    least = limits.training_ms(workspace.architecture, depth, tokens, workspace.peaks) / tokens
    peer_ms, ours_ms = per_token.centres_ms
    fused = ", element-wise work compiled" if workspace.fuse else ""
    return Measured(
        per_token,
        peer_ms / least,
        unit="ms a world-token",
        notes=f"PEFT: {peer_words}; Reticent: {num_worlds} worlds in a pass{fused}, as a build does",
        extra={"tokens_per_second": 1e3 / ours_ms, "peer_tokens_per_second": 1e3 / peer_ms},
    )


def _peer(
    workspace: Workspace, initial: StackedAdapters, dtype: torch.dtype | None, corpus: Corpus
) -> tuple[PeftWorld, str]:
    """PEFT's float32 default if a type is given, else the faster of its two ways in the benchmark's type."""
    if dtype is not None:
        return PeftWorld(workspace, initial, dtype, autocast=True), f"default, {dtype}".replace("torch.", "")
    name = str(workspace.dtype).removeprefix("torch.")
    ways = {
        f"{name} base with {name} adapters": PeftWorld(workspace, initial, workspace.dtype, autocast=False),
        f"{name} base with float32 adapters": PeftWorld(workspace, initial, workspace.dtype, autocast=True),
    }
    batch = corpus.batch(0)
    took = {words: median_ms(lambda world=world: world.step(batch), 2) for words, world in ways.items()}  # type: ignore[misc]
    fastest = min(took, key=took.__getitem__)
    return ways[fastest], f"{fastest}, the faster of two ways"


def _train_through(
    workspace: Workspace,
    trainer: MultiWorldTrainer,
    corpus: Corpus,
    num_worlds: int,
    after_step: Callable[[int], None] = lambda _: None,
) -> TrainedWorlds:
    never = Checkpoint(workspace.scratch / "none.checkpoint", float("inf"))
    return trainer.train(corpus.schedule, slice(0, num_worlds), never, after_step, fuse=workspace.fuse)


def _alternating(
    workspace: Workspace, trainer: MultiWorldTrainer, corpus: Corpus, peer: PeftWorld, num_worlds: int
) -> Paired:
    """(peer, ours) a step in turn; the first pair is a warm-up."""
    theirs: list[float] = []
    ours: list[float] = []
    began = time.perf_counter()

    def after_step(_num_tokens: int) -> None:
        nonlocal began
        ours.append(1e3 * (time.perf_counter() - began))
        theirs.append(elapsed_ms(lambda: peer.step(corpus.batch(len(ours) - 1))))
        began = time.perf_counter()

    _train_through(workspace, trainer, corpus, num_worlds, after_step)
    return Paired(tuple(theirs[1:]), tuple(ours[1:]))


def _check(workspace: Workspace, top: int | None) -> None:
    """The loss of the first step agrees with PEFT's on the same adapters, and the update goes down PEFT's gradient."""
    corpus = make_corpus(workspace, 2, 1)
    trainer = make_trainer(workspace, corpus.texts, top)
    trainer.trunk.compute(lambda _: None)
    initial = trainer.initial_adapters(2)
    trained = _train_through(workspace, trainer, corpus, 2)
    peer = PeftWorld(workspace, initial, workspace.dtype, autocast=True)
    loss = peer.step(corpus.batch(0))
    tolerance = _LOSS_TOLERANCE[workspace.dtype]
    parity.require_close("first step's loss", trained.last_epoch_loss, np.full(2, loss), tolerance)
    agreeing = total = 0.0
    for path, up in trained.adapters.up.items():
        gradient = peer.parameters[_peft_name(path, "B")].grad
        assert gradient is not None
        weight = gradient.abs().double()
        agreeing += float((weight * (torch.sign(up[0]) == -torch.sign(gradient))).sum())
        total += float(weight.sum())
    parity.require(
        agreeing >= _SIGN_AGREEMENT * total,
        f"first step: the update agrees in sign with {agreeing / total:.1%} of PEFT's gradient by magnitude, "
        f"required are {_SIGN_AGREEMENT:.0%}",
    )


def _row(
    name: str, words: str, target: float, top: int | None = None, dtype: torch.dtype | None = None, weight: float = 70
) -> Benchmark:
    run: Callable[[Workspace], Measured] = partial(train, top=top, peer_dtype=dtype)
    peer = "PEFT's default float32" if dtype else "PEFT in the same type"
    against = f"{peer}, one world at a time, full depth"
    return Benchmark(name, f"training throughput, worlds together, {words}", against, target, ">=", run, weight)


BENCHMARKS = (
    _row("training-all", "attention of all blocks", 1.2),
    _row("training-top12", "attention of the last 12 of 30 blocks, trunk computed once", 2.5, top=12),
    _row("training-top6", "attention of the last 6 of 30 blocks, trunk computed once", 3.5, top=6),
    _row("training-all-vs-float32", "attention of all blocks", 3.5, dtype=torch.float32, weight=95),
)
