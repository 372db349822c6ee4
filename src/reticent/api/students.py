"""Text from a distilled model: an ordinary model, without ledger, secret or charges."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reticent import _validate
from reticent.api.generation import StopReason
from reticent.api.settings import DTypeName, torch_dtype
from reticent.decoding.votes import Decoder
from reticent.distillation.card import DistilledFolder
from reticent.errors import InvalidValueError
from reticent.models.base import resolve_base_model
from reticent.text.end_tokens import end_tokens
from reticent.text.tokenise import encode_prompt
from reticent.training.techniques.registry import TECHNIQUES


@dataclass(frozen=True)
class StudentAnswer:
    """The text that a student wrote, the number of its tokens, and the reason for which it ended."""

    text: str
    num_tokens: int
    stopped_by: StopReason


class LoadedStudent:
    """A distilled model in memory.

    Attributes:
        distilled: the folder it is from.

    Raises:
        RunDirectoryError, ModelError: the folder is damaged, or its base is missing or another.
        InvalidValueError: there is no such device or type.
    """

    def __init__(self, folder: Path, *, model: str | None, dtype: DTypeName | None, device: str) -> None:
        self.distilled = DistilledFolder.open(folder)
        adapted = self.distilled.adapted
        # A whole model stands for itself; an adapter needs its base.
        whole = TECHNIQUES[adapted.technique].is_whole_model
        base = resolve_base_model(str(adapted.weights)) if whole else adapted.base(model)
        self._module: Any
        self._module, self._tokenizer = adapted.load(None if whole else base, torch_dtype(dtype), device)
        self._stop_tokens = end_tokens(self._tokenizer, base.declared_ends)

    @torch.inference_mode()
    def generate(
        self, prompt: str, *, max_tokens: int, decoder: Decoder, temperature: float, seed: int | None
    ) -> StudentAnswer:
        """Continue a prompt.

        Args:
            prompt: the text to continue.
            max_tokens: write at most this many tokens.
            decoder: `greedy` choices, or samples.
            temperature: of samples.
            seed: fixes samples; fresh unless given.

        Raises:
            InvalidValueError: a value is out of range, or the prompt leaves no room in the context window.
        """
        _validate.integer_in_range("max_tokens", max_tokens, 1)
        _validate.positive_finite("temperature", temperature)
        prompt_tokens = encode_prompt(self._tokenizer, prompt)
        context = getattr(self._module.config, "max_position_embeddings", None)
        room = max_tokens if context is None else context - len(prompt_tokens)
        if room < 1:
            raise InvalidValueError(f"the prompt has {len(prompt_tokens)} tokens and leaves no room in the context")
        written = self._write(prompt_tokens, min(max_tokens, room), decoder, temperature, seed)
        ended = bool(written) and written[-1] in self._stop_tokens
        text = self._tokenizer.decode(written[:-1] if ended else written)
        return StudentAnswer(text, len(written), StopReason.END_OF_TEXT if ended else StopReason.LENGTH)

    def _write(
        self, prompt_tokens: list[int], count: int, decoder: Decoder, temperature: float, seed: int | None
    ) -> list[int]:
        device = next(self._module.parameters()).device
        generator = torch.Generator(device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        read, cache, written = torch.tensor([prompt_tokens], device=device), None, []
        for _ in range(count):
            output = self._module(input_ids=read, cache=cache, use_cache=True)
            cache, logits_V = output.cache, output.logits[0, -1].float()
            if decoder is Decoder.GREEDY:
                token = int(logits_V.argmax())
            else:
                token = int(torch.multinomial((logits_V / temperature).softmax(-1), 1, generator=generator))
            written.append(token)
            if token in self._stop_tokens:
                break
            read = torch.tensor([[token]], device=device)
        return written
