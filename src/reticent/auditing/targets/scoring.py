"""One model over many texts: a length-bucketed forward pass, reduced at once to the signals of each token.

What is guaranteed:

* a text is encoded exactly as it was for training, through the template stored with the model;
* real tokens only are scored: never padding, never virtual tokens, never what precedes the text;
* the signals of a text do not depend on the texts beside it. Batches are padded on the right, where no real token of a
  causal model looks; what remains is the order in which matrix products sum: about 1e-6 nats in float32, and in
  bfloat16 the rounding of hidden states, some hundredths of a nat a token;
* adapters are applied as they were trained, never merged into the base.

The reference of a target is the same module with the adapter off (`with_adapter=False`): the base is in memory once.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import PeftModel
from torch import nn

from reticent._memory import keep_freed_memory
from reticent.auditing.targets.forward import Draw, ScoredSequence, TextForward, unwrap
from reticent.errors import InvalidValueError, ModelError
from reticent.protocols import TokenSignals
from reticent.text.template import EncodedText, TextTemplate, encode, padding_id

_ATTENDED_PER_TOKEN = 8
"""A batch behind a cached prefix attends to at most this many positions for each token of its allowance."""
_NO_IDS: NDArray[np.int64] = np.zeros(0, dtype=np.int64)


class ModelScorer:
    """Implements `reticent.protocols.Scorer` for any `transformers` model, adapted or not, causal or encoder-decoder.

    Not for several threads at once.

    Attributes:
        tokenizer, template: how texts are encoded.
        fingerprint: SHA-256 over the identity of the weights, the template, the type and whether the adapter is on.
        begin_ids: the beginning-of-text token that the tokenizer puts before a text, int64[0 or 1].
    """

    is_white_box = True

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any,
        template: TextTemplate,
        fingerprint: str,
        *,
        with_adapter: bool = True,
        batch_tokens: int = 2048,
    ) -> None:
        """Take a module into evaluation mode.

        Args:
            module: what `techniques.attach` or `load_technique` gave, or a bare model.
            tokenizer: the model's.
            template: what the module was trained with.
            fingerprint: identifies weights, adapter and tokenizer; see `model_fingerprint`.
            with_adapter: False to score with the base beneath the adapter.
            batch_tokens: tokens computed at once, padding included.

        Raises:
            ModelError: the module predicts no tokens, or its adapter is merged into the base.
            InvalidValueError: there is no adapter to switch off.
        """
        keep_freed_memory()
        self.tokenizer = tokenizer
        self.template = template
        self._forward = TextForward(module, with_adapter=with_adapter)
        self._batch_tokens = batch_tokens
        self._pad = padding_id(tokenizer, self._forward.num_embeddings)
        identity = (fingerprint, template.model_dump_json(), str(self._forward.dtype), str(with_adapter))
        self.fingerprint = hashlib.sha256("\n".join(("reticent scorer 1", *identity)).encode()).hexdigest()
        first = self.encode(["a"])[0].token_ids[:1]
        self.begin_ids = first[first == tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else _NO_IDS

    @property
    def is_encoder_decoder(self) -> bool:
        """True if texts are a decoder's targets."""
        return self._forward.is_encoder_decoder

    @property
    def dtype(self) -> torch.dtype:
        """The type the model computes in."""
        return self._forward.dtype

    @property
    def vocab_size(self) -> int:
        """Entries of a row of logits, V."""
        return self._forward.vocab_size

    @property
    def context_length(self) -> int | None:
        """The most tokens that a text may have together with a prefix; None where the model sets no limit."""
        return self._forward.context_length

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Texts as the model reads them.

        Raises:
            ModelError: the tokenizer gives a token that the model has no embedding for.
        """
        encoded = encode(self.tokenizer, self.template, texts, is_encoder_decoder=self.is_encoder_decoder)
        known = min(self._forward.num_embeddings, self.vocab_size)
        for text in encoded:
            both = (text.token_ids, _NO_IDS if text.input_ids is None else text.input_ids)
            highest = int(np.concatenate(both).max(initial=0))
            if highest >= known:
                raise ModelError(
                    f"the tokenizer gives token {highest}, and the model knows those below {known}: this is not the "
                    "tokenizer that it was trained with; put that one into the model's folder"
                )
        return encoded

    def score(self, texts: Sequence[str]) -> list[TokenSignals | None]:
        """The signals of each text, in order; None for a text of which no token is predicted.

        Raises:
            InvalidValueError: a text is longer than the model's context.
        """
        return self.score_encoded(self.encode(texts))

    @torch.inference_mode()
    def score_encoded(
        self, encoded: Sequence[EncodedText], prefix_ids: NDArray[np.int64] = _NO_IDS
    ) -> list[TokenSignals | None]:
        """The same for encoded texts, each behind a common prefix.

        The prefix is read once, and its keys and values serve every text. The same tokens are scored as without it,
        and none of the prefix. The tokenizer's beginning-of-text token goes before it.

        Args:
            encoded: what `encode` gave.
            prefix_ids: token ids without a beginning-of-text token, int64[P].

        Raises:
            InvalidValueError: prefix and text together are longer than the model's context.
        """
        result: list[TokenSignals | None] = [None] * len(encoded)
        with self._forward.ready():
            before = np.concatenate([self._forward.demonstration_ids, prefix_ids])
            sequences = [self._sequence(number, text, before) for number, text in enumerate(encoded)]
            sequences = [sequence for sequence in sequences if sequence.num_scored]
            self._check_length(sequences)
            # The last token before a text predicts the text's first, so it is read with the text.
            shared = self._forward.read_shared(
                np.concatenate([self.begin_ids, before])[:-1] if len(before) else _NO_IDS
            )
            for batch in self._batches(sequences, shared.num_tokens):
                signals = self._forward.signals(batch, shared, self._pad)
                for sequence, its_signals in zip(batch, signals, strict=True):
                    result[sequence.number] = its_signals
        return result

    @torch.inference_mode()
    def next_token_logits(self, text: EncodedText) -> NDArray[np.float32]:
        """The logits that predict each scored token of one text, float32[scored tokens, V]."""
        with self._forward.ready():
            logits = self._forward.next_token_logits(self._sequence(0, text, self._forward.demonstration_ids))
        result: NDArray[np.float32] = logits.float().cpu().numpy()
        return result

    @torch.inference_mode()
    def similarities(self, first_ids: NDArray[np.int64], second_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Cosines of pairs of tokens' input embeddings, the mean over the vocabulary taken off, float64[pairs].

        Equal tokens are at exactly 1; a token that is the mean itself is at 0 from every other.
        """
        inner: Any = self._forward.inner
        embeddings_VD = unwrap(inner.get_input_embeddings()).weight.float()
        centre_D = embeddings_VD.mean(dim=0)
        first, second = (
            embeddings_VD[torch.from_numpy(ids).to(embeddings_VD.device)] - centre_D for ids in (first_ids, second_ids)
        )
        cosines = torch.nn.functional.cosine_similarity(first, second).double().cpu().numpy()
        result: NDArray[np.float64] = np.where(first_ids == second_ids, 1.0, cosines)
        return result

    @torch.inference_mode()
    def continuations(self, beginnings: Sequence[EncodedText], draw: Draw, num_tokens: int) -> NDArray[np.int64]:
        """Continue beginnings of equal length, int64[B, num_tokens]; see `TextForward.continuations`."""
        before = self._forward.demonstration_ids
        ids_BT = np.stack([self._sequence(number, text, before).token_ids for number, text in enumerate(beginnings)])
        with self._forward.ready():
            return self._forward.continuations(ids_BT, [text.input_ids for text in beginnings], draw, num_tokens)

    def _sequence(self, number: int, text: EncodedText, before: NDArray[np.int64]) -> ScoredSequence:
        num_begin = len(self.begin_ids) if len(before) and len(text.token_ids) else 0
        ids = np.concatenate([text.token_ids[:num_begin], before, text.token_ids[num_begin:]])
        given = np.zeros(len(before), dtype=np.bool_)
        is_scored = np.concatenate([text.is_scored[:num_begin], given, text.is_scored[num_begin:]])
        return ScoredSequence(number, ids, is_scored, text.input_ids)

    def _check_length(self, sequences: Sequence[ScoredSequence]) -> None:
        limit = self.context_length
        longest = max((len(s.token_ids) for s in sequences), default=0) - len(self._forward.demonstration_ids)
        if limit is not None and longest > limit:
            raise InvalidValueError(
                f"a text of {longest} tokens, with what precedes it, does not fit the model's context of {limit}; "
                f"use a template with a lower max_tokens than {self.template.max_tokens}"
            )

    def _batches(self, sequences: Sequence[ScoredSequence], num_shared: int) -> Iterator[list[ScoredSequence]]:
        """Sequences of like length together, as many as the allowance of tokens holds, at least one."""
        batch: list[ScoredSequence] = []
        for sequence in sorted(sequences, key=lambda s: s.cost):
            cost = sequence.cost - num_shared
            rows = len(batch) + 1
            full = rows * cost > self._batch_tokens or rows * sequence.cost > _ATTENDED_PER_TOKEN * self._batch_tokens
            if batch and full:
                yield batch
                batch = []
            batch.append(sequence)
        if batch:
            yield batch


def model_fingerprint(module: nn.Module, tokenizer: Any) -> str:
    """SHA-256 over every parameter and buffer of a module, its configuration, its active adapters and its tokenizer.

    For modules in memory; where the files' hashes are known, those say the same for less.
    """
    digest = hashlib.sha256(b"reticent module 1\n")
    config: Any = module.config
    digest.update(f"{type(module).__name__} {config.to_json_string()}\n".encode())
    if isinstance(module, PeftModel):
        # Two adapters of equal weights compute different things: by their scale, and by which of them is on.
        for name in module.active_adapters:
            digest.update(f"{name} {sorted(module.peft_config[name].to_dict().items())!r}\n".encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
