"""Attention whose backward pass is quick in half precision on a processor.

PyTorch's fused attention computes its weights a second time on the way back, and in bfloat16 on a processor this takes
a third of a backward pass over short texts. Kept weights cost memory that grows with the square of the length.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

_FUSED, _PLAIN = "sdpa", "eager"
_LONGEST_KEPT = 512
"""Tokens of a text up to which attention weights are kept."""


@contextmanager
def keep_attention_weights(module: nn.Module, longest: int) -> Iterator[None]:
    """Within this context a model in half precision on a processor keeps attention weights for its backward pass.

    The same attention up to rounding. Models that are on another device, in float32 or that know no fused attention
    stay as they are.

    Args:
        module: holds the model, as it is or within adapters.
        longest: tokens of the longest text to come, virtual tokens included; longer than 512, nothing changes.
    """
    model = next((part for part in module.modules() if isinstance(part, PreTrainedModel)), None)
    if model is None or longest > _LONGEST_KEPT or not _has_slow_backward(model):
        yield
        return
    model.set_attn_implementation(_PLAIN)
    try:
        yield
    finally:
        model.set_attn_implementation(_FUSED)


def _has_slow_backward(model: PreTrainedModel) -> bool:
    is_half = model.dtype in (torch.bfloat16, torch.float16)
    return is_half and model.device.type == "cpu" and model.config._attn_implementation == _FUSED
