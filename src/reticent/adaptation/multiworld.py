"""All worlds' LoRA adapters trained together over one frozen base.

A step takes one batch of records for each of G worlds through one batched forward and backward pass: the base's matrix
products see all rows at once, the adapters' are batched products over worlds. Every world has the same optimiser,
learning rate and number of steps. Nothing couples the worlds: the loss is a sum of per-world means, and gradients are
clipped world by world.

Shape suffixes: G worlds of a micro-batch, B records, T positions, N = B · T tokens, D hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.adaptation.checkpoint import Checkpoint
from reticent.adaptation.loss import chunked_cross_entropy
from reticent.adaptation.memory import keep_freed_memory
from reticent.adaptation.schedule import Schedule, learning_rate_at
from reticent.adaptation.settings import LoraSettings, TrainingSettings
from reticent.adaptation.texts import EncodedTexts
from reticent.adaptation.trunk import FrozenTrunk
from reticent.ensemble.adapters import StackedAdapters, first_adapted_layer, group_by_layer, select_modules
from reticent.ensemble.forward import BatchedDecoder
from reticent.ensemble.fused import fused_training

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
        schedule: Schedule,
        worlds: slice,
        checkpoint: Checkpoint,
        on_tokens: Callable[[int], None],
        *,
        fuse: bool = False,
    ) -> TrainedWorlds:
        """Train some worlds from the start, or from where the checkpoint stopped, to the last step.

        Args:
            schedule: which records each world takes in each step.
            worlds: the worlds of this micro-batch.
            checkpoint: where interrupted work is kept; saved when it is due.
            on_tokens: called after each step with the number of tokens trained on, and first with those of the steps
                that the checkpoint holds.
            fuse: whether to compile what stands between matrix products; see `fusing.chooses_to_fuse`.
        """
        num_worlds = len(range(*worlds.indices(schedule.members.shape[1])))
        device = self._decoder.architecture.device
        adapters = self.initial_adapters(num_worlds).to(torch.float32, device)
        parameters = [*adapters.down.values(), *adapters.up.values()]
        for parameter in parameters:
            parameter.requires_grad_()
        optimiser = torch.optim.AdamW(parameters, lr=self._training.learning_rate, weight_decay=0.0, fused=True)
        totals = torch.zeros(2, num_worlds, dtype=torch.float64)
        first_step = checkpoint.restore(parameters, optimiser, totals)
        if first_step:
            on_tokens(sum(int(self._num_targets(schedule.batch(step, worlds)).sum()) for step in range(first_step)))
        for step in range(first_step, schedule.num_steps):
            if step % schedule.steps_per_epoch == 0:
                totals.zero_()
            optimiser.param_groups[0]["lr"] = learning_rate_at(step, schedule.num_steps, self._training.learning_rate)
            with fused_training(fuse):
                num_tokens = self._step(schedule.batch(step, worlds), adapters, optimiser, totals)
            checkpoint.save_if_due(step + 1, parameters, optimiser, totals)
            on_tokens(num_tokens)
        for parameter in parameters:
            parameter.requires_grad_(False)
        dtype = self._decoder.architecture.dtype
        return TrainedWorlds(adapters.to(dtype, torch.device("cpu")), (totals[0] / totals[1]).numpy())

    def _step(
        self, records_GB: NDArray[np.int64], adapters: StackedAdapters, optimiser: torch.optim.Optimizer, totals: Tensor
    ) -> int:
        """One optimiser step; adds each world's summed loss and token count to `totals`; returns the token count."""
        architecture = self._decoder.architecture
        targets_GB = self._num_targets(records_GB)
        # The last token of a text is only a target, so it needs no position of its own.
        num_positions = int(targets_GB.max())
        hidden_GND = self.trunk.gather(records_GB, num_positions)
        working = adapters.to(architecture.dtype, architecture.device)
        hidden_GND = self._decoder.run_layers(
            hidden_GND,
            self._adapted,
            torch.arange(num_positions, device=architecture.device),
            self._decoder.attention_over,
            group_by_layer(architecture, working),
        )
        scored_GBT = np.arange(num_positions) < targets_GB[..., None]
        targets = self._texts.tokens[self.trunk.token_index(records_GB, num_positions + 1)[..., 1:][scored_GBT]]
        count_G = scored_GBT.sum((1, 2))
        world_of_row = np.repeat(np.arange(len(records_GB)), count_G)
        rows = torch.from_numpy(scored_GBT.reshape(len(records_GB), -1)).to(architecture.device)
        loss, losses = chunked_cross_entropy(
            self._decoder.final_hidden(hidden_GND[rows]),
            architecture.head_VD,
            architecture.head_bias_V,
            torch.from_numpy(targets).to(architecture.device),
            torch.from_numpy((1.0 / count_G)[world_of_row]).to(architecture.device, torch.float32),
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        _clip_each_world(adapters)
        optimiser.step()
        totals[0].index_add_(0, torch.from_numpy(world_of_row), losses.double().cpu())
        totals[1] += torch.from_numpy(count_G)
        return int(count_G.sum())

    def _num_targets(self, records_GB: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many tokens of each record are predicted; 0 where there is no record."""
        return np.where(records_GB < 0, 0, self._texts.lengths[records_GB] - 1)


def _clip_each_world(adapters: StackedAdapters) -> None:
    """Scale each world's gradient to a norm of at most 1, on its own."""
    gradients = [p.grad for p in (*adapters.down.values(), *adapters.up.values()) if p.grad is not None]
    squares_G = torch.stack([gradient.square().sum((1, 2)) for gradient in gradients]).sum(0)
    factor_G = (_MAX_GRADIENT_NORM / (squares_G.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor_G[:, None, None])
