"""Likelihoods of tokens under one fixed model, the yardstick for generated text and attacks.

Shape suffixes: N predicted tokens, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from reticent._validate import integer_in_range
from reticent.models.token_signals import signals_of_logits


@torch.inference_mode()
def token_log_probabilities(model: nn.Module, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Log p(tokens[n + 1] | tokens[0 … n]) under a causal model with its whole vocabulary, in nats, float64[N].

    Args:
        model: called as `transformers` causal models are; N = len(tokens) − 1.
        tokens: at least two.

    Raises:
        InvalidValueError: there is nothing to predict.
    """
    integer_in_range("number of tokens", len(tokens), 2)
    device = next(model.parameters()).device
    ids = torch.tensor([list(tokens)], device=device)
    logits_NV = model(input_ids=ids[:, :-1]).logits[0]
    return signals_of_logits(logits_NV, ids[0, 1:]).logp
