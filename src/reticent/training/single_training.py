"""The training loop of one adapted model: the same request gives the same bits, stopped and resumed or not.

What a step needs of chance (dropout) is a function of the seed and the step, so nothing but parameters, the optimiser's
moments, the losses so far and the number of the next step has to be kept. Where the loss or a gradient is not finite
the training stops with an error; it never continues from broken weights.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from reticent._memory import keep_freed_memory
from reticent.errors import TrainingError
from reticent.text.template import EncodedText, collate
from reticent.training.batches import make_batches, num_batches
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.schedule import learning_rate_at
from reticent.training.single_settings import SingleTrainingSettings
from reticent.training.text_loss import TextLoss

_MAX_GRADIENT_NORM = 1.0
_STEP_STREAM = 5
_TRAIN_NATS, _TRAIN_TOKENS, _VALIDATION_NATS, _VALIDATION_TOKENS = range(4)


@dataclass(frozen=True)
class StepLoss:
    """Summed loss of a step's scored tokens, in nats, and their number."""

    nats: float
    num_tokens: int


@dataclass(frozen=True)
class EpochLoss:
    """Mean losses of an epoch, nats a token; None where not measured.

    Attributes:
        training: over the epoch's steps, with the weights each step began with; never measured in private training.
        validation: after the epoch.
    """

    training: float | None
    validation: float | None


class GradientSource(Protocol):
    """A source of gradients: fills those of the parameters in each step."""

    steps_per_epoch: int
    max_gradient_norm: float | None
    """What the trainer clips the whole gradient to; None where the source bounds it itself."""

    def backward(self, step: int) -> StepLoss | None:
        """Leave in each trainable parameter's `grad` the gradient of a step; None where its loss must stay secret."""
        ...

    def num_tokens(self, step: int) -> int:
        """The tokens a step counts for in the progress shown."""
        ...


class Texts:
    """Encoded texts as batches on a device."""

    def __init__(self, encoded: Sequence[EncodedText], pad_id: int, device: torch.device) -> None:
        self._encoded, self._pad_id, self._device = encoded, pad_id, device
        self.lengths = np.array([len(text.token_ids) for text in encoded], dtype=np.int64)
        self.num_scored = np.array([text.num_scored for text in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._encoded)

    def batch(self, records: Sequence[int]) -> dict[str, Tensor]:
        """Some texts by number, padded to the longest of them."""
        batch = collate([self._encoded[record] for record in records], self._pad_id)
        return {name: tensor.to(self._device) for name, tensor in batch.items()}


class MeanGradients:
    """The gradient of the mean loss over the tokens of each of an epoch's batches; a `GradientSource`."""

    max_gradient_norm: float | None = _MAX_GRADIENT_NORM

    def __init__(self, loss: TextLoss, texts: Texts, settings: SingleTrainingSettings) -> None:
        self._loss, self._texts, self._settings = loss, texts, settings
        self.steps_per_epoch = num_batches(len(texts), settings.batch_size)
        self._epoch, self._batches = -1, [np.zeros(0, dtype=np.int64)]

    def backward(self, step: int) -> StepLoss:
        """Leave the gradient of a step's batch."""
        loss, losses_N = self._loss(self._texts.batch(self._records(step).tolist()), "mean of tokens")
        loss.backward()  # type: ignore[no-untyped-call]
        return StepLoss(float(losses_N.double().sum()), len(losses_N))

    def num_tokens(self, step: int) -> int:
        """The scored tokens of a step's batch."""
        return int(self._texts.num_scored[self._records(step)].sum())

    def _records(self, step: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            settings = self._settings
            self._batches = make_batches(self._texts.lengths, settings.batch_size, epoch, settings.seed)
            self._epoch = epoch
        return self._batches[position]


class MasterParameters:
    """float32 copies of the trained parameters, for an optimiser to update; float32 parameters are their own copies."""

    def __init__(self, module: nn.Module) -> None:
        self._working = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.masters = [p if p.dtype == torch.float32 else p.detach().float().requires_grad_() for p in self._working]

    def take_gradients(self) -> list[Tensor]:
        """Move the parameters' gradients to the copies; a parameter that took no part has a gradient of zero."""
        gradients = []
        for working, master in zip(self._working, self.masters, strict=True):
            found = working.grad
            master.grad = torch.zeros_like(master) if found is None else found.float()
            if working is not master:
                working.grad = None
            gradients.append(master.grad)
        return gradients

    @torch.no_grad()
    def write_back(self) -> None:
        """Round the copies into the parameters."""
        for working, master in zip(self._working, self.masters, strict=True):
            if working is not master:
                working.copy_(master)


class SingleTrainer:
    """Trains the trainable parameters of a module in place; see the module's docstring.

    Args:
        module: what `attach` returned, on its device.
        loss: its loss.
        source: what fills gradients.
        validation: texts whose loss is measured after each epoch, or none.
        settings: how to train.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: TextLoss,
        source: GradientSource,
        validation: Texts,
        settings: SingleTrainingSettings,
    ) -> None:
        keep_freed_memory()
        self._module, self._loss, self._source = module, loss, source
        self._validation, self._settings = validation, settings
        self._device = next(module.parameters()).device
        self._parameters = MasterParameters(module)
        self._optimiser = torch.optim.AdamW(
            self._parameters.masters, lr=settings.learning_rate, weight_decay=0.0, fused=True
        )

    @property
    def num_steps(self) -> int:
        """Steps over all epochs."""
        return self._settings.epochs * self._source.steps_per_epoch

    def train(
        self,
        checkpoint: TrainingCheckpoint,
        on_tokens: Callable[[int], None],
        on_epoch: Callable[[int, EpochLoss], None],
    ) -> tuple[EpochLoss, ...]:
        """Train from the start, or from where the checkpoint stopped, to the last step.

        Args:
            checkpoint: where interrupted work is kept; saved when it is due.
            on_tokens: called after each step with the tokens it counts for, and first with those of restored steps.
            on_epoch: called after each epoch that ends here with its number, from 0, and its losses.

        Raises:
            TrainingError: the loss, a gradient or a weight is not finite.
        """
        totals = torch.zeros(self._settings.epochs, 4, dtype=torch.float64)
        first_step = checkpoint.restore(self._parameters.masters, self._optimiser, totals)
        if first_step:
            self._parameters.write_back()
            on_tokens(sum(self._source.num_tokens(step) for step in range(first_step)))
        for step in range(first_step, self.num_steps):
            epoch, position = divmod(step, self._source.steps_per_epoch)
            self._step(step, totals[epoch])
            ends_epoch = position + 1 == self._source.steps_per_epoch
            if ends_epoch:
                self._validate(totals[epoch])
            checkpoint.save_if_due(step + 1, self._parameters.masters, self._optimiser, totals)
            on_tokens(self._source.num_tokens(step))
            if ends_epoch:
                on_epoch(epoch, _epoch_loss(totals[epoch]))
        self._module.eval()
        if not all(bool(torch.isfinite(p).all()) for p in self._module.parameters() if p.requires_grad):
            raise TrainingError("the last step left weights that are not finite; lower --learning-rate")
        return tuple(_epoch_loss(row) for row in totals)

    def _step(self, step: int, totals: Tensor) -> None:
        self._module.train()
        self._optimiser.zero_grad(set_to_none=True)
        with self._randomness_of(step):
            loss = self._source.backward(step)
        gradients = self._parameters.take_gradients()
        norm = get_total_norm(gradients)
        if not math.isfinite(0.0 if loss is None else loss.nats) or not math.isfinite(float(norm)):
            raise TrainingError(
                f"the loss or its gradient is not finite in step {step + 1} of {self.num_steps} at learning rate "
                f"{self._settings.learning_rate:g}; lower --learning-rate"
                + (", or use --dtype float32" if self._settings.dtype != "float32" else "")
            )
        if self._source.max_gradient_norm is not None:
            clip_grads_with_norm_(self._parameters.masters, self._source.max_gradient_norm, norm)
        rate = learning_rate_at(step, self.num_steps, self._settings.learning_rate)
        self._optimiser.param_groups[0]["lr"] = rate
        self._optimiser.step()
        self._parameters.write_back()
        if loss is not None:
            totals[_TRAIN_NATS] += loss.nats
            totals[_TRAIN_TOKENS] += loss.num_tokens

    @torch.no_grad()
    def _validate(self, totals: Tensor) -> None:
        self._module.eval()
        order = np.argsort(self._validation.lengths, kind="stable").tolist()
        size = self._settings.batch_size
        for start in range(0, len(order), size):
            _, losses_N = self._loss(self._validation.batch(order[start : start + size]), "mean of tokens")
            totals[_VALIDATION_NATS] += losses_N.double().sum().cpu()
            totals[_VALIDATION_TOKENS] += len(losses_N)

    @contextmanager
    def _randomness_of(self, step: int) -> Iterator[None]:
        """Draw within from a stream that the seed and the step fix; what is drawn elsewhere does not notice."""
        entropy = np.random.SeedSequence([self._settings.seed, _STEP_STREAM, step])
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0]))
            yield


def _epoch_loss(totals: Tensor) -> EpochLoss:
    nats = totals.tolist()
    return EpochLoss(
        nats[_TRAIN_NATS] / nats[_TRAIN_TOKENS] if nats[_TRAIN_TOKENS] else None,
        nats[_VALIDATION_NATS] / nats[_VALIDATION_TOKENS] if nats[_VALIDATION_TOKENS] else None,
    )
