"""Modules of a `transformers` model by role, with account of which parameters were read.

Nothing here knows a family: names come from `models.families`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError
from reticent.models.architecture import LinearGroup, LinearModule, Norm


class ModuleReader:
    """Finds modules by the names that their role may have, and records which parameters were read.

    Args:
        model: the model to read.
        supported: names of the families that can be read, for messages.
    """

    def __init__(self, model: nn.Module, supported: Sequence[str]) -> None:
        self.model = model
        self._supported = supported
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.used: set[int] = set()

    def refusal(self, reason: str) -> ModelError:
        """The error that this model cannot be read, with what can."""
        return ModelError(
            f"{type(self.model).__name__} cannot be evaluated as a batch of worlds: {reason}. "
            f"Families that can: {', '.join(self._supported)}"
        )

    def child(self, parent: Any, names: Sequence[str], role: str) -> Any:
        """The child module under the first of `names` that `parent` has.

        Raises:
            ModelError: it has none of them.
        """
        found = self.optional_child(parent, names)
        if found is None:
            raise self.refusal(f"{self.paths[id(parent)] or 'the model'} has no {role} ({' / '.join(names)})")
        return found

    @staticmethod
    def optional_child(parent: Any, names: Sequence[str]) -> Any:
        """The child module under the first of `names` that `parent` has, or None."""
        return next((getattr(parent, n) for n in names if getattr(parent, n, None) is not None), None)

    def take(self, parameter: Tensor | None) -> Tensor | None:
        """Detach a parameter and count it as read."""
        if parameter is None:
            return None
        self.used.add(id(parameter))
        return parameter.detach()

    def norm(self, module: nn.Module) -> Norm:
        """Read a normalisation.

        Raises:
            ModelError: it is neither layer nor root-mean-square normalisation.
        """
        weight = self.take(getattr(module, "weight", None))
        if isinstance(module, nn.LayerNorm):
            return Norm(weight, self.take(module.bias), module.eps, rms=False)
        eps: Any = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if not isinstance(eps, float) or getattr(module, "bias", None) is not None:
            raise self.refusal(f"{self.paths[id(module)]} is not a layer or root-mean-square normalisation")
        return Norm(weight, None, eps, rms=True)

    def linear(self, module: nn.Module) -> tuple[Tensor, Tensor | None, bool]:
        """Read weight [out, in] and bias, and whether the module stores its weight as [in, out].

        Raises:
            ModelError: it is not a linear module.
        """
        weight = self.take(getattr(module, "weight", None))
        if weight is None or weight.dim() != 2:
            raise self.refusal(f"{self.paths[id(module)]} is not a linear module")
        bias = self.take(getattr(module, "bias", None))
        if isinstance(module, nn.Linear):
            return weight, bias, False
        if type(module).__name__ == "Conv1D":
            return weight.t().contiguous(), bias, True
        raise self.refusal(f"{self.paths[id(module)]} is a {type(module).__name__}, not a linear module")

    def group(self, modules: Sequence[nn.Module]) -> LinearGroup:
        """Read linear modules that share an input as one group.

        Raises:
            ModelError: one is not linear, or only some have a bias.
        """
        parts = [self.linear(module) for module in modules]
        members, start = [], 0
        for module, (weight, _, transposed) in zip(modules, parts, strict=True):
            members.append(
                LinearModule(self.paths[id(module)], weight.shape[1], start, start + weight.shape[0], transposed)
            )
            start += weight.shape[0]
        if len(parts) == 1:
            return LinearGroup(tuple(members), parts[0][0], parts[0][1])
        biases = [bias for _, bias, _ in parts if bias is not None]
        if biases and len(biases) != len(parts):
            raise self.refusal(f"only some of {', '.join(m.path for m in members)} have a bias")
        return LinearGroup(
            tuple(members), torch.cat([weight for weight, _, _ in parts]), torch.cat(biases) if biases else None
        )

    def unread_parameters(self) -> list[str]:
        """Names of the parameters that were not read."""
        return [name for name, parameter in self.model.named_parameters() if id(parameter) not in self.used]
