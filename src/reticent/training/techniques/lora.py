"""LoRA (arXiv 2106.09685), by PEFT."""

from typing import Any

from torch import nn

from reticent.models.sublayers import find_blocks, is_stored_transposed, select_paths
from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.peft_technique import PeftTechnique, task_type


class Lora(PeftTechnique):
    """Low-rank products beside linear modules, placed by structure."""

    peft_type = "LORA"
    settings_read = ("rank", "alpha", "dropout", "target_modules")
    can_train_privately = True

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """LoRA on the target modules of every block."""
        from peft import LoraConfig

        blocks = find_blocks(model)
        config = LoraConfig(
            task_type=task_type(model),
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=settings.dropout,
            target_modules=select_paths(blocks, settings.target_modules),
            fan_in_fan_out=is_stored_transposed(model, blocks),
        )
        module: nn.Module = self.add(model, config)
        return module
