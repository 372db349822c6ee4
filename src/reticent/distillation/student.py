"""The student: one adapter, or a whole model, trained on public texts and on the tokens released on them.

Whatever follows from released tokens and public texts alone carries the bound that the tokens have (post-processing),
so nothing here may see a private text, a world or the ledger. An interrupted training ends in the same weights when it
is resumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from reticent._settings import FiniteModel
from reticent.distillation.releases import LabelledText
from reticent.errors import InvalidValueError
from reticent.models.base import LanguageModel
from reticent.protocols import Progress
from reticent.text.template import IGNORED_LABEL, EncodedText, padding_id
from reticent.training.attention_gradients import keep_attention_weights
from reticent.training.checkpoint import TrainingCheckpoint
from reticent.training.settings import Technique, TechniqueSettings
from reticent.training.single_settings import SingleTrainingSettings
from reticent.training.single_training import EpochLoss, MeanGradients, SingleTrainer, Texts
from reticent.training.techniques.registry import TECHNIQUES, attach, detach, num_virtual_rows
from reticent.training.text_loss import TextLoss

STUDENT_TECHNIQUES = (Technique.LORA, Technique.FULL)
_SECONDS_BETWEEN_SAVES = 60.0


@dataclass(frozen=True)
class StudentSettings:
    """Settings of the student.

    Attributes:
        technique: `lora` or `full`.
        settings: the sizes of the technique.
        training: how to train.
        public_text: whether the public texts' own tokens are learnt as well.

    Raises:
        InvalidValueError: another technique.
    """

    technique: Technique = Technique.LORA
    settings: TechniqueSettings = field(default_factory=TechniqueSettings)
    training: SingleTrainingSettings = field(default_factory=SingleTrainingSettings)
    public_text: bool = True

    def __post_init__(self) -> None:
        if self.technique not in STUDENT_TECHNIQUES:
            raise InvalidValueError(f"a student is trained by {' or '.join(STUDENT_TECHNIQUES)}, not {self.technique}")


class PublicLoss(FiniteModel):
    """Mean loss on public texts that were not trained on, in nats a token.

    Attributes:
        base: of the public model.
        student: of the student.
        num_tokens: tokens it was measured on.
    """

    base: float
    student: float
    num_tokens: int


@dataclass(frozen=True)
class Student:
    """A trained student.

    Attributes:
        module: the model with its technique on.
        losses: of each epoch.
        public_loss: utility on public texts; None where none was held out.
    """

    module: nn.Module
    losses: tuple[EpochLoss, ...]
    public_loss: PublicLoss | None


def student_examples(texts: Sequence[LabelledText], *, public_text: bool) -> list[EncodedText]:
    """Make training examples of released tokens, and of the public texts themselves where wanted."""
    examples = [EncodedText.scored_from(1, text.token_ids, None, truncated=False, labels=text.labels) for text in texts]
    if public_text:
        examples += [
            EncodedText.scored_from(1, text.token_ids[: text.num_public], None, truncated=False) for text in texts
        ]
    return [example for example in examples if example.num_scored]


def check_student(model: Any, settings: StudentSettings) -> None:
    """Make sure that a model can be adapted as asked, before anything is released for it; leaves it as it was.

    Raises:
        InvalidValueError, ModelError: the settings do not fit the model.
    """
    # Full fine-tuning fits any model, and cannot be taken off.
    if not TECHNIQUES[settings.technique].is_whole_model:
        detach(attach(model, settings.technique, settings.settings, seed=settings.training.seed)).requires_grad_(False)


def train_student(
    base: LanguageModel,
    texts: Sequence[LabelledText],
    held_out: Sequence[EncodedText],
    settings: StudentSettings,
    folder: Path,
    device: torch.device,
    progress: Progress,
) -> Student:
    """Train a student, or finish one that was interrupted.

    Args:
        base: the public model.
        texts: public texts with the tokens released on them.
        held_out: public texts to measure utility on.
        settings: of technique and training.
        folder: keeps the checkpoint.
        device: where to train.
        progress: told about trained tokens.

    Raises:
        InvalidValueError: no token was released, or the settings do not fit the model.
        TrainingError: the loss is no longer a number.
    """
    examples = student_examples(texts, public_text=settings.public_text)
    if not any((text.labels != IGNORED_LABEL).any() for text in texts):
        raise InvalidValueError("no token was released, so there is nothing to train a student on")
    training = settings.training
    tokenizer = base.load_tokenizer()
    module: Any = attach(
        base.load(getattr(torch, training.dtype)).to(device), settings.technique, settings.settings, seed=training.seed
    )
    pad_id = padding_id(tokenizer, len(module.get_input_embeddings().weight))
    loss = TextLoss(module, num_virtual_rows(module))
    members, validation = (Texts(encoded, pad_id, device) for encoded in (examples, held_out))
    # A new adapter changes nothing, so this is the public model's own loss.
    before = mean_loss(module, loss, validation, training.batch_size)
    source = MeanGradients(loss, members, training)
    nothing = Texts([], pad_id, device)
    trainer = SingleTrainer(module, loss, source, nothing, training)
    checkpoint = TrainingCheckpoint(folder / "checkpoint", _SECONDS_BETWEEN_SAVES)
    progress.begin("training the student", training.epochs * int(members.num_scored.sum()))
    with keep_attention_weights(module, max(len(example.token_ids) for example in examples)):
        losses = trainer.train(checkpoint, progress.advance, lambda _epoch, _loss: None)
    after = mean_loss(module, loss, validation, training.batch_size)
    measured = None
    if before is not None and after is not None:
        measured = PublicLoss(base=before, student=after, num_tokens=int(validation.num_scored.sum()))
    return Student(module, losses, measured)


@torch.no_grad()
def mean_loss(module: nn.Module, loss: TextLoss, texts: Texts, batch_size: int) -> float | None:
    """The mean loss of a module on texts in nats a token; None where no token is scored."""
    if not texts.num_scored.sum():
        return None
    module.eval()
    order = np.argsort(texts.lengths, kind="stable").tolist()
    nats = 0.0
    for start in range(0, len(order), batch_size):
        _, losses_N = loss(texts.batch(order[start : start + batch_size]), "mean of tokens")
        nats += float(losses_N.double().sum())
    return nats / int(texts.num_scored.sum())
