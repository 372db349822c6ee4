"""Chunks of rows that meet a vocabulary head at once.

On a processor the loss of 4,096 rows takes about a fifth less time in chunks of 2,048 than of 256, and a chunk's logits
are the largest tensor there is.
"""

from torch import Tensor

_LOGIT_BYTES = 1 << 28


def rows_at_once(num_rows: int, head_VD: Tensor) -> int:
    """Split rows so that their logits, in the head's type, fit 256 MiB; the parts are as equal as can be."""
    most = max(1, _LOGIT_BYTES // (head_VD.shape[0] * head_VD.element_size()))
    num_parts = max(1, -(-num_rows // most))
    return max(1, -(-num_rows // num_parts))
