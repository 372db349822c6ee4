"""The digest of what a base computes, to tell whether an adapted module with its adapter off computes the same.

Turning an adapter off gives the base only where the adapter left the base alone. Trained biases stay, initialisations
that take their part out of the weights (PiSSA, OLoRA) leave the rest, and repeated layers are still repeated.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from torch import nn

from reticent.auditing.targets.forward import ScoredSequence, TextForward, unwrap

_PROBE_TOKENS = 32
_HARMLESS_INITIALISATIONS = ("gaussian", "eva", "orthogonal")


@torch.inference_mode()
def base_digest(module: nn.Module, *, with_adapter: bool) -> str:
    """SHA-256 over the logits of a fixed sequence and over all input embeddings, to the bit.

    Every weight takes part in the logits but the embeddings of tokens outside of the sequence. Equal digests are equal
    models; unequal ones may be a difference in rounding alone.

    Args:
        module: a bare model, or an adapted one.
        with_adapter: False to take the adapter off first; a bare model has none.
    """
    forward = TextForward(module, with_adapter=with_adapter)
    length = min(_PROBE_TOKENS, forward.context_length or _PROBE_TOKENS)
    ids = np.linspace(0, forward.num_embeddings - 1, length).astype(np.int64)
    sequence = ScoredSequence(0, ids, np.arange(len(ids)) > 0, ids if forward.is_encoder_decoder else None)
    with forward.ready():
        logits = forward.next_token_logits(sequence)
    inner: Any = forward.inner
    digest = hashlib.sha256(b"reticent base 1\n")
    for tensor in (logits, unwrap(inner.get_input_embeddings()).weight):
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def can_have_changed_base(config: Any) -> bool:
    """True if PEFT's settings are of a kind that changes the base: for models in memory, whose base nobody has beside.

    Biases that train, layers that are repeated, and initialisations that take their part out of the weights.
    """
    initialisation = getattr(config, "init_lora_weights", True)
    return (
        getattr(config, "bias", "none") != "none"
        or bool(getattr(config, "layer_replication", None))
        or (isinstance(initialisation, str) and initialisation not in _HARMLESS_INITIALISATIONS)
    )
