"""Bottleneck adapters: where they sit, what they compute, and that they leave nothing behind."""

import copy

import pytest
import torch
from tiny_models import ADAPTABLE_FAMILIES, FAMILIES, build_tiny_model
from torch import nn

from reticent.errors import InvalidValueError, ModelError
from reticent.layers.adapters import select_modules
from reticent.models.families import read_architecture
from reticent.models.sublayers import find_blocks, select_paths
from reticent.training.techniques.bottleneck import Bottleneck, BottleneckModel, Placement
from reticent.training.techniques.registry import enable_gradient_checkpointing

IDS = torch.tensor([[1, 2, 3, 7, 9], [4, 5, 6, 8, 2]])
CONTAINERS = {"llama": "mlp", "gpt2": "mlp", "gptj": "mlp", "bloom": "mlp", "t5": "DenseReluDense"}


def logits(model):
    inputs = {"input_ids": IDS, "use_cache": False}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = IDS.flip(1)
    return model(**inputs).logits


def randomised(adapted, seed=5):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapted.adapters.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return adapted


def naive(weights, path, x):
    """The adapter's own formula, on its stored weights."""
    down, up = (weights[f"{path}.{part}.weight"] for part in ("down", "up"))
    return torch.relu(x @ down.T + weights[f"{path}.down.bias"]) @ up.T + weights[f"{path}.up.bias"]


class After(nn.Module):
    """A module that takes the place of another and adapts what that one gives."""

    def __init__(self, inner, adapter):
        super().__init__()
        self.inner, self.adapter = inner, adapter
        self.weight = inner.weight

    def forward(self, x):
        output = self.inner(x)
        return output + self.adapter(output)


class Beside(nn.Module):
    """A feed-forward part that takes the place of another and adds what is made of its input."""

    def __init__(self, inner, adapter, scale):
        super().__init__()
        self.inner, self.adapter, self.scale = inner, adapter, scale

    def forward(self, x, *residual):
        return self.inner(x, *residual) + self.scale * self.adapter(x)


def replace(model, path, module):
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def paths_with(model, endings):
    return [path for path, _ in model.named_modules() if path.endswith(endings)]


@pytest.mark.parametrize("family", ADAPTABLE_FAMILIES)
@pytest.mark.parametrize("placement", Placement)
@torch.no_grad()
def test_an_adapted_model_starts_as_its_base_and_ends_as_it(family, placement):
    base = build_tiny_model(family, layers=2)
    before, names = logits(base), [name for name, _ in base.named_modules()]
    adapted = BottleneckModel(base, placement, width=5, scale=4.0)
    assert torch.equal(logits(adapted), before)
    randomised(adapted)
    assert not torch.allclose(logits(adapted), before, atol=1e-3)
    with adapted.disabled():
        assert torch.equal(logits(adapted), before)
    restored = adapted.remove()
    assert restored is base
    assert torch.equal(logits(restored), before)
    assert [name for name, _ in base.named_modules()] == names
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.modules())


@pytest.mark.parametrize(
    ("family", "attention", "feed_forward"),
    [
        ("llama", ".self_attn.o_proj", ".down_proj"),
        ("gpt2", ".attn.c_proj", ".mlp.c_proj"),
        ("opt", ".out_proj", ".fc2"),
        ("bloom", ".dense", ".dense_4h_to_h"),
        ("gptj", ".out_proj", ".fc_out"),
        ("t5", ".SelfAttention.o", ".wo"),
    ],
)
@pytest.mark.parametrize("placement", [Placement.HOULSBY, Placement.PFEIFFER])
@torch.no_grad()
def test_sequential_adapters_equal_modules_that_take_the_places_of_projections(
    family, attention, feed_forward, placement
):
    adapted = randomised(BottleneckModel(build_tiny_model(family, layers=2), placement, width=5))
    weights = adapted.adapter_tensors()
    by_hand = build_tiny_model(family, layers=2)
    endings = (attention, feed_forward) if placement is Placement.HOULSBY else (feed_forward,)
    places = paths_with(by_hand, endings)
    for path in places:
        replace(by_hand, path, After(by_hand.get_submodule(path), lambda x, path=path: naive(weights, path, x)))
    assert {name.rpartition(".")[0].rpartition(".")[0] for name in weights} == set(places)
    torch.testing.assert_close(logits(adapted), logits(by_hand), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", CONTAINERS)
@torch.no_grad()
def test_a_parallel_adapter_equals_a_part_beside_the_feed_forward_part(family):
    adapted = randomised(BottleneckModel(build_tiny_model(family, layers=2), Placement.PARALLEL, width=5, scale=3.0))
    weights = adapted.adapter_tensors()
    by_hand = build_tiny_model(family, layers=2)
    containers = paths_with(by_hand, f".{CONTAINERS[family]}")
    writes = [writes for _, writes in adapted.places]
    for path, place in zip(containers, writes, strict=True):
        part = Beside(by_hand.get_submodule(path), lambda x, place=place: naive(weights, place, x), 3.0)
        replace(by_hand, path, part)
    torch.testing.assert_close(logits(adapted), logits(by_hand), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_parallel_adapter_reads_opts_second_normalisation():
    """OPT has no module around its feed-forward part, so the first projection's input is computed here."""
    base = build_tiny_model("opt", layers=1)
    adapted = randomised(BottleneckModel(base, Placement.PARALLEL, width=5, scale=2.0))
    seen = {}
    block = base.model.decoder.layers[0]
    handles = [
        block.final_layer_norm.register_forward_hook(lambda _m, _i, out: seen.update(read=out)),
        block.register_forward_hook(lambda _m, _i, out: seen.update(written=out)),
    ]
    logits(adapted)
    with_adapter = dict(seen)
    with adapted.disabled():
        logits(adapted)
    for handle in handles:
        handle.remove()
    expected = 2.0 * naive(adapted.adapter_tensors(), "model.decoder.layers.0.fc2", seen["read"])
    added = with_adapter["written"] - seen["written"]
    torch.testing.assert_close(added.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("placement", Placement)
def test_recomputed_activations_give_the_same_gradients(family, placement):
    gradients = []
    for recompute in (False, True):
        adapted = randomised(BottleneckModel(build_tiny_model(family, layers=2), placement, width=5)).train()
        if recompute:
            enable_gradient_checkpointing(adapted)
        adapted(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        gradients.append([parameter.grad for parameter in adapted.adapters.parameters()])
        assert all(parameter.grad is None for parameter in adapted.base.parameters())
    assert all(gradient is not None and gradient.any() for gradient in gradients[0])
    for kept, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(kept, recomputed, rtol=1e-5, atol=1e-7)


@torch.no_grad()
def test_adapters_of_a_half_precision_base_are_single_precision():
    base = build_tiny_model("llama", layers=2, dtype=torch.bfloat16)
    adapted = randomised(BottleneckModel(base, Placement.HOULSBY, width=5))
    assert {parameter.dtype for parameter in adapted.adapters.parameters()} == {torch.float32}
    assert logits(adapted).dtype == torch.bfloat16


@torch.no_grad()
def test_a_copy_has_adapters_of_its_own():
    adapted = randomised(BottleneckModel(build_tiny_model("llama", layers=2), Placement.PFEIFFER, width=5))
    before = logits(adapted)
    twin = copy.deepcopy(adapted)
    randomised(adapted, seed=6)
    assert torch.equal(logits(twin), before)
    assert not torch.allclose(logits(adapted), before, atol=1e-3)


def test_dropout_acts_on_the_input_while_training():
    adapter = Bottleneck(8, 4, 1.0, dropout=0.5)
    nn.init.normal_(adapter.up.weight)
    x = torch.ones(3, 8)
    assert torch.equal(adapter.eval()(x), adapter(x))
    assert not torch.equal(adapter.train()(x), adapter(x))


def test_weights_that_do_not_fit_are_refused_by_name():
    small = BottleneckModel(build_tiny_model("llama", layers=2), Placement.PFEIFFER, width=5)
    large = BottleneckModel(build_tiny_model("llama", layers=2), Placement.PFEIFFER, width=6)
    with pytest.raises(ModelError, match=r"down_proj\.down\.bias.*needed \(6,\), stored \(5,\)"):
        large.load_adapter_tensors(small.adapter_tensors())
    with pytest.raises(ModelError, match="stored None"):
        small.load_adapter_tensors({})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("names", [("attention",), ("all-linear",)])
def test_the_same_projections_are_found_as_for_worlds(family, names):
    model = build_tiny_model(family, layers=2)
    worlds = [module.path for module in select_modules(read_architecture(model), names, None)]
    assert sorted(select_paths(find_blocks(model), names)) == sorted(worlds)


def test_an_unknown_projection_is_refused_with_those_there_are():
    with pytest.raises(InvalidValueError, match=r"nope.*down_proj.*q_proj.*attention"):
        select_paths(find_blocks(build_tiny_model("llama", layers=2)), ["nope"])


def test_an_encoder_decoders_cross_attention_is_told_apart():
    blocks = find_blocks(build_tiny_model("t5", layers=2))
    assert [[part.is_cross for part in block.attention] for block in blocks] == [[False]] * 2 + [[False, True]] * 2


class Untypical(nn.Module):
    """No attention anywhere."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])


def test_a_model_of_unknown_parts_is_refused_with_what_is_supported():
    with pytest.raises(ModelError, match=r"Untypical.*no stack of blocks.*LLaMA.*GPT-2.*OPT.*BLOOM.*GPT-J.*T5"):
        BottleneckModel(Untypical(), Placement.HOULSBY, width=4)


def test_a_block_without_a_known_feed_forward_part_is_refused_by_path():
    model = build_tiny_model("llama", layers=2)
    model.model.layers[1].mlp = nn.Identity()
    with pytest.raises(ModelError, match=r"model\.layers\.1 has 1 attention and 0 feed-forward"):
        find_blocks(model)


def test_a_projection_that_is_passed_by_is_refused():
    """BLOOM's exact mode multiplies by the weight without calling the module, so a hook would never run."""
    model = build_tiny_model("bloom", layers=2, pretraining_tp=2, slow_but_exact=True)
    with pytest.raises(ModelError, match="computed 0 times"):
        BottleneckModel(model, Placement.HOULSBY, width=4)
