"""The chunked cross-entropy against torch's own, in value and gradient."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from reticent.training import loss as loss_module
from reticent.training.loss import chunked_cross_entropy

ROWS, HIDDEN, VOCABULARY = 23, 16, 61


def random_case(dtype: torch.dtype, bias: bool, seed: int = 0) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator).to(dtype)
    head = (0.5 * torch.randn(VOCABULARY, HIDDEN, generator=generator)).to(dtype)
    head_bias = torch.randn(VOCABULARY, generator=generator).to(dtype) if bias else None
    targets = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    return hidden, head, head_bias, targets, torch.rand(ROWS, generator=generator)


def by_torch(
    hidden: Tensor, head: Tensor, bias: Tensor | None, targets: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted loss, row losses and gradient in float64."""
    wide = hidden.detach().double().requires_grad_()
    logits = functional.linear(wide, head.double(), None if bias is None else bias.double())
    losses = functional.cross_entropy(logits, targets, reduction="none")
    total = (losses * weights.double()).sum()
    (gradient,) = torch.autograd.grad(total, wide)
    return total.detach(), losses.detach(), gradient


@pytest.mark.parametrize("rows_at_once", [1, 4, ROWS - 1, ROWS, 512])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_value_and_gradient_match_torch(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int, bias: bool, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr(loss_module, "rows_at_once", lambda _rows, _head: rows_at_once)
    hidden, head, head_bias, targets, weights = random_case(dtype, bias)
    hidden.requires_grad_()
    total, losses = chunked_cross_entropy(hidden, head, head_bias, targets, weights)
    (3.0 * total).backward()
    expected_total, expected_losses, expected_gradient = by_torch(hidden, head, head_bias, targets, weights)
    assert losses.dtype == torch.float32
    assert not losses.requires_grad
    torch.testing.assert_close(losses.double(), expected_losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(total.detach().double(), expected_total, rtol=tolerance, atol=tolerance)
    assert hidden.grad is not None
    assert hidden.grad.dtype == dtype
    error = (hidden.grad.double() - 3.0 * expected_gradient).norm() / (3.0 * expected_gradient).norm()
    assert error < tolerance


@pytest.mark.parametrize("margin", [5.0, 12.0, 17.0, 30.0, 60.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_sure_keep_a_small_loss_and_gradient(margin: float, dtype: torch.dtype) -> None:
    # The target leads by `margin`, so the loss is log(1 + (V - 1) e^-margin), far below what 1 - p can resolve.
    hidden = torch.ones(1, 1, dtype=dtype, requires_grad=True)
    head = torch.zeros(VOCABULARY, 1, dtype=dtype)
    head[7] = margin
    total, losses = chunked_cross_entropy(hidden, head, None, torch.tensor([7]), torch.ones(1))
    total.backward()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    miss = (VOCABULARY - 1) * math.exp(-margin) / (1 + (VOCABULARY - 1) * math.exp(-margin))
    assert losses.item() == pytest.approx(math.log1p((VOCABULARY - 1) * math.exp(-margin)), rel=tolerance)
    assert hidden.grad is not None
    assert hidden.grad.item() == pytest.approx(-margin * miss, rel=2 * tolerance)


@pytest.mark.parametrize("margin", [10.0, 40.0, 80.0])
def test_rows_that_are_wrong_have_the_full_loss_and_gradient(margin: float) -> None:
    hidden = torch.ones(1, 1, requires_grad=True)
    head = torch.zeros(VOCABULARY, 1)
    head[3] = margin
    total, losses = chunked_cross_entropy(hidden, head, None, torch.tensor([7]), torch.ones(1))
    total.backward()
    others = (VOCABULARY - 1) * math.exp(-margin)
    assert losses.item() == pytest.approx(margin + math.log1p(others), rel=1e-5)
    assert hidden.grad is not None
    assert hidden.grad.item() == pytest.approx(margin / (1 + others), rel=1e-5)


def test_a_hopeless_row_stays_finite() -> None:
    hidden = torch.ones(1, 1, requires_grad=True)
    head = torch.zeros(VOCABULARY, 1)
    head[3] = 500.0
    total, losses = chunked_cross_entropy(hidden, head, None, torch.tensor([7]), torch.ones(1))
    total.backward()
    assert 80.0 < losses.item() < math.inf
    assert hidden.grad is not None
    assert hidden.grad.item() == pytest.approx(500.0)
