"""(IA)^3 (arXiv 2205.05638), by PEFT: rescaled keys, values and feed-forward activations.

Where a model computes query, key and value in one projection, the query is rescaled with them.
"""

from typing import Any

from torch import nn

from reticent.models.sublayers import find_blocks, is_stored_transposed
from reticent.training.settings import TechniqueSettings
from reticent.training.techniques.peft_technique import PeftTechnique, task_type


class Ia3(PeftTechnique):
    """One factor for each feature of keys, values and feed-forward activations; ones at the start."""

    peft_type = "IA3"

    def attach(self, model: Any, settings: TechniqueSettings) -> nn.Module:
        """Factors in every block."""
        from peft import IA3Config

        blocks = find_blocks(model)
        feed_forward = [block.feed_forward.output for block in blocks]
        key_value = [path for block in blocks for part in block.attention for path in part.key_value]
        config = IA3Config(
            task_type=task_type(model),
            target_modules=key_value + feed_forward,
            feedforward_modules=feed_forward,
            fan_in_fan_out=is_stored_transposed(model, blocks),
        )
        module: nn.Module = self.add(model, config)
        return module
