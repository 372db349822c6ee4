"""Text templates: the same token ids in training and in scoring, or the audit is of something else.

A template says what surrounds the text, where it is cut, whether it is closed, and which of it counts. It is stored
with an adapted model or a run, and both the trainer and every scorer encode through it, so that they cannot differ.

Shape suffixes: B texts, T token positions, S positions of the encoder's input.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import Tensor

from reticent._settings import FrozenModel
from reticent.errors import InvalidValueError
from reticent.text.chats import ASSISTANT, MESSAGES_COLUMN, Span, render_chat
from reticent.text.end_tokens import turn_end
from reticent.text.fields import TEXT_COLUMN, RecordLayout, readable_text
from reticent.text.recognition import recognise_template
from reticent.text.tokenise import decode_texts, tokenise_documents, whole_documents

TEXT_FIELD = "{text}"
CHAT_TEXT = f"{{{MESSAGES_COLUMN}}}"
"""The template of conversations: the model's own chat template, and the assistant's turns are scored."""
IGNORED_LABEL = -100
"""The label that `transformers` leaves out of the loss."""

_COLUMN = re.compile(r"\{(\w[\w .-]*)\}")


class TextTemplate(FrozenModel):
    """A template: the surroundings of a text, its length limit, and its end.

    Attributes:
        text: what a model reads, with the names of columns in braces: `{text}` alone, or several, each once.
        encoder_input: for encoder-decoder models, what the encoder reads: the same for every text, or with columns.
        answer: the column of `text` that is trained on and scored; empty for all that the model reads.
        max_tokens: longer sequences are cut, of the encoder's input as well.
        add_eos: whether a sequence that is not cut ends with the end-of-text token.
    """

    text: str = TEXT_FIELD
    encoder_input: str = ""
    answer: str = ""
    max_tokens: int = Field(default=256, ge=2)
    add_eos: bool = True

    @field_validator("text", "encoder_input")
    @classmethod
    def _check_columns(cls, value: str, info: ValidationInfo) -> str:
        names = _COLUMN.findall(value)
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ValueError(f"a template has each column once, and this one has {{{repeated}}} twice")
        if info.field_name == "text" and not names:
            raise ValueError(f"a template names a column in braces, such as {TEXT_FIELD}")
        return value

    @model_validator(mode="after")
    def _check_answer(self) -> Self:
        if f"{{{MESSAGES_COLUMN}}}" in self.text and (self.answer or self.encoder_input or not self.is_chat):
            raise ValueError(
                f"{CHAT_TEXT} stands alone: the chat template surrounds messages, and only the assistant's count"
            )
        if self.answer and self.answer not in _COLUMN.findall(self.text):
            raise ValueError(
                f"the answer {self.answer!r} is no column of the template; write {{{self.answer}}} where it stands"
            )
        return self

    @property
    def is_plain(self) -> bool:
        """True if a text is read as it is, whole up to its length limit, and closed."""
        return self == TextTemplate(max_tokens=self.max_tokens)

    @property
    def layout(self) -> RecordLayout:
        """The columns that a record needs; a plain text is the answer, `{text}`, or the last column."""
        own = _COLUMN.findall(self.text)
        if self.is_chat:
            return RecordLayout((MESSAGES_COLUMN,), ASSISTANT)
        others = [name for name in _COLUMN.findall(self.encoder_input) if name not in own]
        main = self.answer or (TEXT_COLUMN if TEXT_COLUMN in own else own[-1])
        return RecordLayout((*own, *others), main, is_main_needed=bool(self.answer or others or len(own) == 1))

    @property
    def is_chat(self) -> bool:
        """True if records are conversations, which the model's own chat template renders."""
        return self.text == CHAT_TEXT

    @property
    def has_answers(self) -> bool:
        """True if some of what a model reads is given and not predicted."""
        return bool(self.answer) or self.is_chat

    def render(self, record: str, tokenizer: Any = None) -> str:
        """A record in its surroundings; braces within a value are left alone. A conversation needs the tokenizer."""
        return self._fill(record, tokenizer).text

    def render_input(self, record: str) -> str:
        """The encoder's input for a record."""
        return _fill_columns(self.encoder_input, self.layout.values(record))[0]

    def spans_scored(self, record: str, tokenizer: Any = None) -> tuple[Span, ...]:
        """The characters of the rendered record that are trained on and scored, each (start, stop)."""
        return self._fill(record, tokenizer).scored

    def main_span(self, record: str, tokenizer: Any = None) -> Span:
        """The characters of the rendered record that its main column, or a last answer, takes, (start, stop)."""
        return self._fill(record, tokenizer).main

    def beginning(self, record: str, tokenizer: Any = None) -> str:
        """The rendered record up to the end of its main column's value: what a model continues."""
        filled = self._fill(record, tokenizer)
        return filled.text[: filled.main[1]]

    def _fill(self, record: str, tokenizer: Any) -> "_Filled":
        if self.is_chat:
            if tokenizer is None:
                raise InvalidValueError(
                    "conversations need the chat template of a model that is here, and this one is behind a server; "
                    "give --template with columns"
                )
            return _Filled(*render_chat(tokenizer, record))
        text, places = _fill_columns(self.text, self.layout.values(record))
        scored = (places[self.answer],) if self.answer else ((0, len(text)),)
        return _Filled(text, scored, places[self.layout.main])


@dataclass(frozen=True)
class _Filled:
    """A rendered record, the characters of it that are scored, and those of its main column."""

    text: str
    scored: tuple[Span, ...]
    main: Span


def _fill_columns(template: str, values: Mapping[str, str]) -> tuple[str, dict[str, tuple[int, int]]]:
    """A template with values in the places of columns, and the characters that each value takes."""
    text, places, end = "", {}, 0
    for column in _COLUMN.finditer(template):
        text += template[end : column.start()]
        value = values[column[1]]
        places[column[1]] = (len(text), len(text) + len(value))
        text += value
        end = column.end()
    return text + template[end:], places


@dataclass(frozen=True, eq=False)
class EncodedText:
    """One text as a model sees it.

    Attributes:
        token_ids: int64[N]. For a causal model its input; for an encoder-decoder the decoder's target.
        input_ids: int64[S], the encoder's input; None for a causal model.
        is_scored: the tokens that are predicted, bool[N]; the others are given. Never the first of a causal model,
            which is the beginning-of-text token or has nothing before it; a decoder starts from a token of its own.
        truncated: whether the text was cut.
        labels: of a causal model, the token to predict at each place in place of the text's own, `IGNORED_LABEL` where
            there is none, int64[N]; None where the text itself is predicted.
    """

    token_ids: NDArray[np.int64]
    input_ids: NDArray[np.int64] | None
    is_scored: NDArray[np.bool_]
    truncated: bool
    labels: NDArray[np.int64] | None = None

    @classmethod
    def scored_from(
        cls,
        first: int,
        token_ids: NDArray[np.int64],
        input_ids: NDArray[np.int64] | None,
        *,
        truncated: bool,
        labels: NDArray[np.int64] | None = None,
    ) -> Self:
        """A text of which all tokens from index `first` on are predicted."""
        return cls(token_ids, input_ids, np.arange(len(token_ids)) >= first, truncated, labels)

    @property
    def num_scored(self) -> int:
        """The number of predicted tokens; a text with none has no score."""
        if self.labels is not None:
            return int((self.is_scored & (self.labels != IGNORED_LABEL)).sum())
        return int(self.is_scored.sum())

    @property
    def num_read(self) -> int:
        """All tokens that go through the model, the encoder's included."""
        return len(self.token_ids) + (0 if self.input_ids is None else len(self.input_ids))


def encode(
    tokenizer: Any, template: TextTemplate, records: Sequence[str], *, is_encoder_decoder: bool = False
) -> list[EncodedText]:
    """Encode records through a template, in order. Those without a scored token are encoded like any other.

    A whole rendered text is tokenised at once. Where only an answer is scored, a token that stands for any of the
    answer's characters is scored, also one that begins before the answer, and so is the end-of-text token behind it.

    Args:
        tokenizer: a `transformers` tokenizer; its own special tokens are kept, the beginning-of-text token once.
        template: what surrounds the texts, and where they are cut.
        records: texts, or records of the template's columns.
        is_encoder_decoder: whether the texts are a decoder's targets.

    Raises:
        InvalidValueError: a record has not the template's columns, the model has no encoder to read what the template
            gives it, or an answer is to be scored and the tokenizer does not tell which characters a token stands for.
    """
    if not is_encoder_decoder and template.encoder_input:
        raise InvalidValueError("this template has an encoder input, and a causal model has no encoder: leave it out")
    targets = list(_encode_targets(tokenizer, template, records, first=0 if is_encoder_decoder else 1))
    if not is_encoder_decoder:
        return targets
    rendered = [template.render_input(record) for record in records]
    # One encoding where the input is the same for every text.
    inputs = {value: _encoder_ids(tokenizer, value, template.max_tokens) for value in dict.fromkeys(rendered)}
    return [replace(target, input_ids=inputs[value]) for target, value in zip(targets, rendered, strict=True)]


def encode_beginnings(
    tokenizer: Any, template: TextTemplate, records: Sequence[str], *, is_encoder_decoder: bool = False
) -> list[EncodedText]:
    """Encode what a model continues of each record: all up to the end of the main column's value, and no end token."""
    prompts = [template.beginning(record, tokenizer) for record in records]
    inputs: list[NDArray[np.int64] | None] = [None] * len(records)
    if is_encoder_decoder:
        inputs = [_encoder_ids(tokenizer, template.render_input(record), template.max_tokens) for record in records]
    documents = tokenise_documents(tokenizer, prompts, add_end=False, add_begin=not template.is_chat)
    return [
        EncodedText.scored_from(
            len(document.ids),
            np.asarray(document.ids[: template.max_tokens], dtype=np.int64),
            read,
            truncated=len(document.ids) > template.max_tokens,
        )
        for document, read in zip(documents, inputs, strict=True)
    ]


def texts_as_trained(
    tokenizer: Any, template: TextTemplate, records: Sequence[str], encoded: Sequence[EncodedText]
) -> list[str]:
    """Each text as it is cut, without the template's surroundings and outer white space.

    A record of several columns is its readable text where it is not cut.
    """
    decoded = decode_texts(tokenizer, [text.token_ids for text in encoded])
    if template.layout.columns != (TEXT_COLUMN,):
        return [
            text if found.truncated else readable_text(record)
            for text, record, found in zip(decoded, records, encoded, strict=True)
        ]
    before, _, after = template.text.partition(TEXT_FIELD)
    return [text.strip().removeprefix(before.strip()).removesuffix(after.strip()).strip() for text in decoded]


def template_for(corpus: Path | None, text_key: str, text: str | None, answer: str, **fields: Any) -> TextTemplate:
    """The template that is asked for, or the one that suits a corpus's columns, or a text as it is.

    Args:
        corpus: the file or folder; None where it is in memory.
        text_key: the key of its text.
        text: the template asked for, or None.
        answer: the answer's column, or empty.
        fields: all other settings of the template.

    Raises:
        CorpusError: the corpus cannot be read.
        ValidationError: the template cannot be right.
    """
    if text is None and not answer and corpus is not None:
        text, answer = recognise_template(corpus, text_key) or (None, "")
    return TextTemplate(text=TEXT_FIELD if text is None else text, answer=answer, **fields)


def nothing_to_predict(source: str, text: EncodedText, template: TextTemplate) -> str:
    """A message about a text without a scored token, where every text must have one."""
    if text.truncated and template.has_answers:
        return (
            f"{source}: what precedes the answer fills {template.max_tokens} tokens, so the whole answer is cut; raise "
            "--max-tokens, or remove the record"
        )
    return f"{source}: the text has fewer than two tokens, so there is no token to predict; remove it"


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
        int64[B, T], which hold `IGNORED_LABEL` wherever no token is scored; with an encoder also `target_ids`,
        int64[B, T], all of the decoder's tokens, for it reads those that are not scored as well.
    """
    targets = [text.token_ids if text.labels is None else text.labels for text in encoded]
    labels = _pad_rows(targets, IGNORED_LABEL)
    for row, text in zip(labels, encoded, strict=True):
        row[: len(text.is_scored)][torch.from_numpy(~text.is_scored)] = IGNORED_LABEL
    read = [text.token_ids if text.input_ids is None else text.input_ids for text in encoded]
    batch = {
        "input_ids": _pad_rows(read, pad_id),
        "attention_mask": _pad_rows([np.ones_like(ids) for ids in read], 0),
        "labels": labels,
    }
    return batch if encoded[0].input_ids is None else batch | {"target_ids": _pad_rows(targets, 0)}


def _encode_targets(
    tokenizer: Any, template: TextTemplate, records: Sequence[str], first: int
) -> Iterator[EncodedText]:
    """Each record as a causal model or a decoder reads it; tokens before index `first` are never scored."""
    with_spans = template.has_answers
    if with_spans and not tokenizer.is_fast:
        raise InvalidValueError(
            "scoring an answer alone needs a fast tokenizer, which tells the characters of each token; save the model "
            "with one, or leave the answer out"
        )
    rendered = [template.render(record, tokenizer) for record in records]
    # A chat template writes the beginning itself, and the end where it closes a turn with a token of its own.
    add_begin = not template.is_chat
    add_end = template.add_eos and (add_begin or turn_end(tokenizer) is None)
    documents = tokenise_documents(tokenizer, rendered, add_end=add_end, add_begin=add_begin, with_spans=with_spans)
    for record, text, document in zip(records, rendered, documents, strict=True):
        is_scored = np.arange(len(document.ids)) >= first
        if with_spans:
            is_scored &= _in_spans(document.spans, template.spans_scored(record, tokenizer), len(text))
        cut = slice(template.max_tokens)
        truncated = len(document.ids) > template.max_tokens
        yield EncodedText(np.asarray(document.ids[cut], dtype=np.int64), None, is_scored[cut], truncated)


def _in_spans(
    tokens: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]], num_characters: int
) -> NDArray[np.bool_]:
    """The tokens that stand for a character of some spans, and the end behind a span that ends the text."""
    starts, stops = np.asarray(tokens, dtype=np.int64).reshape(-1, 2).T
    found = np.zeros(len(tokens), dtype=np.bool_)
    for start, stop in spans:
        found |= (starts < stop + (stop == num_characters)) & (stops > start)
    return found


def _encoder_ids(tokenizer: Any, text: str, max_tokens: int) -> NDArray[np.int64]:
    ids = next(whole_documents(tokenizer, [text]))
    # An encoder cannot read nothing: a tokenizer without special tokens makes nothing of an empty input.
    return np.asarray(ids[:max_tokens] or [0], dtype=np.int64)


def _pad_rows(rows: Sequence[NDArray[np.int64]], value: int) -> Tensor:
    padded = torch.full((len(rows), max(len(row) for row in rows)), value, dtype=torch.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = torch.from_numpy(row)
    return padded
