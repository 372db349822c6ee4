"""The audit's peer: signals as benchmarks of membership inference compute them, one text a forward pass, float32.

Every number comes from `transformers` and plain `torch` over whole logits, and attacks share them. The same functions
are the peer that is timed and the reference that is compared with.

Shape suffixes: T scored tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SIGNALS = ("logp", "mu", "sigma2", "entropy", "rank")
Ids = NDArray[np.int64]


@torch.no_grad()
def signals_of_text(model: Any, ids: Ids) -> NDArray[np.float64]:
    """Log p, μ, σ², entropy and rank of every token but the first, float64[5, T]."""
    tokens = torch.from_numpy(ids)[None]
    logits_TV = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    targets_T = tokens[0, 1:, None]
    log_p = logits_TV.log_softmax(-1)
    p = log_p.exp()
    mu = (p * log_p).sum(-1)
    sigma2 = (p * log_p.square()).sum(-1) - mu.square()
    rank = (logits_TV > logits_TV.gather(-1, targets_T)).sum(-1)
    table: NDArray[np.float64] = (
        torch.stack([log_p.gather(-1, targets_T)[:, 0], mu, sigma2, -mu, rank.float()]).double().numpy()
    )
    return table


@torch.no_grad()
def logp_behind_prefix(model: Any, prefix: Ids, ids: Ids) -> NDArray[np.float64]:
    """Log p of a text's tokens but the first, behind a prefix that is read with it, float64[T]."""
    tokens = torch.from_numpy(np.concatenate([prefix, ids]))[None]
    # A class that keeps all logits regardless has them cut here.
    logits_TV = model(input_ids=tokens, use_cache=False, logits_to_keep=len(ids)).logits[0, -len(ids) : -1]
    log_p = logits_TV.float().log_softmax(-1)
    text: NDArray[np.float64] = log_p.gather(-1, tokens[0, -len(ids) + 1 :, None])[:, 0].double().numpy()
    return text


def gradient_norm_of_text(model: Any, parameters: Sequence[torch.Tensor], ids: Ids) -> float:
    """The 2-norm of the gradient of a text's mean loss over some parameters."""
    tokens = torch.from_numpy(ids)[None]
    logits_TV = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits_TV, tokens[0, 1:])
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    squares = [float(p.grad.double().square().sum()) for p in parameters if p.grad is not None]
    return float(np.sqrt(sum(squares)))
