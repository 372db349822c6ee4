"""Sources of swaps for `neighbours`: a masked language model, or the audited model's own base.

Shape suffixes: R sets of places, K places, T tokens, V vocabulary.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from reticent.auditing.inputs.neighbours import Tokens, token_spans
from reticent.auditing.inputs.swappable import SwappableTokens
from reticent.auditing.targets.scoring import ModelScorer
from reticent.errors import ModelError
from reticent.models.base import resolve_base_model, usable_device
from reticent.text.template import EncodedText

_ROWS_AT_ONCE = 8
"""Few, since a row has logits of all its positions."""
_LONGEST = 512


class MaskedLm:
    """Proposes from both sides: all places of a neighbour are masked at once. Implements `NeighbourSource`.

    Attributes:
        name: for the report.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, fingerprint: str) -> None:
        """Take a masked language model.

        Raises:
            ModelError: the tokenizer has no mask token, or gives no character spans of tokens.
        """
        if tokenizer.mask_token_id is None:
            raise ModelError(f"{name} has no mask token, so it is no masked language model; name another with --mlm")
        self.name = name
        self.fingerprint = fingerprint
        self._model = model.eval()
        self._tokenizer = tokenizer
        self.swappable = SwappableTokens(tokenizer, model.config.vocab_size)
        # RoBERTa's positions start at 2, so its table has two rows more than it reads tokens.
        self._longest = min(_LONGEST, tokenizer.model_max_length, model.config.max_position_embeddings - 2)

    @classmethod
    def open(cls, name: str, device: str = "cpu") -> "MaskedLm":
        """Load one from a folder or by its hub id.

        Raises:
            ModelError: it cannot be read, or it is no masked language model.
        """
        from transformers import AutoModelForMaskedLM

        base = resolve_base_model(name)
        try:
            model, found = AutoModelForMaskedLM.from_pretrained(
                base.folder, local_files_only=True, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"{name} cannot be loaded as a masked language model: {error}") from None
        if found["missing_keys"]:
            raise ModelError(
                f"{name} lacks the weights that make a masked language model ({min(found['missing_keys'])}); "
                "name another with --mlm"
            )
        identity = "\n".join(("reticent masked model 1", base.content_hash, base.tokenizer_hash))
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        return cls(model.to(usable_device(device)), base.load_tokenizer(), name, fingerprint)

    def tokens(self, text: str) -> Tokens:
        """See `NeighbourSource`."""
        return token_spans(self._tokenizer, text, self._longest)

    @torch.inference_mode()
    def proposals(self, tokens: Tokens, places: Sequence[NDArray[np.int64]]) -> Iterator[NDArray[np.float32]]:
        """See `NeighbourSource`."""
        for start in range(0, len(places), _ROWS_AT_ONCE):
            chosen = places[start : start + _ROWS_AT_ONCE]
            ids_RT = torch.from_numpy(tokens.ids).repeat(len(chosen), 1).to(self._model.device)
            for row, at in zip(ids_RT, chosen, strict=True):
                row[torch.from_numpy(at)] = self._tokenizer.mask_token_id
            logits_RTV = self._model(input_ids=ids_RT).logits
            for logits_TV, at in zip(logits_RTV, chosen, strict=True):
                yield logits_TV[torch.from_numpy(at)].float().cpu().numpy()


class BaseResampler:
    """Proposes from what precedes a token in the original text. Implements `NeighbourSource`.

    Attributes:
        name: for the report.
    """

    name = "the target's own base, by resampling tokens"

    def __init__(self, scorer: ModelScorer) -> None:
        """Take the base as a scorer.

        Raises:
            ModelError: the tokenizer gives no character spans of tokens.
        """
        self._scorer = scorer
        self.fingerprint = scorer.fingerprint
        self.swappable = SwappableTokens(scorer.tokenizer, scorer.vocab_size)
        (empty,) = scorer.encode([""])
        self._encoder_ids = empty.input_ids

    def tokens(self, text: str) -> Tokens:
        """See `NeighbourSource`. The first token has nothing to its left, unless the decoder has a start token."""
        limit = self._scorer.template.max_tokens
        tokens = token_spans(self._scorer.tokenizer, text, min(limit, self._scorer.context_length or limit))
        return Tokens(tokens.ids, tokens.spans, first=0 if self._scorer.is_encoder_decoder else 1)

    def proposals(self, tokens: Tokens, places: Sequence[NDArray[np.int64]]) -> Iterator[NDArray[np.float32]]:
        """See `NeighbourSource`."""
        text = EncodedText.scored_from(tokens.first, tokens.ids, self._encoder_ids, truncated=False)
        logits_TV = self._scorer.next_token_logits(text)
        for at in places:
            yield logits_TV[at - tokens.first]
