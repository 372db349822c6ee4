"""Prompt tuning (Lester et al. 2021), by PEFT: virtual tokens before the text, which begin as embeddings of words."""

from typing import Any

from torch import nn

from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.peft_technique import VirtualTokens, task_type, virtual_token_shape


class PromptTuning(VirtualTokens):
    """Trained embeddings before the text's."""

    peft_type = "PROMPT_TUNING"
    settings_read = ("prompt_tokens",)

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """As many virtual tokens as the settings say."""
        from peft import PromptTuningConfig

        config = PromptTuningConfig(
            task_type=task_type(model),
            num_virtual_tokens=settings.prompt_tokens,
            prompt_tuning_init="SAMPLE_VOCAB",
            **virtual_token_shape(model),
        )
        module: nn.Module = self.add(model, config)
        return module
