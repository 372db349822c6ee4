"""Row-wise operations against torch's own, and their gradients against finite differences."""

import pytest
import torch
from torch.nn import functional

from reticent.layers.attention import biases_up_to, cached_attention, causal_attention
from reticent.models.pointwise import gated_silu, rms_norm, rotate_pairs


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("weight", [None, normal(7, seed=1)])
def test_rms_norm(weight):
    x = normal(3, 2, 7).requires_grad_()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), functional.rms_norm(x, (7,), weight, 1e-5))
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, weight, 1e-5), (x,))


def test_gated_silu():
    x = normal(3, 2, 10).requires_grad_()
    torch.testing.assert_close(gated_silu(x), functional.silu(x[..., :5]) * x[..., 5:])
    assert torch.autograd.gradcheck(gated_silu, (x,))


def test_half_precision_keeps_its_statistics_in_float32():
    x, weight = 300 * normal(4, 4096, dtype=torch.bfloat16), normal(4096, dtype=torch.bfloat16, seed=1)
    exact = functional.rms_norm(x.double(), (4096,), weight.double(), 1e-5)
    error = (rms_norm(x, weight, 1e-5).double() - exact).abs()
    # Two roundings to eight bits; a sum of squares in bfloat16 would be off by far more.
    assert (error <= 2.0**-7 * exact.abs() + 1e-9).all()


def test_rms_norm_leaves_its_input_and_the_gradient_it_gets_as_they_were():
    x, gradient = normal(3, 7, dtype=torch.float32).requires_grad_(), normal(3, 7, dtype=torch.float32, seed=1)
    before, gradient_before = x.detach().clone(), gradient.clone()
    rms_norm(x, None, 1e-5).backward(gradient)
    assert torch.equal(x, before)
    assert torch.equal(gradient, gradient_before)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotated_pairs_are_products_of_complex_numbers(interleaved):
    x = normal(2, 3, 4, 6).requires_grad_()
    angle = normal(3, 1, 3, seed=1)
    signed = torch.stack((-angle.sin(), angle.sin()), -1)
    cos = torch.stack((angle.cos(), angle.cos()), -1)
    # [..., pair, of the two] as the layout has it: side by side, or a half apart.
    cos, signed = ((t if interleaved else t.mT).flatten(-2) for t in (cos, signed))
    pairs = x.unflatten(-1, (3, 2)) if interleaved else x.unflatten(-1, (2, 3)).mT
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    expected = (turned if interleaved else turned.mT).flatten(-2)

    torch.testing.assert_close(rotate_pairs(x, cos, signed, interleaved=interleaved), expected)
    with torch.no_grad():
        torch.testing.assert_close(rotate_pairs(x, cos, signed, interleaved=interleaved), expected)
    assert torch.autograd.gradcheck(lambda x: rotate_pairs(x, cos, signed, interleaved=interleaved), (x,))


@pytest.mark.parametrize("with_biases", [False, True])
@pytest.mark.parametrize("num_queries", [1, 3, 6])
def test_attention_with_kept_weights_is_attention(num_queries, with_biases):
    heads, groups, keys = 4, 2, 6
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64) if with_biases else None
    query = normal(2, num_queries, heads, 5).requires_grad_()
    key, value = (
        normal(2, keys, groups, 5, seed=1).requires_grad_(),
        normal(2, keys, groups, 5, seed=2).requires_grad_(),
    )
    mixed = causal_attention(query, key, value, 0.3, slopes)

    expected = torch.empty_like(mixed)
    for text in range(2):
        for head in range(heads):
            for position in range(num_queries):
                visible = keys - num_queries + position + 1
                group = head // (heads // groups)
                scores = 0.3 * key[text, :visible, group] @ query[text, position, head]
                if slopes is not None:
                    scores = scores + slopes[head] * torch.arange(visible)
                expected[text, position, head] = scores.softmax(0) @ value[text, :visible, group]
    torch.testing.assert_close(mixed, expected)
    with torch.no_grad():
        torch.testing.assert_close(causal_attention(query, key, value, 0.3, slopes), expected)
    assert torch.autograd.gradcheck(lambda q, k, v: causal_attention(q, k, v, 0.3, slopes), (query, key, value))


@pytest.mark.parametrize("with_biases", [False, True])
def test_attention_over_a_roomy_cache_sees_no_later_position(with_biases):
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64) if with_biases else None
    query, key, value = normal(2, 1, 4, 5), normal(2, 6, 2, 5, seed=1), normal(2, 6, 2, 5, seed=2)
    biases = biases_up_to(torch.tensor([3]), 6, slopes, query.dtype)
    mixed = cached_attention(query, key, value, 0.3, biases)
    torch.testing.assert_close(mixed, causal_attention(query, key[:, :4], value[:, :4], 0.3, slopes))
