"""P-tuning (arXiv 2103.10385), by PEFT: virtual tokens before the text, made by a small network while they train."""

from typing import Any

from torch import nn

from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.peft_technique import (
    VirtualTokens,
    embedding_width,
    task_type,
    virtual_token_shape,
)


class PTuning(VirtualTokens):
    """Virtual tokens from a network that is as wide as an embedding; the tokens alone are stored."""

    peft_type = "P_TUNING"
    settings_read = ("p_tuning_tokens",)

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """As many virtual tokens as the settings say."""
        from peft import PromptEncoderConfig

        config = PromptEncoderConfig(
            task_type=task_type(model),
            num_virtual_tokens=settings.p_tuning_tokens,
            encoder_hidden_size=embedding_width(model),
            **virtual_token_shape(model),
        )
        module: nn.Module = self.add(model, config)
        return module
