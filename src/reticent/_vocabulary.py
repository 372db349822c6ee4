"""How many rows meet a vocabulary head at once.

On a processor the product takes up to twice as long a row in chunks of 256 rows as in chunks of 2,048, for each chunk
lays out the whole head anew; and a chunk's logits are the largest tensor there is.
"""

from torch import Tensor

_LOGIT_BYTES = 1 << 28


def rows_at_once(head_VD: Tensor) -> int:
    """The number of rows whose logits fill 256 MiB in the head's type."""
    return max(1, _LOGIT_BYTES // (head_VD.shape[0] * head_VD.element_size()))
