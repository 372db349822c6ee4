"""Extraction: does a model write a secret when it is given what stood before it (Carlini et al. 2021)?

Generation stops as soon as a continuation is no longer the beginning of the secret, so that a sample that will not
become one costs a token or two. White space before the secret is not compared, since tokenizers differ in which side
of a boundary it is on; everything else must be the same.

Each sample is drawn with its own random stream, given by the seed, the prompt's number and the sample's number, so
that it does not depend on what is generated beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from reticent.text.template import TextTemplate, encode_beginnings

_ROWS_AT_ONCE = 32
_REPLACEMENT = "\ufffd"
_MOST_BYTES_OPEN = 3


@dataclass(frozen=True)
class ExtractionTarget:
    """One secret and the prompt it stood behind."""

    prompt: str
    secret: str


class Extractor(Protocol):
    """A model that can be asked to continue a prompt."""

    def count_emitted(
        self, targets: Sequence[ExtractionTarget], num_samples: int | None, seed: int
    ) -> list[int | None]:
        """Count the continuations of each prompt that begin with its secret.

        Args:
            targets: prompts and secrets.
            num_samples: continuations drawn at temperature 1 for each prompt; None for the one greedy continuation.
            seed: of the draws.

        Returns:
            A count for each target; None where the model did not answer.
        """
        ...


def begins_with_secret(continuation: str, secret: str) -> bool:
    """True if a continuation has the secret at its start, white space before it aside."""
    return continuation.lstrip().startswith(secret)


def may_become_secret(continuation: str, secret: str) -> bool:
    """True if a longer continuation could still begin with the secret.

    A character whose bytes are not all there yet is read as replacement characters, at most three, at the end.
    """
    known = continuation.lstrip()
    complete = known.rstrip(_REPLACEMENT)
    if len(known) - len(complete) > _MOST_BYTES_OPEN:
        complete = known
    return secret.startswith(complete)


@dataclass
class _Row:
    """One continuation under way."""

    target: int
    prompt_ids: list[int]
    uniforms: np.random.Generator | None
    new_ids: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.new_ids)


class LocalExtractor:
    """Implements `Extractor` for a model whose weights are available, of any technique.

    Rows of one length are decoded together, without padding and without a cache: prompts and secrets are short, and
    nothing then depends on how a technique treats either.
    """

    def __init__(self, module: nn.Module, tokenizer: Any, template: TextTemplate, max_positions: int) -> None:
        """Take a model in evaluation mode; `max_positions` is the most tokens it reads."""
        self._module = module
        self._tokenizer = tokenizer
        model: Any = module
        self._is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self._template = template
        self._max_tokens = min(max_positions, template.max_tokens)

    def count_emitted(
        self, targets: Sequence[ExtractionTarget], num_samples: int | None, seed: int
    ) -> list[int | None]:
        """See `Extractor.count_emitted`."""
        prompts = encode_beginnings(
            self._tokenizer,
            self._template,
            [target.prompt for target in targets],
            is_encoder_decoder=self._is_encoder_decoder,
        )
        encoder_ids = prompts[0].input_ids if prompts else None
        counts: list[int | None] = [0] * len(targets)
        waiting = [
            _Row(index, prompt.token_ids.tolist(), generator)
            for index, prompt in enumerate(prompts)
            for generator in _streams(seed, index, num_samples)
        ]
        while waiting:
            waiting.sort(key=lambda row: row.num_tokens)
            going_on = []
            for _, rows in groupby(waiting, key=lambda row: row.num_tokens):
                same_length = list(rows)
                for start in range(0, len(same_length), _ROWS_AT_ONCE):
                    going_on += self._extend(same_length[start : start + _ROWS_AT_ONCE], encoder_ids)
            waiting = []
            for row in going_on:
                text = self._tokenizer.decode(row.new_ids, skip_special_tokens=True)
                secret = targets[row.target].secret
                if begins_with_secret(text, secret):
                    counts[row.target] = (counts[row.target] or 0) + 1
                elif may_become_secret(text, secret) and row.num_tokens < self._max_tokens:
                    waiting.append(row)
        return counts

    def _extend(self, rows: list[_Row], encoder_ids: NDArray[np.int64] | None) -> list[_Row]:
        """Append one token to each row, and leave out those that ended the text."""
        logits_BV = self._next_logits([row.prompt_ids + row.new_ids for row in rows], encoder_ids)
        for row, logits_V in zip(rows, logits_BV, strict=True):
            row.new_ids.append(_choose_token(logits_V, row.uniforms))
        return [row for row in rows if row.new_ids[-1] != self._tokenizer.eos_token_id]

    def _next_logits(self, ids: list[list[int]], encoder_ids: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """Logits of the next token of each row, float64[B, V]."""
        module: Any = self._module
        device = next(module.parameters()).device
        tokens = torch.tensor(ids, dtype=torch.int64, device=device)
        with torch.inference_mode():
            if encoder_ids is None:
                read, labels = tokens, None
            else:
                # The decoder reads labels moved one to the right, so a last label of any kind asks for the next token.
                read = torch.from_numpy(encoder_ids).to(device).expand(len(ids), -1)
                labels = torch.nn.functional.pad(tokens, (0, 1))
            output = module(input_ids=read, attention_mask=torch.ones_like(read), labels=labels, use_cache=False)
        logits: NDArray[np.float64] = output.logits[:, -1].to("cpu", torch.float64).numpy()
        return logits


def _streams(seed: int, prompt: int, num_samples: int | None) -> list[np.random.Generator | None]:
    if num_samples is None:
        return [None]
    return [np.random.default_rng([seed, prompt, sample]) for sample in range(num_samples)]


def _choose_token(logits_V: NDArray[np.float64], uniforms: np.random.Generator | None) -> int:
    """The most likely token, or one drawn at temperature 1 by inverting the cumulative distribution."""
    if uniforms is None:
        return int(logits_V.argmax())
    cumulative = np.exp(logits_V - logits_V.max()).cumsum()
    place = int(np.searchsorted(cumulative, uniforms.random() * cumulative[-1], side="right"))
    return min(place, len(logits_V) - 1)
