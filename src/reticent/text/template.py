"""Text templates: the same token ids in training and in scoring, or the audit is of something else.

A template says what surrounds the text, where it is cut and whether it is closed. It is stored with an adapted model,
and both the trainer and every scorer encode through it, so that they cannot differ.

Shape suffixes: B texts, T token positions, S positions of the encoder's input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator
from torch import Tensor

from reticent._settings import FrozenModel
from reticent.errors import InvalidValueError
from reticent.text.tokenise import decode_texts, whole_documents

TEXT_FIELD = "{text}"
INPUT_FIELD = "{input}"
IGNORED_LABEL = -100
"""The label that `transformers` leaves out of the loss."""


class TextTemplate(FrozenModel):
    """A template: the surroundings of a text, its length limit, and its end.

    Attributes:
        text: what a model reads, with `{text}` once in the text's place.
        encoder_input: for encoder-decoder models, what the encoder reads: the same for every text, or with `{input}`
            once in the place of each text's own input.
        max_tokens: longer sequences are cut, of the encoder's input as well.
        add_eos: whether a sequence that is not cut ends with the end-of-text token.
    """

    text: str = TEXT_FIELD
    encoder_input: str = ""
    max_tokens: int = Field(default=256, ge=2)
    add_eos: bool = True

    @field_validator("text")
    @classmethod
    def _text_once(cls, value: str) -> str:
        if value.count(TEXT_FIELD) != 1:
            raise ValueError(f"a template has {TEXT_FIELD} exactly once, found {value.count(TEXT_FIELD)}")
        return value

    @field_validator("encoder_input")
    @classmethod
    def _input_at_most_once(cls, value: str) -> str:
        if value.count(INPUT_FIELD) > 1:
            raise ValueError(f"an encoder input has {INPUT_FIELD} at most once, found {value.count(INPUT_FIELD)}")
        return value

    def render(self, text: str) -> str:
        """The text in its surroundings; a `{text}` within the text itself is left alone."""
        before, _, after = self.text.partition(TEXT_FIELD)
        return before + text + after

    def render_input(self, value: str) -> str:
        """Render the encoder's input for a text whose own input is `value`."""
        before, field, after = self.encoder_input.partition(INPUT_FIELD)
        return before + value + after if field else before


@dataclass(frozen=True, eq=False)
class EncodedText:
    """One text as a model sees it.

    Attributes:
        token_ids: int64[N]. For a causal model its input; for an encoder-decoder the decoder's target.
        input_ids: int64[S], the encoder's input; None for a causal model.
        first_scored: tokens before this index are given, not predicted: 1 for a causal model, whose first token is the
            beginning-of-text token or has nothing before it; 0 for a decoder, which starts from a token of its own.
        truncated: whether the text was cut.
        labels: of a causal model, the token to predict at each place in place of the text's own, `IGNORED_LABEL` where
            there is none, int64[N]; None where the text itself is predicted.
    """

    token_ids: NDArray[np.int64]
    input_ids: NDArray[np.int64] | None
    first_scored: int
    truncated: bool
    labels: NDArray[np.int64] | None = None

    @property
    def num_scored(self) -> int:
        """The number of predicted tokens; a text with none has no score."""
        if self.labels is not None:
            return int((self.labels[self.first_scored :] != IGNORED_LABEL).sum())
        return max(0, len(self.token_ids) - self.first_scored)

    @property
    def num_read(self) -> int:
        """All tokens that go through the model, the encoder's included."""
        return len(self.token_ids) + (0 if self.input_ids is None else len(self.input_ids))


def encode(
    tokenizer: Any,
    template: TextTemplate,
    texts: Sequence[str],
    *,
    is_encoder_decoder: bool = False,
    inputs: Sequence[str] | None = None,
) -> list[EncodedText]:
    """Encode texts through a template, in order. Texts without a scored token are encoded like any other.

    Args:
        tokenizer: a `transformers` tokenizer; its own special tokens are kept, the beginning-of-text token once.
        template: what surrounds the texts, and where they are cut.
        texts: the texts.
        is_encoder_decoder: whether the texts are a decoder's targets.
        inputs: one encoder input a text, for a template with `{input}`.

    Raises:
        InvalidValueError: the template asks for inputs and there is not one for each text, or the model has no encoder
            to read what the template gives it.
    """
    if not is_encoder_decoder:
        if template.encoder_input:
            raise InvalidValueError(
                "this template has an encoder input, and a causal model has no encoder: leave it out"
            )
        return [_cut(ids, None, 1, template) for ids in _documents(tokenizer, template, texts)]
    rendered = [template.render_input(value) for value in _inputs_of(template, texts, inputs)]
    # One encoding where the input is the same for every text.
    encoded = {value: _encoder_ids(tokenizer, value, template.max_tokens) for value in dict.fromkeys(rendered)}
    documents = _documents(tokenizer, template, texts)
    return [_cut(ids, encoded[value], 0, template) for ids, value in zip(documents, rendered, strict=True)]


def texts_as_trained(tokenizer: Any, template: TextTemplate, encoded: Sequence[EncodedText]) -> list[str]:
    """Decode each text as it is cut, without the template's surroundings and outer white space."""
    before, _, after = template.text.partition(TEXT_FIELD)
    decoded = decode_texts(tokenizer, [text.token_ids for text in encoded])
    return [text.strip().removeprefix(before.strip()).removesuffix(after.strip()).strip() for text in decoded]


def padding_id(tokenizer: Any, num_embeddings: int) -> int:
    """A token id to pad with: the end-of-text token, always under an attention mask.

    No token is ever added to the vocabulary: a padding token beyond the embedding table has no embedding.
    """
    candidates = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    return next((i for i in candidates if i is not None and 0 <= i < num_embeddings), 0)


def collate(encoded: Sequence[EncodedText], pad_id: int) -> dict[str, Tensor]:
    """Pad texts on the right to one batch, as keyword arguments of a model's forward.

    Args:
        encoded: B texts of one kind of model, each with at least one token.
        pad_id: fills padded positions, which no other position sees and no label includes.

    Returns:
        `input_ids` and `attention_mask`, int64[B, T] (int64[B, S] of the encoder where there is one), and `labels`,
        int64[B, T], which hold `IGNORED_LABEL` wherever no token is scored.
    """
    targets = [text.token_ids if text.labels is None else text.labels for text in encoded]
    labels = _pad_rows(targets, IGNORED_LABEL)
    for row, text in zip(labels, encoded, strict=True):
        row[: text.first_scored] = IGNORED_LABEL
    read = [text.token_ids if text.input_ids is None else text.input_ids for text in encoded]
    return {
        "input_ids": _pad_rows(read, pad_id),
        "attention_mask": _pad_rows([np.ones_like(ids) for ids in read], 0),
        "labels": labels,
    }


def _documents(tokenizer: Any, template: TextTemplate, texts: Sequence[str]) -> list[list[int]]:
    return list(whole_documents(tokenizer, [template.render(text) for text in texts], add_end=template.add_eos))


def _cut(ids: list[int], input_ids: NDArray[np.int64] | None, first_scored: int, template: TextTemplate) -> EncodedText:
    token_ids = np.asarray(ids[: template.max_tokens], dtype=np.int64)
    return EncodedText(token_ids, input_ids, first_scored, truncated=len(ids) > template.max_tokens)


def _inputs_of(template: TextTemplate, texts: Sequence[str], inputs: Sequence[str] | None) -> Sequence[str]:
    if INPUT_FIELD not in template.encoder_input:
        return [""] * len(texts)
    if inputs is None or len(inputs) != len(texts):
        given = "none" if inputs is None else str(len(inputs))
        raise InvalidValueError(
            f"this template has {INPUT_FIELD}: give one input for each of {len(texts)} texts, not {given}"
        )
    return inputs


def _encoder_ids(tokenizer: Any, text: str, max_tokens: int) -> NDArray[np.int64]:
    ids = next(whole_documents(tokenizer, [text]))
    # An encoder cannot read nothing: a tokenizer without special tokens makes nothing of an empty input.
    return np.asarray(ids[:max_tokens] or [0], dtype=np.int64)


def _pad_rows(rows: Sequence[NDArray[np.int64]], value: int) -> Tensor:
    padded = torch.full((len(rows), max(len(row) for row in rows)), value, dtype=torch.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = torch.from_numpy(row)
    return padded
