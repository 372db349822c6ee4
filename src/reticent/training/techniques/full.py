"""Full fine-tuning: every parameter of the model trains, and the adapted module is the model itself."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import nn

from reticent.errors import InvalidValueError
from reticent.models.base import LanguageModel, quiet_transformers
from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.interface import AdaptationTechnique


class FullFineTuning(AdaptationTechnique):
    """Training of the whole model; any module that no other technique is on counts as one."""

    is_whole_model = True
    can_train_privately = True

    def is_on(self, module: nn.Module) -> bool:
        """True of every module: the registry asks the other techniques first."""
        return True

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """Let all parameters train."""
        module: nn.Module = model.requires_grad_(requires_grad=True)
        return module

    def load(self, base: Any, settings: TechniqueSettings, folder: Path) -> nn.Module:
        """A model beside the base, of its type and on its device."""
        module: nn.Module = LanguageModel(folder.name, folder).load(base.dtype).to(base.device)
        return module

    def save(self, module: nn.Module, folder: Path) -> None:
        """Write the model as `transformers` does."""
        whole: Any = module
        with quiet_transformers():
            whole.save_pretrained(folder)

    def detach(self, module: nn.Module) -> Any:
        """Refuse: training changed the base itself."""
        raise InvalidValueError("full fine-tuning cannot be taken off a model: load the base again")

    def disabled(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Refuse: there is no base beneath the model."""
        raise InvalidValueError("full fine-tuning cannot be switched off: load the base model beside it")

    def base(self, module: nn.Module) -> Any:
        """The module itself."""
        return module

    def parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """All parameters."""
        return list(module.parameters())
