"""How many rows of logits are held at once, by hand."""

import pytest
import torch

from reticent.models.vocabulary_rows import rows_at_once


@pytest.mark.parametrize(
    ("num_rows", "vocab_size", "dtype", "expected"),
    [
        # 2^28 bytes hold 2^28 / (2^16 · 2) = 2,048 rows of 2^16 bfloat16 numbers, or 1,024 of float32.
        (4096, 1 << 16, torch.bfloat16, 2048),
        (4096, 1 << 16, torch.float32, 1024),
        (2049, 1 << 16, torch.bfloat16, 1025),
        (300, 1 << 16, torch.bfloat16, 300),
        (0, 1 << 16, torch.bfloat16, 1),
        (3, 1 << 28, torch.bfloat16, 1),
    ],
)
def test_parts_fit_and_are_as_equal_as_can_be(
    num_rows: int, vocab_size: int, dtype: torch.dtype, expected: int
) -> None:
    assert rows_at_once(num_rows, torch.empty(vocab_size, 1, dtype=dtype, device="meta")) == expected
