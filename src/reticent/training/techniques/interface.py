"""The interface of a technique: all that training, storing and auditing ask of one.

A technique is a stateless object. It turns a `transformers` model into an adapted module, which is called like the
model and whose logits end with one row for each token it was given. Only the technique's own parameters train. Every
method but `attach` and `load` takes a module that the technique is on.

A new technique is a file in this package with one class, a line in `registry.TECHNIQUES`, and its name, with sizes of
its own if it has any, in `training.settings`.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from reticent.training.settings import TechniqueSettings


class AdaptationTechnique(ABC):
    """One way to adapt a language model.

    Attributes:
        is_whole_model: it trains the model itself, so that what it stores needs no base.
        reads_demonstrations: it trains nothing and reads member texts before every text.
        can_train_privately: records can be clipped one by one while it trains.
        can_recompute_activations: activations may be computed again in the backward pass rather than kept.
        settings_read: names of the settings that it reads; the others are of other techniques.
    """

    is_whole_model: ClassVar[bool] = False
    reads_demonstrations: ClassVar[bool] = False
    can_train_privately: ClassVar[bool] = False
    can_recompute_activations: ClassVar[bool] = True
    settings_read: tuple[str, ...] = ()

    @abstractmethod
    def is_on(self, module: nn.Module) -> bool:
        """True if a module was made by this technique."""

    @abstractmethod
    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """Put new adapters on a model and freeze all else; draws from the global random state.

        Raises:
            ModelError: the model has parts that are not understood.
            InvalidValueError: the settings name what the model does not have, or the technique trains nothing.
        """

    @abstractmethod
    def load(self, base: Any, settings: TechniqueSettings, folder: Path) -> nn.Module:
        """Put on a base what `save` wrote.

        Raises:
            ModelError: the folder is missing or damaged, or fits neither base nor settings.
        """

    @abstractmethod
    def save(self, module: nn.Module, folder: Path) -> None:
        """Write what was trained into a folder that exists.

        Raises:
            StorageError: a file cannot be written.
        """

    @abstractmethod
    def detach(self, module: nn.Module) -> Any:
        """Take the technique off and return the base, which then computes what it did before, bit for bit.

        Raises:
            InvalidValueError: the technique changed the base itself.
        """

    @abstractmethod
    def disabled(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which the module computes what its base does, without virtual rows.

        Raises:
            InvalidValueError: there is no base beneath it.
        """

    @abstractmethod
    def base(self, module: nn.Module) -> Any:
        """The `transformers` model that the module was made from."""

    @abstractmethod
    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """The parameters that the technique adds and its forward pass reads, frozen or not."""

    def recompute_activations(self, module: nn.Module) -> None:
        """Compute activations again in the backward pass rather than keep them.

        Raises:
            ModelError: the technique does not survive that.
        """
        base: Any = module
        base.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})

    def num_virtual_rows(self, module: nn.Module) -> int:
        """Count the leading rows of the logits that belong to no token of the text."""
        return 0

    def positions_taken(self, module: nn.Module) -> int:
        """Count the positions of the context taken from the text (for T5, from the encoder's input)."""
        return 0

    def demonstration_ids(self, module: nn.Module) -> NDArray[np.int64]:
        """The tokens that a causal model reads before every text, int64[K]; none of most techniques."""
        return np.zeros(0, dtype=np.int64)
