"""All worlds' LoRA adapters trained together over one frozen base.

A step takes one batch of records for each of G worlds through one batched forward and backward pass: the base's matrix
products take all rows together, the adapters' are batched products over worlds. Every world has the same optimiser,
learning rate and number of steps. Nothing couples the worlds: the loss is a sum of per-world means, and gradients are
clipped world by world. A step too large for one pass is taken in several, whose gradients add up. Where a loss or a
gradient is not finite training stops with an error; it never continues from broken weights.

Shape suffixes: G worlds of a group, B records, T positions, N = B · T tokens, D hidden size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent._memory import keep_freed_memory
from reticent.errors import TrainingError
from reticent.layers.adapters import StackedAdapters, first_adapted_layer, group_by_layer, select_modules
from reticent.layers.forward import BatchedDecoder
from reticent.models.compiled import fused_training
from reticent.text.tokenise import EncodedTexts
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.loss import chunked_cross_entropy
from reticent.training.schedule import StepSchedule, learning_rate_at
from reticent.training.settings import LoraSettings, TrainingSettings, records_that_fit
from reticent.training.trunk import FrozenTrunk

_MAX_GRADIENT_NORM = 1.0
_INIT_STREAM = 2


@dataclass(frozen=True)
class TrainedWorlds:
    """Adapters of some worlds and their mean training loss in the last epoch, nats a token, float64[G]."""

    adapters: StackedAdapters
    last_epoch_loss: NDArray[np.float64]


class MultiWorldTrainer:
    """Trains groups of worlds on one corpus; see the module's docstring."""

    def __init__(
        self,
        decoder: BatchedDecoder,
        texts: EncodedTexts,
        lora: LoraSettings,
        training: TrainingSettings,
        scratch: Path,
    ) -> None:
        keep_freed_memory()
        self._decoder = decoder
        self._texts = texts
        self._num_scored = texts.num_scored
        self._lora = lora
        self._training = training
        self._modules = select_modules(decoder.architecture, lora.target_modules, lora.num_top_layers)
        lowest = first_adapted_layer(decoder.architecture, [module.path for module in self._modules])
        self._adapted = range(lowest, decoder.num_layers)
        self.trunk = FrozenTrunk(decoder, texts, lowest, scratch)

    @property
    def flop_per_token(self) -> int:
        """Floating-point operations of the frozen products for one token: each weight twice forward and twice back."""
        architecture = self._decoder.architecture
        weights = [group.weight_OI for index in self._adapted for group in architecture.layers[index].groups]
        return 4 * sum(weight.numel() for weight in (*weights, architecture.head_VD))

    def initial_adapters(self, num_worlds: int) -> StackedAdapters:
        """Equal adapters for all worlds: A uniform in ±1/√I as PEFT draws it, from the public seed; B zero."""
        generator = torch.Generator().manual_seed(_INIT_STREAM + 1000 * self._training.seed)
        down, up = {}, {}
        for module in self._modules:
            bound = module.in_features**-0.5
            draw = torch.rand(self._lora.rank, module.in_features, generator=generator) * (2 * bound) - bound
            down[module.path] = draw.expand(num_worlds, -1, -1).contiguous()
            up[module.path] = torch.zeros(num_worlds, module.out_features, self._lora.rank)
        return StackedAdapters(down, up, self._lora.alpha)

    def train(
        self,
        schedule: StepSchedule,
        worlds: slice,
        checkpoint: TrainingCheckpoint,
        on_tokens: Callable[[int], None],
        *,
        fuse: bool = False,
    ) -> TrainedWorlds:
        """Train some worlds from the start, or from where the checkpoint stopped, to the last step.

        Args:
            schedule: which records each world takes in each step.
            worlds: the worlds of this group.
            checkpoint: where interrupted work is kept; saved when it is due.
            on_tokens: called after each step with the number of tokens trained on, and first with those of the steps
                that the checkpoint holds.
            fuse: true to compile the operations between matrix products; see `compilation.decide_fusing`.

        Raises:
            TrainingError: the loss or the gradient of a world is not finite.
        """
        num_worlds = len(range(schedule.num_worlds)[worlds])
        device = self._decoder.architecture.device
        adapters = self.initial_adapters(num_worlds).to(torch.float32, device)
        parameters = [*adapters.down.values(), *adapters.up.values()]
        for parameter in parameters:
            parameter.requires_grad_()
        optimiser = torch.optim.AdamW(parameters, lr=self._training.learning_rate, weight_decay=0.0, fused=True)
        totals = torch.zeros(2, num_worlds, dtype=torch.float64)
        first_step = checkpoint.restore(parameters, optimiser, totals)
        if first_step:
            on_tokens(sum(self._tokens_of_step(schedule.batch(step, worlds)) for step in range(first_step)))
        for step in range(first_step, schedule.num_steps):
            if step % schedule.steps_per_epoch == 0:
                totals.zero_()
            optimiser.param_groups[0]["lr"] = learning_rate_at(step, schedule.num_steps, self._training.learning_rate)
            optimiser.zero_grad(set_to_none=True)
            with fused_training(fuse):
                num_tokens = self._accumulate(schedule.batch(step, worlds), adapters, totals)
            norm_G = _gradient_norms(adapters)
            self._after_gradients(schedule, worlds, step, totals[0].isfinite() & norm_G.isfinite().cpu())
            _clip_each_world(adapters, norm_G)
            optimiser.step()
            checkpoint.save_if_due(step + 1, parameters, optimiser, totals)
            on_tokens(num_tokens)
        for parameter in parameters:
            parameter.requires_grad_(False)
        dtype = self._decoder.architecture.dtype
        return TrainedWorlds(self._finish(adapters).to(dtype, torch.device("cpu")), (totals[0] / totals[1]).numpy())

    def _accumulate(self, records_GB: NDArray[np.int64], adapters: StackedAdapters, totals: Tensor) -> int:
        """Leave a step's gradients; adds each world's summed loss and tokens to `totals`; returns the token count."""
        count_G = self._num_targets(records_GB).sum(1)
        num_worlds, num_records = records_GB.shape
        at_once = records_that_fit(num_worlds, self._longest(records_GB), self._training.batch_size)
        for part_GB in np.array_split(records_GB, math.ceil(num_records / at_once), axis=1):
            self._accumulate_part(part_GB, count_G, adapters, totals[0])
        totals[1] += torch.from_numpy(count_G)
        return self._tokens_of_step(records_GB)

    def _accumulate_part(
        self, records_GB: NDArray[np.int64], count_G: NDArray[np.int64], adapters: StackedAdapters, nats_G: Tensor
    ) -> None:
        """One pass over some records of a step in which the worlds have `count_G` tokens in all."""
        architecture = self._decoder.architecture
        num_positions = self._longest(records_GB)
        hidden_GND = self.trunk.gather(records_GB, num_positions)
        working = adapters.to(architecture.dtype, architecture.device)
        hidden_GND = self._decoder.run_layers(
            hidden_GND,
            self._adapted,
            torch.arange(num_positions, device=architecture.device),
            self._decoder.attention_over,
            group_by_layer(architecture, working),
        )
        index_GBT = self.trunk.token_index(records_GB, num_positions + 1)[..., 1:]
        ends_GB = np.where(records_GB < 0, 0, self._texts.lengths[records_GB] - 1)
        scored_GBT = self._texts.is_scored[index_GBT] & (np.arange(num_positions) < ends_GB[..., None])
        targets = self._texts.tokens[index_GBT[scored_GBT]]
        world_of_row = np.repeat(np.arange(len(records_GB)), scored_GBT.sum((1, 2)))
        rows = torch.from_numpy(scored_GBT.reshape(len(records_GB), -1)).to(architecture.device)
        loss, losses = chunked_cross_entropy(
            self._decoder.final_hidden(hidden_GND[rows]),
            architecture.head_VD,
            architecture.head_bias_V,
            torch.from_numpy(targets).to(architecture.device),
            torch.from_numpy((1.0 / count_G)[world_of_row]).to(architecture.device, torch.float32),
        )
        loss.backward()  # type: ignore[no-untyped-call]
        nats_G.index_add_(0, torch.from_numpy(world_of_row), losses.double().cpu())

    def _after_gradients(self, schedule: StepSchedule, worlds: slice, step: int, is_finite_G: Tensor) -> None:
        """Stop where the loss or the gradient of a world is not finite."""
        if not is_finite_G.all():
            raise self._non_finite_error(schedule, worlds, int((~is_finite_G).int().argmax()), step)

    def _finish(self, adapters: StackedAdapters) -> StackedAdapters:
        """The adapters as they are kept."""
        return adapters

    def _longest(self, records_GB: NDArray[np.int64]) -> int:
        """Positions that a pass over these records has: the last token of a text is only predicted and needs none."""
        return int(self._texts.lengths[records_GB[records_GB >= 0]].max()) - 1

    def _tokens_of_step(self, records_GB: NDArray[np.int64]) -> int:
        """Tokens that a step over these records is reported as."""
        return int(self._num_targets(records_GB).sum())

    def _non_finite_error(self, schedule: StepSchedule, worlds: slice, row: int, step: int) -> TrainingError:
        num_worlds = schedule.num_worlds
        whose = f"world {range(num_worlds)[worlds][row]}" if num_worlds > 1 else "the adapter on all records"
        return TrainingError(
            f"the loss or its gradient is not finite for {whose} in step {step + 1} of {schedule.num_steps} at "
            f"learning rate {self._training.learning_rate:g}; build into another --out with a lower --learning-rate or "
            "--alpha" + (", or with --dtype float32" if self._training.dtype != "float32" else "")
        )

    def _num_targets(self, records_GB: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the predicted tokens of each record; 0 where there is no record."""
        return np.where(records_GB < 0, 0, self._num_scored[records_GB])


def _gradients(adapters: StackedAdapters) -> list[Tensor]:
    return [p.grad for p in (*adapters.down.values(), *adapters.up.values()) if p.grad is not None]


def _gradient_norms(adapters: StackedAdapters) -> Tensor:
    """The norm of each world's gradient over all its adapters, [G]."""
    return torch.stack([gradient.square().sum((1, 2)) for gradient in _gradients(adapters)]).sum(0).sqrt()


def _clip_each_world(adapters: StackedAdapters, norm_G: Tensor) -> None:
    """Scale each world's gradient to a norm of at most 1, on its own."""
    factor_G = (_MAX_GRADIENT_NORM / (norm_G + 1e-6)).clamp(max=1.0)
    for gradient in _gradients(adapters):
        gradient.mul_(factor_G[:, None, None])
