"""Signals against float64 definitions, in every type and whatever the size of a slice."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from reticent.models import token_signals
from reticent.models.token_signals import (
    TokenSignals,
    log_probabilities_of_hidden,
    signals_of_hidden,
    signals_of_logits,
    split_signals,
)


def naive_signals(logits_TV: np.ndarray, targets_T: np.ndarray) -> TokenSignals:
    """The definitions, in float64, over whole rows."""
    log_p = log_softmax(logits_TV.astype(np.float64), axis=1)
    p = np.exp(log_p)
    mu = (p * log_p).sum(1)
    target = logits_TV[np.arange(len(targets_T)), targets_T]
    return TokenSignals(
        logp=log_p[np.arange(len(targets_T)), targets_T],
        mu=mu,
        sigma2=(p * (log_p - mu[:, None]) ** 2).sum(1),
        entropy=-mu,
        rank=(logits_TV > target[:, None]).sum(1),
    )


def assert_same(found: TokenSignals, expected: TokenSignals, tolerance: float) -> None:
    for name in ("logp", "mu", "sigma2", "entropy"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(found.rank, expected.rank)


def random_logits(rows: int, vocabulary: int, scale: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + vocabulary)
    logits = scale * torch.randn(rows, vocabulary, generator=generator)
    return logits, torch.randint(vocabulary, (rows,), generator=generator)


@pytest.mark.parametrize("slice_elements", [1, 700, 1 << 20])
def test_signals_follow_their_definitions(slice_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_signals, "_CACHED_ELEMENTS", slice_elements)
    logits, targets = random_logits(13, 301)
    before = logits.clone()
    found = signals_of_logits(logits, targets)
    assert_same(found, naive_signals(logits.numpy(), targets.numpy()), 2e-6)
    assert torch.equal(logits, before)
    assert found.logp.dtype == found.sigma2.dtype == np.float64
    assert found.rank.dtype == np.int64


def test_two_equal_logits_by_hand() -> None:
    signals = signals_of_logits(torch.tensor([[0.0, 0.0], [np.log(3.0), 0.0]]), torch.tensor([1, 1]))
    np.testing.assert_allclose(signals.logp, [np.log(0.5), np.log(0.25)], rtol=1e-6)
    np.testing.assert_allclose(signals.mu, [np.log(0.5), 0.75 * np.log(0.75) + 0.25 * np.log(0.25)], rtol=1e-6)
    # p (1 − p) (log p − log q)² for two outcomes.
    np.testing.assert_allclose(signals.sigma2, [0.0, 0.75 * 0.25 * np.log(3.0) ** 2], rtol=1e-6, atol=1e-12)
    assert signals.rank.tolist() == [0, 1]
    assert signals.top1_match.tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sigma_in_half_precision_is_not_negative(dtype: torch.dtype) -> None:
    """Equal logits, where Σ p log² p − μ² is 0, and in the model's own type whatever rounding makes of it."""
    logits, targets = torch.full((3, 199), 3.0, dtype=dtype), torch.tensor([0, 5, 198])
    found = signals_of_logits(logits, targets)
    assert (found.sigma2 >= 0).all()
    np.testing.assert_allclose(found.sigma2, naive_signals(logits.double().numpy(), targets.numpy()).sigma2, atol=1e-6)
    log_p = logits.log_softmax(1)
    p = log_p.exp()
    in_its_own_type = (p * log_p**2).sum(1) - (p * log_p).sum(1) ** 2
    if dtype in (torch.bfloat16, torch.float16):
        assert (in_its_own_type < -1e-3).any(), "the example must show the mistake"


def test_a_masked_vocabulary_entry_counts_as_impossible() -> None:
    logits, targets = random_logits(4, 20)
    targets.clamp_(max=18)
    masked = logits.clone()
    masked[:, 19] = -torch.inf
    assert_same(signals_of_logits(masked, targets), signals_of_logits(logits[:, :19], targets), 1e-6)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 30, 64])
def test_hidden_states_give_the_signals_of_their_logits(
    rows: int, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reticent.models.token_signals.rows_at_once", lambda _rows, _head: 30)
    generator = torch.Generator().manual_seed(rows)
    hidden, head = torch.randn(rows, 16, generator=generator), torch.randn(97, 16, generator=generator)
    bias = torch.randn(97, generator=generator) if with_bias else None
    targets = torch.randint(97, (rows,), generator=generator)
    logits = hidden.double() @ head.double().T + (0.0 if bias is None else bias.double())
    expected = naive_signals(logits.numpy(), targets.numpy())
    assert_same(signals_of_hidden(hidden, head, bias, targets), expected, 1e-5)
    logp = log_probabilities_of_hidden(hidden, head, bias, targets)
    np.testing.assert_allclose(logp.numpy(), expected.logp, rtol=1e-5, atol=1e-5)


def test_the_targets_own_logit_is_not_rounded_in_half_precision() -> None:
    generator = torch.Generator().manual_seed(3)
    hidden = (0.2 * torch.randn(200, 64, generator=generator)).bfloat16()
    head = torch.randn(503, 64, generator=generator).bfloat16()
    targets = torch.randint(503, (200,), generator=generator)
    exact = naive_signals((hidden.double() @ head.double().T).numpy(), targets.numpy()).logp
    rounded = signals_of_logits(hidden @ head.T, targets).logp
    found = signals_of_hidden(hidden, head, None, targets).logp
    assert np.abs(found - exact).mean() < 0.75 * np.abs(rounded - exact).mean()


def test_splitting_gives_each_text_its_own_rows() -> None:
    logits, targets = random_logits(5, 11)
    whole = signals_of_logits(logits, targets)
    first, nothing, last = split_signals(whole, [2, 0, 3])
    assert nothing is None
    assert first is not None
    assert last is not None
    np.testing.assert_array_equal(np.concatenate([first.logp, last.logp]), whole.logp)
    assert first.rank.base is None
