"""Training on released tokens: the loss is that of the released token in its place, and of nothing else."""

import numpy as np
import pytest
import torch
from tiny_models import build_tiny_model
from torch.nn.functional import cross_entropy

from reticent.distillation.releases import LabelledText
from reticent.distillation.student import StudentSettings, student_examples
from reticent.errors import InvalidValueError
from reticent.text.template import IGNORED_LABEL, EncodedText, collate
from reticent.training.settings import Technique
from reticent.training.text_loss import TextLoss

NONE = IGNORED_LABEL
TEXTS = [
    LabelledText(np.array([4, 5, 6, 7]), np.array([NONE, 50, 60, 70]), 4, is_exhausted=False),
    LabelledText(np.array([8, 9]), np.array([NONE, NONE]), 2, is_exhausted=True),
    LabelledText(np.array([1, 2, 30, 31]), np.array([NONE, NONE, 30, 31]), 2, is_exhausted=False),
]


def test_labels_replace_the_texts_own_tokens_in_the_loss():
    model = build_tiny_model("llama")
    examples = student_examples(TEXTS, public_text=False)
    assert [example.num_scored for example in examples] == [3, 2]
    with torch.no_grad():
        value, losses_N = TextLoss(model, 0)(collate(examples, 0), "mean of tokens")
        first = model(input_ids=torch.tensor([[4, 5, 6, 7]])).logits[0, :3]
        second = model(input_ids=torch.tensor([[1, 2, 30, 31]])).logits[0, 1:3]
    expected = cross_entropy(torch.cat([first, second]), torch.tensor([50, 60, 70, 30, 31]), reduction="none")
    torch.testing.assert_close(losses_N, expected)
    torch.testing.assert_close(value, expected.mean())


def test_public_texts_are_examples_of_their_own_tokens():
    examples = student_examples(TEXTS, public_text=True)
    assert [example.num_scored for example in examples] == [3, 2, 3, 1, 1]
    assert [example.token_ids.tolist() for example in examples[2:]] == [[4, 5, 6, 7], [8, 9], [1, 2]]
    assert all(example.labels is None for example in examples[2:])


def test_a_text_without_labels_predicts_itself():
    batch = collate([EncodedText.scored_from(1, np.array([4, 5, 6]), None, truncated=False)], 0)
    assert batch["labels"].tolist() == [[NONE, 5, 6]]


@pytest.mark.parametrize("technique", [Technique.PREFIX, Technique.ICL])
def test_other_techniques_are_refused(technique):
    with pytest.raises(InvalidValueError, match=r"lora or full"):
        StudentSettings(technique)
