"""The gradients of differentially private training: Poisson-sampled, clipped record by record or by unit, noised.

The guarantee and its conditions are stated in `reticent.training.dpsgd`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reticent.errors import InvalidValueError, ModelError
from reticent.randomness import NoiseSource
from reticent.text.template import EncodedText
from reticent.training.batches import num_batches
from reticent.training.dpsgd import (
    NoiseCalibration,
    PerRecordGradients,
    add_clipped,
    add_noise,
    backward,
    calibrate_noise,
    check_per_record_gradients,
    poisson_sample,
)
from reticent.training.settings import Technique
from reticent.training.single_settings import PrivacySettings, SingleTrainingSettings
from reticent.training.single_training import Texts
from reticent.training.techniques.registry import TECHNIQUES
from reticent.training.text_loss import TextLoss

PRIVATE_TECHNIQUES = tuple(name for name, technique in TECHNIQUES.items() if technique.can_train_privately)

_PROBE_LENGTHS = (7, 4)
_PROBE_SPREAD = 0.02


def refuse_unsuited(technique: Technique, settings: SingleTrainingSettings) -> None:
    """Refuse what per-record clipping is not shown to be right for.

    Raises:
        InvalidValueError: the technique is none of `PRIVATE_TECHNIQUES`, or the settings are not float32 without
            gradient checkpointing.
    """
    if technique not in PRIVATE_TECHNIQUES:
        raise InvalidValueError(
            f"private training works for {', '.join(PRIVATE_TECHNIQUES)}, not for {technique}; choose one of them "
            "or leave --dp-epsilon out"
        )
    if settings.dtype != "float32":
        raise InvalidValueError(
            f"private training needs --dtype float32, got {settings.dtype}: a norm rounded to fewer bits bounds nothing"
        )
    if settings.gradient_checkpointing:
        raise InvalidValueError("private training and gradient checkpointing exclude each other; turn the latter off")


def calibrate_training_noise(
    num_members: int, training: SingleTrainingSettings, privacy: PrivacySettings
) -> NoiseCalibration:
    """The noise for a number of members, records or units, in as many steps an epoch as training without privacy takes.

    Raises:
        InvalidValueError: δ is not below one over the number of members: to give one of them away whole would do; or as
            for `calibrate_noise`.
    """
    if not privacy.delta * num_members < 1.0:
        raise InvalidValueError(
            f"dp-delta must be below one over the {num_members:,} members, {1 / num_members:.3g}, got "
            f"{privacy.delta!r}: a training that reveals one whole member would satisfy it"
        )
    batch_size = min(training.batch_size, num_members)
    num_steps = training.epochs * num_batches(num_members, batch_size)
    return calibrate_noise(privacy.epsilon, privacy.delta, batch_size / num_members, num_steps)


class PrivateGradients:
    """Noised sums of clipped gradients over a Poisson sample, over the expected batch size; a `GradientSource`.

    Where units are protected, a unit enters a step as a whole, with the mean of its records' gradients.

    Args:
        module: what trains; its per-record gradients are probed on made-up texts.
        loss: its loss; where the vocabulary projection trains, not in chunks.
        texts: the members.
        calibration: the noise.
        training: how to train.
        privacy: clipping norm, and records held together.
        noise: where sampling and noise come from.
        units: the positions of each unit's records among `texts`, where units are protected in place of records.

    Attributes:
        takes_one_by_one: why records pass through the model one at a time, or None where Opacus takes several.

    Raises:
        InvalidValueError: Opacus is missing.
    """

    max_gradient_norm: float | None = None

    def __init__(
        self,
        module: nn.Module,
        loss: TextLoss,
        texts: Texts,
        calibration: NoiseCalibration,
        training: SingleTrainingSettings,
        privacy: PrivacySettings,
        noise: NoiseSource,
        units: Sequence[NDArray[np.int64]] | None = None,
    ) -> None:
        self._units = units
        self._loss, self._texts, self._calibration = loss, texts, calibration
        self._privacy, self._noise = privacy, noise
        self.steps_per_epoch = calibration.num_steps // training.epochs
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._per_record: PerRecordGradients | None = None
        self.takes_one_by_one: str | None = None
        if units is not None:
            return
        try:
            self._per_record = probe_per_record_gradients(module, loss)
        except ModelError as error:
            self.takes_one_by_one = str(error)

    def backward(self, step: int) -> None:
        """Leave the noised gradient of a fresh sample. The sample, and with it the loss, must stay secret."""
        num_protected = len(self._texts) if self._units is None else len(self._units)
        sampled = poisson_sample(num_protected, self._calibration.sample_rate, self._noise)
        sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        max_norm = self._privacy.max_gradient_norm
        if self._units is None:
            self._add_records(sums, sampled, max_norm)
        else:
            for unit in sampled.tolist():
                self._add_unit(sums, self._units[unit], max_norm)
        add_noise(sums, self._calibration.noise_multiplier * max_norm, self._noise)
        expected_size = self._calibration.sample_rate * num_protected
        for parameter, total in zip(self._parameters, sums, strict=True):
            parameter.grad = total / expected_size

    def num_tokens(self, step: int) -> int:
        """The same for each step: the number of sampled tokens must stay secret."""
        return int(self._texts.num_scored.sum()) // self.steps_per_epoch

    def close(self) -> None:
        """Take Opacus' hooks off the module."""
        if self._per_record is not None:
            self._per_record.close()

    def _add_records(self, sums: Sequence[Tensor], records: NDArray[np.int64], max_norm: float) -> None:
        """Add each record's gradient, clipped."""
        records = records[np.argsort(self._texts.lengths[records], kind="stable")]
        at_once = 1 if self._per_record is None else self._privacy.records_at_once
        for start in range(0, len(records), at_once):
            part = records[start : start + at_once].tolist()
            loss, _ = self._loss(self._texts.batch(part), "sum of text means")
            backward(loss)
            add_clipped(sums, self._take(len(part)), max_norm)

    def _add_unit(self, sums: Sequence[Tensor], records: NDArray[np.int64], max_norm: float) -> None:
        """Add the mean of a unit's gradients, clipped as one; its records may pass together, as one norm is asked."""
        for start in range(0, len(records), self._privacy.records_at_once):
            part = records[start : start + self._privacy.records_at_once].tolist()
            loss, _ = self._loss(self._texts.batch(part), "sum of text means")
            backward(loss / len(records))
        add_clipped(sums, self._take(1), max_norm)

    def _take(self, num_records: int) -> list[Tensor]:
        """The gradients of the records just passed, [B, *shape] for each parameter, cleared."""
        if self._per_record is not None:
            return self._per_record.take(num_records)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return [gradient[None] for gradient in gradients]


def probe_per_record_gradients(module: nn.Module, loss: TextLoss) -> PerRecordGradients:
    """Hook a module and compare two made-up texts' gradients, computed together, with those computed one by one.

    Dropout is off and the weights are moved a little meanwhile, so that no gradient is zero for the start's sake.

    Raises:
        ModelError: they differ or are missing.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    texts = _probe_texts(module)
    kept = [parameter.detach().clone() for parameter in parameters]
    was_training = module.training
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in parameters:
            shift = _PROBE_SPREAD * torch.randn(parameter.shape, generator=generator)
            parameter.add_(shift.to(parameter.device))
    module.eval()
    for part in module.modules():
        if any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            part.training = True
    per_record = None
    try:
        one_by_one = [_gradients(loss, texts.batch([record]), parameters) for record in range(len(texts))]
        per_record = PerRecordGradients(module)
        together, _ = loss(texts.batch(range(len(texts))), "sum of text means")
        backward(together)
        check_per_record_gradients(per_record.take(len(texts)), one_by_one)
    except (ModelError, AttributeError, IndexError, RuntimeError) as error:
        # What Opacus raises from within its hooks for modules that are called in ways it does not expect.
        if per_record is not None:
            per_record.close()
        raise ModelError(f"Opacus does not take several records of this model together: {error}") from None
    finally:
        module.train(was_training)
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
                parameter.grad = None
    return per_record


def _gradients(loss: TextLoss, batch: dict[str, Tensor], parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    value, _ = loss(batch, "sum of text means")
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _probe_texts(module: nn.Module) -> Texts:
    table = module.get_input_embeddings().weight  # type: ignore[operator]
    generator = np.random.default_rng(0)
    is_encoder_decoder = bool(module.config.is_encoder_decoder)  # type: ignore[union-attr]
    texts = []
    for length in _PROBE_LENGTHS:
        ids, read = (generator.integers(0, len(table), length + extra) for extra in (0, 1))
        texts.append(
            EncodedText.scored_from(
                int(not is_encoder_decoder), ids, read if is_encoder_decoder else None, truncated=False
            )
        )
    return Texts(texts, 0, table.device)
