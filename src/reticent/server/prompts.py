"""From what clients send to token ids, and back.

Safe to use from several threads. Encoding long prompts takes time: call it off the event loop.
"""

import threading
from collections.abc import Collection, Sequence
from typing import Any, Final

from reticent import _validate
from reticent.decoding.detokenise import TextDecoder
from reticent.errors import InvalidValueError
from reticent.server.errors import ApiError
from reticent.server.messages import Message
from reticent.text.chats import chat_text
from reticent.text.end_tokens import end_tokens
from reticent.text.tokenise import encode_prompt

BYTES_PER_TOKEN: Final = 16
"""Longest prompt in bytes, for each token that fits: several times what any language takes on average."""


class Prompts:
    """A tokenizer, its chat template, and the lengths that fit.

    Args:
        tokenizer: as `transformers` builds it.
        vocab_size: number of token ids.
        context_length: most tokens of prompt and answer together.
        max_prompt_tokens: longest prompt, or None for what leaves room for one token.
        declared_ends: the model's own end tokens.

    Attributes:
        stop_tokens: all tokens that end an answer.
        decode: tokens to text, without special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        context_length: int,
        max_prompt_tokens: int | None,
        declared_ends: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._longest = min(max_prompt_tokens or context_length, context_length - 1)
        self._lock = threading.Lock()
        self.decode = TextDecoder(tokenizer)
        self.stop_tokens = end_tokens(tokenizer, declared_ends)

    @property
    def has_chat_template(self) -> bool:
        """True if the model can answer a conversation."""
        return bool(self._tokenizer.chat_template)

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt, given as text or as tokens.

        Raises:
            ApiError: it is too long or empty, or a token is not in the vocabulary.
        """
        if isinstance(prompt, str):
            self._check_bytes(prompt, "prompt")
            try:
                with self._lock:
                    tokens = encode_prompt(self._tokenizer, prompt)
            except InvalidValueError as error:
                raise ApiError(400, str(error), param="prompt") from None
        else:
            tokens = list(prompt)
        return self._check_tokens(tokens, "prompt")

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation, through the model's chat template, up to where the answer begins.

        Raises:
            ApiError: the model has no chat template, the template refuses the conversation, or it is too long.
        """
        if not self.has_chat_template:
            raise ApiError(
                400,
                "This model has no chat template, so it cannot take messages; use /v1/completions.",
                param="messages",
                code="no_chat_template",
            )
        self._check_bytes("".join(message.text for message in messages), "messages")
        conversation = [{"role": message.role, "content": message.text} for message in messages]
        try:
            with self._lock:
                text = chat_text(self._tokenizer, conversation, begins_answer=True)
                self._check_bytes(text, "messages")
                tokens: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001 - a template is foreign code; a traceback could quote the conversation
            raise ApiError(
                400, f"The model's chat template refuses these messages: {str(error)[:200]}", param="messages"
            ) from None
        if not tokens:
            raise ApiError(400, "These messages make an empty prompt.", param="messages")
        return self._check_tokens(tokens, "messages")

    def answer_length(self, prompt_length: int, asked: int | None, default: int) -> int:
        """Choose the largest number of tokens of an answer.

        Raises:
            ApiError: prompt and answer would not fit the context window.
        """
        room = self._context_length - prompt_length
        if asked is None:
            return min(default, room)
        if asked > room:
            raise ApiError(
                400,
                f"This model's context window holds {self._context_length} tokens, and {prompt_length + asked} were "
                f"asked for ({prompt_length} in the prompt, {asked} to be written). Shorten either.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return asked

    def _check_bytes(self, text: str, param: str) -> None:
        """Refuse what cannot fit by its size alone, before any of it is tokenised."""
        num_bytes, most = len(text.encode()), self._longest * BYTES_PER_TOKEN
        if num_bytes > most:
            raise ApiError(
                400,
                f"The prompt has {num_bytes} bytes, and at most {most} are read here, {BYTES_PER_TOKEN} for each of "
                f"the {self._longest} tokens that fit. Shorten it.",
                param=param,
                code="context_length_exceeded",
            )

    def _check_tokens(self, tokens: list[int], param: str) -> list[int]:
        if len(tokens) > self._longest:
            raise ApiError(
                400,
                f"The prompt has {len(tokens)} tokens, and at most {self._longest} are taken here. Shorten it.",
                param=param,
                code="context_length_exceeded",
            )
        try:
            _validate.in_vocabulary(tokens, self._vocab_size)
        except InvalidValueError as error:
            raise ApiError(400, str(error), param=param) from None
        return tokens
