"""From a model's logits to what the audit keeps of them: five numbers a token, in a few passes over the vocabulary.

With l the logits less their largest, Z = Σ eˡ, a = Σ eˡ l / Z and b = Σ eˡ l² / Z:

    log p(x) = l_x − log Z        μ = Σ p log p = a − log Z        σ² = Σ p log² p − μ² = b − a²

The statistics are float32 (float64 from float64 logits) whatever type the model computes in, so that σ² does not turn
negative by rounding; the last trace of rounding is clamped. Only a slice of rows is ever held in that type: it stays in
the processor's cache, and memory does not grow with texts times vocabulary.

Shape suffixes: T scored tokens, D hidden size, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from reticent.models.vocabulary_rows import rows_at_once
from reticent.protocols import TokenSignals

__all__ = ["TokenSignals", "log_probabilities_of_hidden", "signals_of_hidden", "signals_of_logits", "split_signals"]

_CACHED_ELEMENTS = 1 << 19
"""Entries of logits whose statistics are computed together: few enough to stay in cache."""
_NEGLIGIBLE = -80.0
"""Logits this far below the largest weigh nothing; cut there, no product meets infinity or a subnormal number."""


def signals_of_logits(logits_TV: Tensor, targets_T: Tensor) -> TokenSignals:
    """The signals of tokens from the logits that predict them.

    Args:
        logits_TV: [T, V] of any floating-point type; row t predicts `targets_T[t]`. Not changed.
        targets_T: int64[T] on the same device.
    """
    return _collect(_slice_statistics(*part) for part in _slices(logits_TV, targets_T, None))


def signals_of_hidden(
    hidden_TD: Tensor, head_VD: Tensor, head_bias_V: Tensor | None, targets_T: Tensor
) -> TokenSignals:
    """The same from final hidden states and the vocabulary head, whose logits exist a slice of rows at a time.

    In a half-precision model the target's own logit is computed in float32: its rounding would be the largest part of
    the error of log p, where those of the other logits average out.

    Args:
        hidden_TD: what the head multiplies, [T, D].
        head_VD: the head's weight, [V, D].
        head_bias_V: its bias, [V], or None.
        targets_T: int64[T] on the same device.
    """
    return _collect(_slice_statistics(*part) for part in _slices_of_hidden(hidden_TD, head_VD, head_bias_V, targets_T))


def log_probabilities_of_hidden(
    hidden_TD: Tensor, head_VD: Tensor, head_bias_V: Tensor | None, targets_T: Tensor
) -> Tensor:
    """Only log p of each target, in nats, float32[T] or wider, from what `signals_of_hidden` takes."""
    parts = [
        (logits.gather(1, index) - logits.logsumexp(1, keepdim=True))[:, 0]
        for logits, index in _slices_of_hidden(hidden_TD, head_VD, head_bias_V, targets_T)
    ]
    return torch.cat(parts) if parts else hidden_TD.new_zeros(0, dtype=torch.float32)


def split_signals(stacked: TokenSignals, counts: Sequence[int]) -> list[TokenSignals | None]:
    """Cut the signals of many texts, laid end to end, into one a text; None for a text of no scored token."""
    parts: list[TokenSignals | None] = []
    end = 0
    for count in counts:
        start, end = end, end + count
        parts.append(_cut(stacked, slice(start, end)) if count else None)
    return parts


def _slices_of_hidden(
    hidden_TD: Tensor, head_VD: Tensor, head_bias_V: Tensor | None, targets_T: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    is_half = hidden_TD.dtype.itemsize < torch.float32.itemsize
    size = rows_at_once(len(hidden_TD), head_VD)
    for hidden, targets in zip(torch.split(hidden_TD, size), torch.split(targets_T, size), strict=True):
        exact_R = None
        if is_half:
            exact_R = (hidden.float() * head_VD[targets].float()).sum(1)
            if head_bias_V is not None:
                exact_R += head_bias_V[targets]
        yield from _slices(functional.linear(hidden, head_VD, head_bias_V), targets, exact_R)


def _slices(logits_RV: Tensor, targets_R: Tensor, exact_R: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time: a wide copy of their logits, with `exact_R` as the targets' own, [r, V]; targets, [r, 1]."""
    wide = torch.promote_types(logits_RV.dtype, torch.float32)
    size = max(1, _CACHED_ELEMENTS // logits_RV.shape[1])
    for start in range(0, len(logits_RV), size):
        rows = slice(start, start + size)
        logits, index = logits_RV[rows].to(wide, copy=True), targets_R[rows, None]
        if exact_R is not None:
            logits.scatter_(1, index, exact_R[rows, None])
        yield logits, index


def _slice_statistics(logits_RV: Tensor, index_R1: Tensor) -> Tensor:
    """[4, R] of log p, μ, σ² and rank; overwrites the logits."""
    target = logits_RV.gather(1, index_R1)
    weights = torch.empty_like(logits_RV)
    # As numbers rather than truth values: their sum is exact below 2²⁴ and several times faster.
    rank = torch.gt(logits_RV, target, out=weights).sum(1)
    largest = logits_RV.amax(1, keepdim=True)
    logits_RV.sub_(largest).clamp_(min=_NEGLIGIBLE)
    torch.exp(logits_RV, out=weights)
    total = weights.sum(1)
    first = weights.mul_(logits_RV).sum(1) / total
    second = weights.mul_(logits_RV).sum(1) / total
    log_total = total.log()
    logp = (target - largest)[:, 0] - log_total
    return torch.stack([logp, first - log_total, (second - first.square()).clamp_(min=0.0), rank])


def _collect(parts: Iterable[Tensor]) -> TokenSignals:
    rows = list(parts)
    logp, mu, sigma2, rank = torch.cat(rows, dim=1).double().cpu().numpy() if rows else np.zeros((4, 0))
    return TokenSignals(logp, mu, sigma2, -mu, rank.astype(np.int64))


def _cut(signals: TokenSignals, rows: slice) -> TokenSignals:
    """A part that keeps none of the rest in memory."""
    return TokenSignals(
        signals.logp[rows].copy(),
        signals.mu[rows].copy(),
        signals.sigma2[rows].copy(),
        signals.entropy[rows].copy(),
        signals.rank[rows].copy(),
    )
