"""Kept attention weights: the same gradients up to rounding, only where they gain, and never left behind."""

from typing import Any

import pytest
import torch
from tiny_models import build_tiny_model

from reticent.training.attention_gradients import keep_attention_weights

FAMILIES = ("llama", "gpt2", "opt", "gptj", "t5")
IDS = torch.tensor([[5, 9, 2, 7, 4, 1], [3, 8, 6, 2, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def gradient(model: Any) -> torch.Tensor:
    """All gradients of a padded batch's loss as one vector, float32."""
    labels = IDS.masked_fill(MASK == 0, -100)
    model.requires_grad_(requires_grad=True).zero_grad(set_to_none=True)
    model(input_ids=IDS, attention_mask=MASK, labels=labels).loss.backward()
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_as_near_to_the_exact_ones_as_those_of_fused_attention(family: str) -> None:
    exact = gradient(build_tiny_model(family).eval())
    model: Any = build_tiny_model(family, dtype=torch.bfloat16).eval()
    fused = gradient(model)
    with keep_attention_weights(model, 6):
        assert model.config._attn_implementation == "eager"
        kept = gradient(model)
    assert model.config._attn_implementation == "sdpa"
    assert torch.dist(kept, exact) <= 1.5 * torch.dist(fused, exact) + 1e-3 * exact.norm()
    assert torch.equal(gradient(model), fused)


def test_nothing_changes_in_float32_for_long_texts_or_without_fused_attention() -> None:
    exact: Any = build_tiny_model("llama")
    half: Any = build_tiny_model("llama", dtype=torch.bfloat16)
    with keep_attention_weights(exact, 6), keep_attention_weights(half, 513):
        assert exact.config._attn_implementation == half.config._attn_implementation == "sdpa"
    bloom: Any = build_tiny_model("bloom", dtype=torch.bfloat16)
    with keep_attention_weights(bloom, 6):
        assert bloom.config._attn_implementation == "eager"
    assert bloom.config._attn_implementation == "eager"


def test_an_error_within_leaves_the_model_as_it_was() -> None:
    model: Any = build_tiny_model("llama", dtype=torch.bfloat16)
    with pytest.raises(ZeroDivisionError), keep_attention_weights(model, 6):
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa"
