"""Worlds trained so that none feels another, bit for bit: what the corpus guarantee asks of training.

Everything that a pass computes has a shape from public numbers: worlds in groups of a fixed size, a fixed number of
steps, as many texts a step whoever holds fewer, every text as long as the longest one may be. Empty slots, and the
positions after a text's end, hold one public token and weigh nothing; they are computed all the same. Each world's
order follows from the seed and its number, its gradient is clipped by itself, and a world whose numbers are not finite
ends as the base, which nobody but the operator is told.

With equal shapes, no operation of a pass mixes rows of different worlds: the frozen products go row by row, the
adapters' products world by world, the loss is a sum. So a world's adapter is a function of its own texts, its number
and public settings, on one machine with one number of threads; between machines bits may differ for all worlds alike.

Shape suffixes: G worlds of a group, B slots in a step, T positions, S slots of all worlds.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.layers.adapters import StackedAdapters, group_by_layer
from reticent.layers.forward import BatchedDecoder
from reticent.text.tokenise import EncodedTexts
from reticent.training.loss import chunked_cross_entropy
from reticent.training.multiworld import MultiWorldTrainer
from reticent.training.schedule import StepSchedule
from reticent.training.settings import LoraSettings, TrainingSettings

_ORDER_STREAM = 5
_NO_TEXT = -1
_PUBLIC_TOKEN = 0


@dataclass(frozen=True)
class SlottedTexts:
    """The texts in the slots of all worlds, padded to one length.

    Attributes:
        padded: a text for each slot, and a last one that is all padding; all of `width` tokens.
        lengths: tokens of each slot's own text, 0 where it is empty, int64[S + 1].
    """

    padded: EncodedTexts
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, texts: EncodedTexts, record_of_slot: NDArray[np.int64], width: int) -> "SlottedTexts":
        """Lay texts out over slots.

        Args:
            texts: the records' texts, none longer than `width`.
            record_of_slot: the record in each slot, negative where it is empty, int64[S].
            width: tokens that every slot takes, public.
        """
        tokens = np.full((len(record_of_slot) + 1, width), _PUBLIC_TOKEN, dtype=np.int64)
        is_scored = np.zeros(tokens.shape, dtype=np.bool_)
        lengths = np.zeros(len(tokens), dtype=np.int64)
        for slot in np.flatnonzero(record_of_slot >= 0):
            record = record_of_slot[slot]
            span = slice(texts.offsets[record], texts.offsets[record + 1])
            own = texts.tokens[span]
            tokens[slot, : len(own)], lengths[slot] = own, len(own)
            is_scored[slot, : len(own)] = texts.is_scored[span]
        padded = EncodedTexts(
            tokens.reshape(-1), width * np.arange(len(tokens) + 1), texts.num_truncated, is_scored.reshape(-1)
        )
        return cls(padded, lengths)

    @property
    def width(self) -> int:
        """Tokens of every slot."""
        return int(self.padded.offsets[1])


@dataclass(frozen=True)
class SlotSchedule:
    """Steps of training for worlds of one number of slots each, by public numbers alone.

    Attributes:
        is_filled: true where a slot holds a text, bool[m, slots of a world].
        batch_size: about how many slots of each world a step takes.
        epochs: passes over each world's slots.
        seed: orders each world's texts, with the world's number.
    """

    is_filled: NDArray[np.bool_] = field(repr=False)
    batch_size: int
    epochs: int
    seed: int

    @property
    def num_worlds(self) -> int:
        """The number of worlds, m."""
        return len(self.is_filled)

    @property
    def slots(self) -> int:
        """Slots of a world."""
        return int(self.is_filled.shape[1])

    @property
    def steps_per_epoch(self) -> int:
        """Steps an epoch takes, for every world."""
        return max(1, round(self.slots / self.batch_size))

    @property
    def num_steps(self) -> int:
        """Steps over all epochs."""
        return self.epochs * self.steps_per_epoch

    @property
    def texts_a_step(self) -> int:
        """Slots that a step takes of each world, B."""
        return -(-self.slots // self.steps_per_epoch)

    def batch(self, step: int, worlds: slice) -> NDArray[np.int64]:
        """Slots that each of some worlds takes in a step, int64[G, B]; −1 where a world has no text for one."""
        epoch, position = divmod(step, self.steps_per_epoch)
        chosen = range(self.num_worlds)[worlds]
        batch = np.full((len(chosen), self.texts_a_step), _NO_TEXT, dtype=np.int64)
        for row, world in zip(batch, chosen, strict=True):
            own = np.flatnonzero(self.is_filled[world])
            stream = np.random.SeedSequence([self.seed, _ORDER_STREAM, world, epoch])
            order = np.random.Generator(np.random.Philox(stream)).permutation(len(own))
            first, last = (len(own) * at // self.steps_per_epoch for at in (position, position + 1))
            row[: last - first] = world * self.slots + own[order[first:last]]
        return batch

    def num_targets(self, width: int, worlds: slice = slice(None)) -> int:
        """Positions that training some worlds goes through, texts taking `width` tokens: a public number."""
        return len(range(self.num_worlds)[worlds]) * self.num_steps * self.texts_a_step * (width - 1)


class IsolatedTrainer(MultiWorldTrainer):
    """Trains groups of worlds on the slots of a `SlotSchedule`; see the module's docstring."""

    def __init__(
        self,
        decoder: BatchedDecoder,
        texts: SlottedTexts,
        lora: LoraSettings,
        training: TrainingSettings,
        scratch: Path,
    ) -> None:
        super().__init__(decoder, texts.padded, lora, training, scratch)
        self._slots = texts

    def _longest(self, records_GB: NDArray[np.int64]) -> int:
        return self._slots.width - 1

    def _tokens_of_step(self, records_GB: NDArray[np.int64]) -> int:
        return records_GB.size * (self._slots.width - 1)

    def _accumulate_part(
        self, records_GB: NDArray[np.int64], count_G: NDArray[np.int64], adapters: StackedAdapters, nats_G: Tensor
    ) -> None:
        """One pass over some slots of a step in which the worlds have `count_G` tokens in all."""
        architecture = self._decoder.architecture
        num_worlds, num_positions = len(records_GB), self._slots.width - 1
        slots_GB = np.where(records_GB < 0, len(self._slots.padded) - 1, records_GB)
        hidden_GND = self._decoder.run_layers(
            self.trunk.gather(slots_GB, num_positions),
            self._adapted,
            torch.arange(num_positions, device=architecture.device),
            self._decoder.attention_over,
            group_by_layer(architecture, adapters.to(architecture.dtype, architecture.device)),
        )
        index_GN = self.trunk.token_index(slots_GB, num_positions + 1)[..., 1:].reshape(num_worlds, -1)
        is_scored = self._texts.is_scored[index_GN]
        weight_GN = np.where(is_scored, 1.0 / np.maximum(count_G, 1)[:, None], 0.0)
        targets_GN = self._texts.tokens[index_GN]
        final_GND = self._decoder.final_hidden(hidden_GND)
        loss, losses = chunked_cross_entropy(
            final_GND.reshape(-1, final_GND.shape[-1]),
            architecture.head_VD,
            architecture.head_bias_V,
            torch.from_numpy(targets_GN.reshape(-1)).to(architecture.device),
            torch.from_numpy(weight_GN.reshape(-1)).to(architecture.device, torch.float32),
        )
        loss.backward()  # type: ignore[no-untyped-call]
        own_GN = losses.double().cpu().view(num_worlds, -1)
        nats_G += torch.where(torch.from_numpy(is_scored), own_GN, 0.0).sum(1)

    def _after_gradients(self, schedule: StepSchedule, worlds: slice, step: int, is_finite_G: Tensor) -> None:
        """Leave a world that is not finite as it is: it ends as the base, and no other world learns of it."""

    def _finish(self, adapters: StackedAdapters) -> StackedAdapters:
        """The adapters, with the base in place of each world that has a number that is not finite."""
        tensors = [*adapters.down.values(), *adapters.up.values()]
        is_sound_G = torch.stack([tensor.isfinite().flatten(1).all(1) for tensor in tensors]).all(0)
        start = self.initial_adapters(adapters.num_adapters).to(torch.float32, is_sound_G.device)
        for own, first in ((adapters.down, start.down), (adapters.up, start.up)):
            for path, tensor in own.items():
                tensor.copy_(torch.where(is_sound_G[:, None, None], tensor, first[path]))
        return adapters
