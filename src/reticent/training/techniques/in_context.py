"""In-context learning as a model: k demonstrations precede every text, and nothing is trained.

The demonstrations follow the beginning-of-text token, which occurs once, at the very start; each is closed by its own
end-of-text token. A causal model's logits then have one leading row for each demonstration token, as they have for the
virtual tokens of prompt tuning, and the last T rows belong to the T tokens of the text. An encoder-decoder reads the
demonstrations in its encoder, and its logits have no such rows.

Shape suffixes: B texts, T token positions, K demonstration tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reticent._files import atomic_write
from reticent.errors import InvalidValueError, ModelError
from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.interface import AdaptationTechnique
from reticent.training.wrapping import BaseWrapper

DEMONSTRATIONS_NAME = "demonstrations.npz"


class InContextModel(BaseWrapper):
    """A frozen base that reads demonstrations before each text.

    Attributes:
        demonstrations: token ids of each demonstration, without a beginning-of-text token.
        texts_begin: whether every text begins with that token, so that the demonstrations go behind it.
    """

    def __init__(self, base: Any, demonstrations: Sequence[NDArray[np.int64]], *, texts_begin: bool) -> None:
        """Put demonstrations before everything that `base` reads.

        Args:
            base: a `transformers` causal or encoder-decoder model.
            demonstrations: see above.
            texts_begin: see above; a property of the tokenizer, not of one text.

        Raises:
            InvalidValueError: there is no demonstration.
        """
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.texts_begin = texts_begin
        self.demonstrations = tuple(demonstrations)
        if not sum(len(ids) for ids in self.demonstrations):
            raise InvalidValueError("in-context learning needs at least one demonstration that is not empty")
        self.enabled = True
        joined = torch.from_numpy(np.concatenate(self.demonstrations))
        self.register_buffer("_prefix_K", joined.to(next(base.parameters()).device), persistent=False)

    @property
    def num_tokens(self) -> int:
        """K, the tokens of all demonstrations."""
        return len(self._prefix_K)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        """The base's forward on demonstrations and text.

        Args:
            input_ids: int64[B, T], padded on the right.
            attention_mask: int64[B, T], zero where padded; everything is read where it is absent.
            kwargs: handed to the base; `labels` of a causal model are widened over the demonstrations.
        """
        if not self.enabled:
            return self.base(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        prefix = self._prefix_K.expand(len(input_ids), -1)
        kept = int(self.texts_begin)
        if kwargs.get("labels") is not None and not self.base.config.is_encoder_decoder:
            kwargs["labels"] = _insert(kwargs["labels"], torch.full_like(prefix, -100), kept)
        return self.base(
            input_ids=_insert(input_ids, prefix, kept),
            attention_mask=_insert(attention_mask, torch.ones_like(prefix), kept),
            **kwargs,
        )

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Within this context the model reads no demonstrations."""
        self.enabled = False
        try:
            yield
        finally:
            self.enabled = True


def _insert(rows_BT: Tensor, inserted_BK: Tensor, position: int) -> Tensor:
    inserted = inserted_BK.to(rows_BT.dtype)
    return torch.cat([rows_BT[:, :position], inserted, rows_BT[:, position:]], dim=1)


def strip_begin_token(
    demonstrations: Sequence[NDArray[np.int64]], begin_id: int | None
) -> list[NDArray[np.int64]] | None:
    """Strip the beginning-of-text token that each demonstration begins with; None where not all of them do."""
    if begin_id is None or not all(len(ids) and ids[0] == begin_id for ids in demonstrations):
        return None
    return [ids[1:] for ids in demonstrations]


class InContextLearning(AdaptationTechnique):
    """Demonstrations before every text; no parameter is added and none trains."""

    reads_demonstrations = True

    def is_on(self, module: nn.Module) -> bool:
        """True if the module reads demonstrations."""
        return isinstance(module, InContextModel)

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """Refuse: see `attach_demonstrations` of the registry."""
        raise InvalidValueError("in-context learning attaches demonstrations, not parameters")

    def load(self, base: Any, settings: TechniqueSettings, folder: Path) -> nn.Module:
        """Put stored demonstrations before what `base` reads.

        Raises:
            ModelError: the file is missing or damaged, or a token is not in the base's vocabulary.
        """
        path = folder / DEMONSTRATIONS_NAME
        try:
            with np.load(path) as arrays:
                tokens, offsets, begin = arrays["tokens"], arrays["offsets"], bool(arrays["texts_begin"])
        except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
            raise ModelError(f"{path} holds no demonstrations: {error}") from None
        if not 0 <= tokens.min(initial=0) <= tokens.max(initial=0) < base.get_input_embeddings().num_embeddings:
            raise ModelError(f"{path} holds tokens that this base does not have; load it with the base it was made for")
        return InContextModel(base, np.split(tokens.astype(np.int64), offsets[1:-1]), texts_begin=begin)

    def save(self, module: nn.Module, folder: Path) -> None:
        """Write the demonstrations' token ids."""
        adapted = _in_context(module)
        offsets = np.cumsum([0, *(len(ids) for ids in adapted.demonstrations)], dtype=np.int64)

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez(
                    file,
                    tokens=np.concatenate(adapted.demonstrations),
                    offsets=offsets,
                    texts_begin=np.bool_(adapted.texts_begin),
                )

        atomic_write(folder / DEMONSTRATIONS_NAME, write)

    def detach(self, module: nn.Module) -> Any:
        """Return the base, which was never changed."""
        return _in_context(module).base

    def disabled(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which no demonstrations are read."""
        return _in_context(module).disabled()

    def base(self, module: nn.Module) -> Any:
        """The model that reads the demonstrations."""
        return _in_context(module).base

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """None: nothing trains."""
        return []

    def num_virtual_rows(self, module: nn.Module) -> int:
        """Count the demonstrations' tokens; an encoder-decoder reads them in its encoder, without rows."""
        return len(self.demonstration_ids(module))

    def positions_taken(self, module: nn.Module) -> int:
        """Count the demonstrations' tokens."""
        return _in_context(module).num_tokens

    def demonstration_ids(self, module: nn.Module) -> NDArray[np.int64]:
        """The tokens of all demonstrations; none of an encoder-decoder, whose encoder reads them."""
        adapted = _in_context(module)
        if adapted.base.config.is_encoder_decoder:
            return super().demonstration_ids(module)
        return np.concatenate(adapted.demonstrations)


def _in_context(module: nn.Module) -> InContextModel:
    assert isinstance(module, InContextModel)
    return module
