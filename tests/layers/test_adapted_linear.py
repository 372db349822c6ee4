"""Many-adapter linear layers against a loop over adapters, and where adapters may sit."""

from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, build_tiny_model
from torch import Tensor

from reticent.errors import InvalidValueError
from reticent.layers.adapted_linear import GroupAdapters, _bag_product, adapted_linear
from reticent.layers.adapters import StackedAdapters, first_adapted_layer, group_by_layer, select_modules
from reticent.models.architecture import LinearGroup, LinearModule
from reticent.models.families import read_architecture

NUM_ADAPTERS, TOKENS, IN_FEATURES = 3, 4, 5
WIDTHS = (4, 2, 3)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_group(adapted: tuple[int, ...], rank: int, scale: float, bias: bool) -> tuple[LinearGroup, GroupAdapters]:
    """Three modules of a group, adapters on some of them."""
    starts = [sum(WIDTHS[:i]) for i in range(len(WIDTHS))]
    modules = tuple(
        LinearModule(f"m{i}", IN_FEATURES, s, s + w) for i, (s, w) in enumerate(zip(starts, WIDTHS, strict=True))
    )
    weight = random(sum(WIDTHS), IN_FEATURES, seed=0)
    group = LinearGroup(modules, weight, random(sum(WIDTHS), seed=1) if bias else None)
    return group, GroupAdapters(
        down_MSI=random(NUM_ADAPTERS, rank * len(adapted), IN_FEATURES, seed=2),
        ups=tuple(random(NUM_ADAPTERS, WIDTHS[i], rank, seed=3 + i) for i in adapted),
        slices=tuple((starts[i], starts[i] + WIDTHS[i]) for i in adapted),
        scale=scale,
    )


def one_adapter_at_a_time(x_GNI: Tensor, group: LinearGroup, adapters: GroupAdapters, skip: int) -> Tensor:
    rank = adapters.ups[0].shape[2]
    rows = []
    for row in range(skip + NUM_ADAPTERS):
        x_NI = x_GNI[0 if len(x_GNI) == 1 else row]
        y_NO = x_NI @ group.weight_OI.T + (0 if group.bias_O is None else group.bias_O)
        if row >= skip:
            delta_OI = torch.zeros_like(group.weight_OI)
            for i, (first, last) in enumerate(adapters.slices):
                down_RI = adapters.down_MSI[row - skip, i * rank : (i + 1) * rank]
                delta_OI[first:last] = adapters.scale * adapters.ups[i][row - skip] @ down_RI
            y_NO = y_NO + x_NI @ delta_OI.T
        rows.append(y_NO)
    return torch.stack(rows)


CASES = [
    pytest.param((0,), 3, 1.0, 0, True, id="one-module"),
    pytest.param((0, 1, 2), 1, 2.0, 1, True, id="all-modules-rank1-public-row"),
    pytest.param((0, 2), 3, 0.25, 1, False, id="gap-between-modules-no-bias"),
    pytest.param((2,), 2, -1.5, 0, False, id="last-module-negative-scale"),
]


@pytest.mark.parametrize("shared_row", [False, True])
@pytest.mark.parametrize(("adapted", "rank", "scale", "skip", "bias"), CASES)
def test_batch_equals_one_adapter_at_a_time_in_value_and_gradient(
    adapted: tuple[int, ...], rank: int, scale: float, skip: int, bias: bool, shared_row: bool
) -> None:
    group, adapters = random_group(adapted, rank, scale, bias)
    x_GNI = random(1 if shared_row else skip + NUM_ADAPTERS, TOKENS, IN_FEATURES, seed=9)
    leaves = [t.requires_grad_() for t in (x_GNI, adapters.down_MSI, *adapters.ups)]

    computed = adapted_linear(x_GNI, group, adapters, skip)
    expected = one_adapter_at_a_time(x_GNI, group, adapters, skip)
    torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)

    direction = random(*expected.shape, seed=10)
    for ours, theirs in zip(
        torch.autograd.grad(computed, leaves, direction), torch.autograd.grad(expected, leaves, direction), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared_row", [False, True])
@pytest.mark.parametrize(("adapted", "rank", "scale", "skip", "bias"), CASES)
def test_gradients_agree_with_finite_differences(
    adapted: tuple[int, ...], rank: int, scale: float, skip: int, bias: bool, shared_row: bool
) -> None:
    group, adapters = random_group(adapted, rank, scale, bias)
    x_GNI = random(1 if shared_row else skip + NUM_ADAPTERS, TOKENS, IN_FEATURES, seed=9)

    def layer(x: Tensor, down: Tensor, *ups: Tensor) -> Tensor:
        return adapted_linear(x, group, GroupAdapters(down, ups, adapters.slices, scale), skip)

    leaves = [t.requires_grad_() for t in (x_GNI, adapters.down_MSI, *adapters.ups)]
    assert torch.autograd.gradcheck(layer, leaves)


def test_adapters_train_where_the_input_needs_no_gradient() -> None:
    group, adapters = random_group((0, 1), 2, 2.0, bias=True)
    x_GNI = random(NUM_ADAPTERS, TOKENS, IN_FEATURES, seed=9)
    leaves = [t.requires_grad_() for t in (adapters.down_MSI, *adapters.ups)]
    direction = random(NUM_ADAPTERS, TOKENS, sum(WIDTHS), seed=10)
    ours = torch.autograd.grad(adapted_linear(x_GNI, group, adapters, 0), leaves, direction)
    theirs = torch.autograd.grad(one_adapter_at_a_time(x_GNI, group, adapters, 0), leaves, direction)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_without_adapters_every_row_sees_the_bare_base() -> None:
    group, _ = random_group((0,), 1, 1.0, bias=True)
    x_GNI = random(2, TOKENS, IN_FEATURES, seed=9)
    assert group.bias_O is not None
    expected = x_GNI @ group.weight_OI.T + group.bias_O
    torch.testing.assert_close(adapted_linear(x_GNI, group, None, 1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared_row", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 16, 17])
@pytest.mark.parametrize(("adapted", "rank", "scale", "skip", "bias"), CASES)
def test_packed_adapters_are_the_same_adapters(
    adapted: tuple[int, ...], rank: int, scale: float, skip: int, bias: bool, tokens: int, shared_row: bool
) -> None:
    group, adapters = random_group(adapted, rank, scale, bias)
    x_GNI = random(1 if shared_row else skip + NUM_ADAPTERS, tokens, IN_FEATURES, seed=9)
    expected = one_adapter_at_a_time(x_GNI, group, adapters, skip)
    computed = adapted_linear(x_GNI, group, adapters.packed(), skip)
    torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 4])
def test_packed_adapters_in_bfloat16_round_once_a_product(tokens: int) -> None:
    table, weights = (
        random(NUM_ADAPTERS, 576, 24, seed=1).bfloat16(),
        random(NUM_ADAPTERS, tokens, 576, seed=2).bfloat16(),
    )
    exact = torch.bmm(weights.double(), table.double())
    # Sums in bfloat16 would be off by some 20 times as much.
    assert ((_bag_product(weights, table).double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-3).all()


def test_a_range_of_rows_is_the_batch_of_those_adapters() -> None:
    group, adapters = random_group((0, 2), 3, 2.0, bias=True)
    x_GNI = random(NUM_ADAPTERS, TOKENS, IN_FEATURES, seed=9)
    whole = adapted_linear(x_GNI, group, adapters, 0)
    part = adapters.packed().rows(slice(1, 3))
    torch.testing.assert_close(adapted_linear(x_GNI[1:], group, part, 0), whole[1:], rtol=1e-12, atol=1e-12)


def stacked(paths: tuple[str, ...] = ("a", "b")) -> StackedAdapters:
    return StackedAdapters(
        {path: random(4, 3, 5, seed=i) for i, path in enumerate(paths)},
        {path: random(4, 6, 3, seed=7 + i) for i, path in enumerate(paths)},
        alpha=6.0,
    )


def test_stacked_adapters_know_their_sizes_and_give_out_one_world() -> None:
    adapters = stacked()
    assert (adapters.num_adapters, adapters.rank, adapters.scale) == (4, 3, 2.0)
    one = adapters.one(2)
    assert one.num_adapters == 1
    assert one.alpha == adapters.alpha
    for path in ("a", "b"):
        assert torch.equal(one.down[path][0], adapters.down[path][2])
        assert torch.equal(one.up[path][0], adapters.up[path][2])


def test_stacked_adapters_change_type_without_touching_the_original() -> None:
    adapters = stacked()
    lower = adapters.to(torch.bfloat16, torch.device("cpu"))
    assert {t.dtype for t in (*lower.down.values(), *lower.up.values())} == {torch.bfloat16}
    assert torch.equal(lower.up["b"], adapters.up["b"].to(torch.bfloat16))
    assert adapters.down["a"].dtype == torch.float64


def architecture(family: str = "llama", **overrides: Any) -> Any:
    return read_architecture(build_tiny_model(family, **overrides))


ATTENTION = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qwen3": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gpt2": ["c_attn", "c_proj"],
    "opt": ["q_proj", "k_proj", "v_proj", "out_proj"],
    "bloom": ["query_key_value", "dense"],
    "gptj": ["q_proj", "k_proj", "v_proj", "out_proj"],
}
FEED_FORWARD = {
    "llama": ["gate_proj", "up_proj", "down_proj"],
    "qwen3": ["gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_fc", "c_proj"],
    "opt": ["fc1", "fc2"],
    "bloom": ["dense_h_to_4h", "dense_4h_to_h"],
    "gptj": ["fc_in", "fc_out"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_shorthands_name_the_modules_of_every_family_in_order(family: str) -> None:
    base = architecture(family, layers=2)
    attention = select_modules(base, ["attention"], None)
    assert [module.name for module in attention] == 2 * ATTENTION[family]
    everything = select_modules(base, ["all-linear"], None)
    assert [module.name for module in everything] == 2 * (ATTENTION[family] + FEED_FORWARD[family])
    assert len({module.path for module in everything}) == len(everything)


@pytest.mark.parametrize("family", FAMILIES)
def test_selected_paths_are_the_modules_of_the_model(family: str) -> None:
    model = build_tiny_model(family)
    named = dict(model.named_modules())
    for module in select_modules(read_architecture(model), ["all-linear"], None):
        weight = named[module.path].weight
        shape = (module.out_features, module.in_features)
        assert tuple(weight.shape) == (shape[::-1] if module.fan_in_fan_out else shape)


def test_names_and_top_layers_narrow_the_choice() -> None:
    base = architecture()
    paths = [module.path for module in select_modules(base, ["v_proj", "up_proj"], 2)]
    assert paths == [
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.mlp.up_proj",
        "model.layers.2.self_attn.v_proj",
        "model.layers.2.mlp.up_proj",
    ]
    mixed = select_modules(base, ["attention", "down_proj"], 1)
    assert [module.name for module in mixed] == [*ATTENTION["llama"], "down_proj"]


def test_an_unknown_module_name_lists_those_there_are() -> None:
    with pytest.raises(InvalidValueError, match=r"query.*down_proj, gate_proj, k_proj, o_proj.*'all-linear'"):
        select_modules(architecture(), ["q_proj", "query"], None)
    with pytest.raises(InvalidValueError, match="c_attn, c_fc, c_proj"):
        select_modules(architecture("gpt2"), [], None)


@pytest.mark.parametrize("count", [0, 4, -1])
def test_a_wrong_number_of_top_layers_is_named(count: int) -> None:
    with pytest.raises(InvalidValueError, match=rf"top:{count}: the base model has 3 layers"):
        select_modules(architecture(), ["attention"], count)


def test_the_lowest_adapted_layer_is_where_worlds_part() -> None:
    base = architecture()
    assert first_adapted_layer(base, ["model.layers.2.mlp.up_proj", "model.layers.1.self_attn.q_proj"]) == 1
    assert first_adapted_layer(base, [m.path for m in select_modules(base, ["all-linear"], 1)]) == 2
    with pytest.raises(InvalidValueError, match=r"no linear module 'model\.layers\.3\.mlp\.up_proj'"):
        first_adapted_layer(base, ["model.layers.0.mlp.up_proj", "model.layers.3.mlp.up_proj"])


def test_grouping_starts_at_the_lowest_adapted_layer_and_keeps_bare_groups_bare() -> None:
    base = architecture()
    modules = select_modules(base, ["k_proj", "down_proj"], 2)
    adapters = StackedAdapters(
        {m.path: random(4, 3, m.in_features, seed=i) for i, m in enumerate(modules)},
        {m.path: random(4, m.out_features, 3, seed=i) for i, m in enumerate(modules)},
        alpha=3.0,
    )
    layers = group_by_layer(base, adapters)
    assert len(layers) == 2
    for layer in layers:
        qkv, output, inner, outer = layer
        assert output is None
        assert inner is None
        assert qkv is not None
        assert outer is not None
        # Keys follow the 48 features of the queries; 2 key-value heads of 8.
        assert qkv.slices == ((48, 64),)
        assert outer.slices == ((0, 48),)
