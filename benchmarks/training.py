"""Rows on training: all worlds together against PEFT, one world at a time.

Both sides see records of T + 1 tokens, so that T positions are computed and scored. Times are per world-token. The
trainer's callback after each step runs the peer's step, so that the two alternate.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import get_peft_model
from torch.nn import functional

from benchmarks import limits, parity
from benchmarks.peers import lora_config
from benchmarks.rows import Benchmark, Measured
from benchmarks.timing import Paired, measure_ms, median_ms
from benchmarks.workspace import Workspace
from reticent.layers.adapters import StackedAdapters
from reticent.text.tokenise import EncodedTexts
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.multiworld import MultiWorldTrainer
from reticent.training.schedule import Schedule, make_schedule
from reticent.training.settings import LoraSettings, TrainingSettings, worlds_that_fit

Doubles = NDArray[np.float64]

_LEARNING_RATE = 3e-4
_MAX_GRADIENT_NORM = 1.0
_LOSS_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-3}
_SIGN_AGREEMENT = 0.97
_CHECKED_DEVIATION = 0.2
"""Of B's entries where gradients are compared: adapters so large that what they add to an input's gradient shows."""
_ATTENTIONS = ("sdpa", "eager")
_STEPS_TO_CHOOSE = 2


class PeftWorld:
    """One world in training by PEFT: LoRA on attention, AdamW, the full vocabulary's cross-entropy."""

    def __init__(self, workspace: Workspace, initial: StackedAdapters, dtype: torch.dtype, *, autocast: bool) -> None:
        base = workspace.base.load(dtype)
        self.model: Any = get_peft_model(base, lora_config(initial), autocast_adapter_dtype=autocast).train()
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.take(initial)
        self._optimiser = torch.optim.AdamW(self.parameters.values(), lr=_LEARNING_RATE, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def take(self, adapters: StackedAdapters, world: int = 0) -> None:
        """Continue from the adapter of one world."""
        for side, matrices in (("A", adapters.down), ("B", adapters.up)):
            for path, stacked in matrices.items():
                self.parameters[_peft_name(path, side)].copy_(stacked[world])

    def attend_by(self, attention: str) -> None:
        """Take another of the base's implementations of attention."""
        self.model.get_base_model().set_attn_implementation(attention)

    def loss_and_gradients(self, texts_BT: torch.Tensor) -> torch.Tensor:
        """The mean loss of a batch of records in nats a token; leaves its gradients at the parameters."""
        logits = self.model(input_ids=texts_BT[:, :-1], use_cache=False).logits
        loss: torch.Tensor = functional.cross_entropy(logits.flatten(0, 1).float(), texts_BT[:, 1:].flatten())
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def gradient(self, path: str, side: str) -> torch.Tensor:
        """The gradient of A or B of a module."""
        gradient: torch.Tensor | None = self.parameters[_peft_name(path, side)].grad
        assert gradient is not None
        return gradient

    def step(self, texts_BT: torch.Tensor) -> float:
        """Train on a batch of records and return its mean loss in nats a token."""
        loss = self.loss_and_gradients(texts_BT)
        self._optimiser.step()
        return loss.item()


def _peft_name(path: str, side: str) -> str:
    return f"base_model.model.{path}.lora_{side}.default.weight"


@dataclass(frozen=True)
class RandomCorpus:
    """Records of equal length, and how the trainer takes them: every world a batch a step."""

    texts: EncodedTexts
    schedule: Schedule
    records: torch.Tensor

    def batch(self, step: int, world: int = 0) -> torch.Tensor:
        """The records that a world takes in a step, [B, T + 1]."""
        return self.records[torch.from_numpy(self.schedule.batch(step, slice(world, world + 1))[0])]


def make_corpus(workspace: Workspace, num_worlds: int, num_steps: int) -> RandomCorpus:
    """Random records for `num_steps` steps, all of them in every world."""
    count, length = workspace.sizes.batch * num_steps, workspace.sizes.text_tokens + 1
    generator = torch.Generator().manual_seed(workspace.seed)
    records = torch.randint(workspace.architecture.vocab_size, (count, length), generator=generator)
    return _corpus(workspace, records, np.ones((count, num_worlds), dtype=np.bool_))


def _corpus_apart(workspace: Workspace) -> RandomCorpus:
    """A batch of records for each of two worlds, none of them in both."""
    batch, length = workspace.sizes.batch, workspace.sizes.text_tokens + 1
    members = np.arange(2 * batch)[:, None] // batch == np.arange(2)
    return _corpus(workspace, workspace.sample_texts(2 * batch, length), members)


def _corpus(workspace: Workspace, records: torch.Tensor, members: NDArray[np.bool_]) -> RandomCorpus:
    texts = EncodedTexts.of(list(records.numpy()), None, 0)
    return RandomCorpus(texts, make_schedule(members, workspace.sizes.batch, 1, workspace.seed), records)


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
    trunk_ms = measure_ms(lambda: trainer.trunk.compute(lambda _: None))
    full_depth = make_trainer(workspace, corpus.texts, None).initial_adapters(1)
    _check(workspace, top)
    peer, peer_words = _peer(workspace, full_depth, peer_dtype, corpus)
    times = _alternate_steps(workspace, trainer, corpus, peer, num_worlds)
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
    workspace: Workspace, initial: StackedAdapters, dtype: torch.dtype | None, corpus: RandomCorpus
) -> tuple[PeftWorld, str]:
    """PEFT's float32 default if a type is given, else the fastest of its ways in the benchmark's type."""
    if dtype is not None:
        return PeftWorld(workspace, initial, dtype, autocast=True), f"default, {dtype}".replace("torch.", "")
    name = str(workspace.dtype).removeprefix("torch.")
    batch = corpus.batch(0)
    took: list[tuple[float, PeftWorld, str, str]] = []
    for autocast, adapters in ((False, name), (True, "float32")):
        world = PeftWorld(workspace, initial, workspace.dtype, autocast=autocast)
        for attention in _ATTENTIONS:
            world.attend_by(attention)
            words = f"{name} base with {adapters} adapters and {attention} attention"
            took.append((median_ms(partial(world.step, batch), _STEPS_TO_CHOOSE), world, attention, words))
    _, fastest, attention, words = min(took, key=itemgetter(0))
    fastest.attend_by(attention)
    return fastest, f"{words}, the fastest of {len(took)} ways"


def _alternate_steps(
    workspace: Workspace, trainer: MultiWorldTrainer, corpus: RandomCorpus, peer: PeftWorld, num_worlds: int
) -> Paired:
    """(peer, ours) a step in turn; the first pair is a warm-up."""
    theirs: list[float] = []
    ours: list[float] = []
    began = time.perf_counter()

    def after_step(_num_tokens: int) -> None:
        nonlocal began
        ours.append(1e3 * (time.perf_counter() - began))
        theirs.append(measure_ms(lambda: peer.step(corpus.batch(len(ours) - 1))))
        began = time.perf_counter()

    never = TrainingCheckpoint(workspace.scratch / "none.checkpoint", float("inf"))
    trainer.train(corpus.schedule, slice(0, num_worlds), never, after_step, fuse=workspace.fuse)
    return Paired(tuple(theirs[1:]), tuple(ours[1:]))


class _Observed(TrainingCheckpoint):
    """Starts training from given adapters, and keeps a step's gradients and what it changed, both [W, all numbers]."""

    def __init__(self, workspace: Workspace, start: StackedAdapters) -> None:
        super().__init__(workspace.scratch / "none.checkpoint", float("inf"))
        self._start = [*start.down.values(), *start.up.values()]
        self._num_down = len(start.down)
        self.gradients: dict[str, Doubles] = {}
        self.changes: dict[str, Doubles] = {}

    def restore(self, parameters: list[torch.Tensor], optimiser: torch.optim.Optimizer, totals: torch.Tensor) -> int:
        """Put the given adapters in place of the trainer's own, at the first step."""
        with torch.no_grad():
            for parameter, start in zip(parameters, self._start, strict=True):
                parameter.copy_(start)
        return 0

    def save_if_due(
        self, next_step: int, parameters: list[torch.Tensor], optimiser: torch.optim.Optimizer, totals: torch.Tensor
    ) -> None:
        """Keep what the step computed."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        changes = [p.detach() - start for p, start in zip(parameters, self._start, strict=True)]
        for kept, tensors in ((self.gradients, gradients), (self.changes, changes)):
            kept["A"], kept["B"] = _rows(tensors[: self._num_down]), _rows(tensors[self._num_down :])


def _check(workspace: Workspace, top: int | None) -> None:
    """A step of two worlds, each with its own records and adapters, computes what PEFT computes for each.

    From B = 0 the gradient of A is zero, and so is what adapters add to any activation or gradient; so A and B are
    random. Gradients are held to what PEFT's own are off in the same type, after the trainer's clipping.
    """
    corpus = _corpus_apart(workspace)
    start = workspace.adapters("attention", top, num_worlds=2, deviation=_CHECKED_DEVIATION)
    trainer = make_trainer(workspace, corpus.texts, top)
    trainer.trunk.compute(lambda _: None)
    observed = _Observed(workspace, start)
    trained = trainer.train(corpus.schedule, slice(0, 2), observed, lambda _: None, fuse=workspace.fuse)
    losses, exact = _compute_by_peft(workspace, start, corpus, torch.float32)
    _, peer = _compute_by_peft(workspace, start, corpus, workspace.dtype)
    parity.require_close("a step's loss", trained.last_epoch_loss, losses, _LOSS_TOLERANCE[workspace.dtype])
    for side, ours in observed.gradients.items():
        names = [f"gradient of {side}, world {world}" for world in range(2)]
        parity.require_nearest(names, ours, exact[side], peer[side])
        # AdamW's first step goes down each number's gradient equally far, so small ones go where rounding says.
        weight = np.abs(exact[side])
        agreeing = float((weight * (np.sign(observed.changes[side]) == -np.sign(exact[side]))).sum() / weight.sum())
        parity.require(
            agreeing >= _SIGN_AGREEMENT,
            f"the update of {side} agrees in sign with {agreeing:.1%} of PEFT's gradient by magnitude, "
            f"required are {_SIGN_AGREEMENT:.0%}",
        )


def _compute_by_peft(
    workspace: Workspace, start: StackedAdapters, corpus: RandomCorpus, dtype: torch.dtype
) -> tuple[Doubles, dict[str, Doubles]]:
    """Each world's loss and its gradients of A and of B as PEFT computes them, clipped as Reticent clips them."""
    peft = PeftWorld(workspace, start, dtype, autocast=False)
    losses: list[float] = []
    sides: dict[str, list[Doubles]] = {"A": [], "B": []}
    for world in range(2):
        peft.take(start, world)
        losses.append(peft.loss_and_gradients(corpus.batch(0, world)).item())
        rows = {side: _rows([peft.gradient(path, side)[None] for path in start.down]) for side in sides}
        clipping = min(1.0, _MAX_GRADIENT_NORM / float(np.sqrt(sum(np.square(row).sum() for row in rows.values()))))
        for side, row in rows.items():
            sides[side].append(clipping * row)
    return np.array(losses), {side: np.concatenate(rows) for side, rows in sides.items()}


def _rows(tensors: Sequence[torch.Tensor]) -> Doubles:
    """All numbers of each world, one row a world."""
    rows: Doubles = torch.cat([tensor.detach().flatten(1) for tensor in tensors], dim=1).double().numpy()
    return rows


def _row(
    name: str, words: str, target: float, top: int | None = None, dtype: torch.dtype | None = None, weight: float = 95
) -> Benchmark:
    run: Callable[[Workspace], Measured] = partial(train, top=top, peer_dtype=dtype)
    peer = "PEFT's default float32" if dtype else "PEFT in the same type"
    against = f"{peer}, one world at a time, full depth"
    return Benchmark(name, f"training throughput, worlds together, {words}", against, target, ">=", run, weight)


BENCHMARKS = (
    _row("training-all", "attention of all blocks", 1.2),
    _row("training-top12", "attention of the last 12 of 30 blocks, trunk computed once", 2.5, top=12),
    _row("training-top6", "attention of the last 6 of 30 blocks, trunk computed once", 3.5, top=6),
    _row("training-all-vs-float32", "attention of all blocks", 3.5, dtype=torch.float32, weight=110),
)
