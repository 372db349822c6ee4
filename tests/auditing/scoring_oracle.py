"""What a model says of one text, computed the plain way: one forward pass of the module, log-softmax in float64."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rounding import assert_possible_ranks
from tiny_models import BOS, byte_tokenizer
from tokenizers.processors import TemplateProcessing

from reticent.protocols import TokenSignals

TEXTS = (
    "a",
    "alpha beta",
    "gamma, delta and epsilon",
    "",
    "zeta",
    "eta theta",
    "Ω is four bytes of UTF-8: 🦉",
    "kappa",
)


def begin_tokenizer() -> Any:
    """A byte tokenizer that puts a beginning-of-text token before every text, as Llama's does."""
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return tokenizer


@dataclass(frozen=True)
class NaiveSignals(TokenSignals):
    """Signals with the logits that they were computed from, which say what rounding could do to a rank."""

    logits_NV: np.ndarray
    targets_N: np.ndarray


def naive_signals(logits_NV: torch.Tensor, targets_N: Sequence[int]) -> NaiveSignals:
    """The definitions over whole rows, float64."""
    log_p = logits_NV.double().log_softmax(1)
    p = log_p.exp()
    mu = (p * log_p).sum(1)
    index = torch.tensor(list(targets_N))[:, None]
    return NaiveSignals(
        logp=log_p.gather(1, index)[:, 0].numpy(),
        mu=mu.numpy(),
        sigma2=(p * (log_p - mu[:, None]) ** 2).sum(1).numpy(),
        entropy=-mu.numpy(),
        rank=(logits_NV > logits_NV.gather(1, index)).sum(1).numpy(),
        logits_NV=logits_NV.double().numpy(),
        targets_N=index[:, 0].numpy(),
    )


@torch.no_grad()
def naive_causal(module: Any, ids: Sequence[int], first_scored: int) -> NaiveSignals:
    """One causal text: row t − 1 of the last N rows predicts token t; everything is real, so everything is attended."""
    tokens = torch.tensor([list(ids)])
    logits = module(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, -len(ids) :]
    return naive_signals(logits[first_scored - 1 : -1], ids[first_scored:])


@torch.no_grad()
def naive_decoder(module: Any, encoder_ids: Sequence[int], labels: Sequence[int]) -> NaiveSignals:
    """One target of an encoder-decoder: the model shifts the labels itself."""
    source = torch.tensor([list(encoder_ids)])
    logits = module(
        input_ids=source, attention_mask=torch.ones_like(source), labels=torch.tensor([list(labels)])
    ).logits[0, -len(labels) :]
    return naive_signals(logits, labels)


def assert_same_values(found: TokenSignals | None, expected: TokenSignals | None, tolerance: float) -> None:
    """All but the ranks, which say nothing of how close two logits were."""
    assert found is not None
    assert expected is not None
    for name in ("logp", "mu", "sigma2", "entropy"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), rtol=tolerance, atol=tolerance, err_msg=name
        )


def assert_same_signals(found: TokenSignals | None, expected: NaiveSignals, tolerance: float = 1e-4) -> None:
    assert found is not None
    assert_same_values(found, expected, tolerance)
    assert_possible_ranks(found.rank, expected.logits_NV, expected.targets_N, tolerance)
