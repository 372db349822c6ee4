"""A model around a base model, asked like the base for whatever it does not have itself."""

from typing import Any

from torch import nn


class BaseWrapper(nn.Module):
    """Holds a `transformers` model as `base`; configuration, generation and the like are the base's."""

    base: Any

    def __getattr__(self, name: str) -> Any:
        """An attribute of the wrapper, or else of the base."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)
