"""A model's vocabulary projection, kept apart from the model: what enters it is caught, and it is run elsewhere.

A batch of 8 texts of 256 tokens over 49,152 words has 400 MB of float32 logits. Whoever needs a loss or a few numbers a
token takes them from slices of rows, and the model's own forward pass projects no row at all. A probe makes sure that
nothing follows the projection, as in models that scale or cap their logits.

Shape suffixes: B texts, T positions, D hidden size, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
_HALF_TOLERANCE = 0.02


class VocabularyHead:
    """The projection of one `transformers`-style module.

    Not safe for concurrent threads: the projection is disabled while the model runs.
    """

    def __init__(self, module: nn.Module) -> None:
        """Find the projection.

        Raises:
            ModelError: the module has none, so it predicts no token.
        """
        self.projection: nn.Module = module.get_output_embeddings()  # type: ignore[operator]
        if self.projection is None:
            raise ModelError("this model has no vocabulary projection, so it has no next-token loss")

    @property
    def is_plain(self) -> bool:
        """True if the projection is a matrix product with `weight` and `bias` and nothing more."""
        return type(self.projection) is nn.Linear

    @property
    def weight(self) -> Tensor:
        """The matrix of a plain projection, [V, D]."""
        assert isinstance(self.projection, nn.Linear)
        return self.projection.weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of a plain projection, [V], or None."""
        assert isinstance(self.projection, nn.Linear)
        return self.projection.bias

    def inputs_of(self, forward: Callable[[], object]) -> Tensor:
        """Run a forward pass without projecting, and return what would have entered the projection, [B, T, D]."""
        caught: list[Tensor] = []

        def catch(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            caught.append(inputs[0])
            return (inputs[0][:, :0],)

        handle = self.projection.register_forward_pre_hook(catch)
        try:
            forward()
        finally:
            handle.remove()
        (hidden_BTD,) = caught
        return hidden_BTD

    @torch.no_grad()
    def is_last(self, logits_of: Callable[[], Tensor]) -> bool:
        """True if the logits of a forward pass are the projection's output and no more.

        Args:
            logits_of: computes the same logits [B, T, V] each time it is called.
        """
        expected = logits_of().float()
        found = self.projection(self.inputs_of(logits_of)).float()
        tolerance = _TOLERANCE.get(_dtype_of(self.projection), _HALF_TOLERANCE)
        if found.shape != expected.shape:
            return False
        return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def _dtype_of(module: nn.Module) -> Any:
    return next(module.parameters()).dtype
