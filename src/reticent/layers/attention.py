"""Causal attention over whole texts and over cached ones, with grouped heads and linear biases where a model has them.

Shape suffixes: B texts or rows, Q queries, T keys, H heads, K key-value heads, C head dimension.
"""

import torch
from torch import Tensor
from torch.nn import functional

_LONGEST_MATERIALISED = 512
"""Up to this many keys, keeping the attention weights for the backward pass is several times faster on a processor than
recomputing them; beyond it their memory would grow with the square of the length."""
_MOST_GROUPED_QUERIES = 16
"""So few queries of grouped heads read the keys of their group together."""


def causal_attention(
    query_BQHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, scale: float, alibi_slopes_H: Tensor | None
) -> Tensor:
    """Attention of the last Q positions of a text over all T, none looking ahead; returns [B, Q, H, C].

    Args:
        query_BQHC: queries of the last Q of the T positions.
        key_BTKC: keys; head h reads key-value head h // (H / K).
        value_BTKC: values.
        scale: multiplies the products of queries and keys.
        alibi_slopes_H: slopes of linear biases (arXiv 2108.12409), or None.
    """
    num_queries, num_keys = query_BQHC.shape[1], key_BTKC.shape[1]
    if query_BQHC.requires_grad and num_keys <= _LONGEST_MATERIALISED:
        return _materialised_attention(query_BQHC, key_BTKC, value_BTKC, scale, alibi_slopes_H)
    bias = None
    if alibi_slopes_H is not None or 1 < num_queries < num_keys:
        bias = _causal_bias(num_queries, num_keys, alibi_slopes_H, query_BQHC)
    return _fused_attention(query_BQHC, key_BTKC, value_BTKC, scale, bias, is_causal=bias is None and num_queries > 1)


def biases_up_to(positions_Q: Tensor, num_keys: int, alibi_slopes_H: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Make the biases that `cached_attention` adds so that each query sees the keys up to its position, int64[Q].

    No shape and no host decision depends on the positions, so the step can be recorded once and replayed.

    Returns:
        [1, 1, Q, T], or with linear biases [1, H, Q, T].
    """
    return _biases(positions_Q[:, None], num_keys, alibi_slopes_H).to(dtype)


def cached_attention(query_BQHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, scale: float, bias: Tensor) -> Tensor:
    """Attention of some queries over a cache with room for later positions; see `biases_up_to`."""
    return _fused_attention(query_BQHC, key_BTKC, value_BTKC, scale, bias, is_causal=False)


def _fused_attention(
    query_BQHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, scale: float, bias: Tensor | None, *, is_causal: bool
) -> Tensor:
    num_heads, num_groups = query_BQHC.shape[2], key_BTKC.shape[2]
    if num_groups < num_heads and query_BQHC.shape[1] <= _MOST_GROUPED_QUERIES and not is_causal:
        return _grouped_attention(query_BQHC, key_BTKC, value_BTKC, scale, bias)
    return functional.scaled_dot_product_attention(
        query_BQHC.transpose(1, 2),
        key_BTKC.transpose(1, 2),
        value_BTKC.transpose(1, 2),
        attn_mask=bias,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=num_groups < num_heads,
    ).transpose(1, 2)


def _grouped_attention(
    query_BQHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, scale: float, bias: Tensor | None
) -> Tensor:
    """Fused attention for few queries: heads stand as further queries of their group, so that each key is read once."""
    batch, num_queries, num_heads, head_dim = query_BQHC.shape
    num_groups = key_BTKC.shape[2]
    group_size = num_heads // num_groups
    query_BKgQC = query_BQHC.reshape(batch, num_queries, num_groups, group_size, head_dim).permute(0, 2, 3, 1, 4)
    if bias is not None and num_queries * bias.shape[1] > 1:
        per_head = bias.expand(1, num_heads, num_queries, -1)
        bias = per_head.reshape(1, num_groups, group_size * num_queries, -1)
    mixed = functional.scaled_dot_product_attention(
        query_BKgQC.reshape(batch, num_groups, group_size * num_queries, head_dim),
        key_BTKC.transpose(1, 2),
        value_BTKC.transpose(1, 2),
        attn_mask=bias,
        scale=scale,
    )
    return mixed.view(batch, num_heads, num_queries, head_dim).transpose(1, 2)


def _causal_bias(num_queries: int, num_keys: int, alibi_slopes_H: Tensor | None, like: Tensor) -> Tensor:
    """`_biases` of the last queries of a text."""
    query_at = torch.arange(num_keys - num_queries, num_keys, device=like.device)[:, None]
    return _biases(query_at, num_keys, alibi_slopes_H).to(like.dtype)


def _biases(query_at: Tensor, num_keys: int, alibi_slopes_H: Tensor | None) -> Tensor:
    """Make the biases of scaled scores for queries at positions [Q, 1]: minus infinity ahead of each.

    Four dimensions, [1, 1, Q, T] or with linear biases [1, H, Q, T]: with three torch leaves its fused attention.
    """
    key_at = torch.arange(num_keys, device=query_at.device)
    bias = torch.zeros(1, 1, len(query_at), num_keys, device=query_at.device).masked_fill(key_at > query_at, -torch.inf)
    return bias if alibi_slopes_H is None else bias + alibi_slopes_H[:, None, None] * (key_at - query_at)


def _materialised_attention(
    query_BQHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, scale: float, alibi_slopes_H: Tensor | None
) -> Tensor:
    """The same as three batched products over texts × key-value heads; the heads of a group stand as more queries."""
    batch, num_queries, num_heads, head_dim = query_BQHC.shape
    num_keys, num_groups = key_BTKC.shape[1:3]
    grouped = (batch * num_groups, num_heads // num_groups * num_queries)
    query = query_BQHC.transpose(1, 2).reshape(*grouped, head_dim)
    key = key_BTKC.transpose(1, 2).reshape(batch * num_groups, num_keys, head_dim)
    value = value_BTKC.transpose(1, 2).reshape(batch * num_groups, num_keys, head_dim)
    bias = _causal_bias(num_queries, num_keys, alibi_slopes_H, query_BQHC)
    bias = bias.expand(batch, num_heads, num_queries, num_keys).reshape(*grouped, num_keys)
    weights = torch.baddbmm(bias, query, key.mT, alpha=scale).softmax(-1)
    mixed = torch.bmm(weights, value)
    return mixed.view(batch, num_heads, num_queries, head_dim).transpose(1, 2)
